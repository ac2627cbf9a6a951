"""`python -m pdsched.cli`."""

from pdsched.cli.app import main

if __name__ == "__main__":
    main()
