"""`cases.md` names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
LINE = re.compile(r"- (?P<id>[ABK]\d+)(?P<tests>( `[\w/.]+::\w+`)+)")


def entries() -> list[tuple[str, list[str]]]:
    """(id, tests) of every line of the list."""
    found = []
    for line in (ROOT / "tests" / "cases.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("- "):
            match = LINE.fullmatch(line)
            assert match, f"cannot read: {line}"
            found.append((match["id"], re.findall(r"`(.+?)`", match["tests"])))
    return found


def exists(test: str) -> bool:
    """Whether a test of that name is in that file."""
    path, name = test.split("::")
    file = ROOT / path
    kind = "fn" if file.suffix == ".rs" else "def"
    return file.is_file() and re.search(rf"\b{kind} {name}\(", file.read_text(encoding="utf-8")) is not None


def test_every_test_named_exists() -> None:
    missing = [(id, test) for id, tests in entries() for test in tests if not exists(test)]
    assert not missing


def test_every_id_stands_once_and_in_order() -> None:
    ids = [id for id, _ in entries()]
    assert len(ids) > 100
    assert ids == sorted(set(ids))


def test_every_test_with_an_id_in_its_name_is_listed() -> None:
    listed = {(id, test) for id, tests in entries() for test in tests}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for name in re.findall(r"def (test_\w+)\(", path.read_text(encoding="utf-8")):
            for id in re.findall(r"(?<=_)[abk]\d{2,3}(?=_)", name):
                test = f"{path.relative_to(ROOT)}::{name}"
                assert (id.upper(), test) in listed, f"{test} is not listed under {id.upper()}"
