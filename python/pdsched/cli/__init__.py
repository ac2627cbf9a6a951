"""The `pdsched` command. Heavy imports happen in the verbs, so that `pdsched --help` is quick."""

from pdsched.cli.app import main

__all__ = ["main"]
