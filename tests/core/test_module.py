"""The package is light, and the examples in its documentation are true."""

from __future__ import annotations

import ast
import doctest
import subprocess
import sys
from pathlib import Path

import pytest

import pdsched

HEAVY = ["torch", "transformers", "zmq", "fastapi", "hypothesis", "msgspec", "rich", "typer"]


def test_the_import_is_light() -> None:
    program = f"""
import sys, time
start = time.perf_counter()
import pdsched
print(time.perf_counter() - start, [name for name in {HEAVY} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    seconds, loaded = done.stdout.split(" ", 1)
    assert loaded.strip() == "[]"
    assert float(seconds) < 0.3


def documented() -> list[doctest.DocTest]:
    """The examples of the stub, which is the documentation of the compiled module."""
    stub = Path(pdsched.__file__).with_name("_core.pyi")
    found = []
    for node in ast.walk(ast.parse(stub.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and (text := ast.get_docstring(node)):
            test = doctest.DocTestParser().get_doctest(text, {}, node.name, str(stub), node.lineno)
            if test.examples:
                found.append(test)
    return found


@pytest.mark.parametrize("test", documented(), ids=lambda test: test.name)
def test_examples_of_the_stub(test: doctest.DocTest) -> None:
    lines: list[str] = []
    result = doctest.DocTestRunner().run(test, out=lines.append)
    assert result.failed == 0, "".join(lines)


def test_there_are_examples() -> None:
    assert {test.name for test in documented()} >= {"Scheduler", "LoadBalancer"}
