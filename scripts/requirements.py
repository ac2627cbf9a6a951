"""Print what the development environment needs, pinned, one requirement a line: all extras of pyproject.toml at the
versions of constraints.txt. With ``--missing``, only what the running interpreter does not have at that version.

Needs nothing but the standard library, because it runs before anything is installed.
"""

import re
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def normal(name: str) -> str:
    """The canonical spelling of a package name (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def constraints() -> dict[str, str]:
    """Package name to pinned version."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = (line.split("==", 1) for line in lines if "==" in line and not line.startswith("#"))
    return {normal(name): pin.strip() for name, pin in pins}


def wanted() -> list[str]:
    """Names of the direct requirements, those of every extra included."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    specs = [*project["dependencies"], *(spec for extra in project["optional-dependencies"].values() for spec in extra)]
    return sorted({normal(re.split(r"[^A-Za-z0-9._-]", spec, maxsplit=1)[0]) for spec in specs})


def installed(name: str, pin: str) -> bool:
    """Whether `name` is here at version `pin`, be it a local build of it such as 2.13.0+cpu."""
    try:
        return version(name).split("+", 1)[0] == pin
    except PackageNotFoundError:
        return False


def main() -> None:
    """Entry point."""
    pins = constraints()
    if unpinned := [name for name in wanted() if name not in pins]:
        sys.exit(f"constraints.txt has no version for: {', '.join(unpinned)}")
    for name in wanted():
        if sys.argv[1:] != ["--missing"] or not installed(name, pins[name]):
            print(f"{name}=={pins[name]}")


if __name__ == "__main__":
    main()
