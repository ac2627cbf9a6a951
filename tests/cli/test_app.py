"""The command's verbs, as far as they need no worker."""

from __future__ import annotations

import importlib.metadata

from typer.testing import CliRunner

from pdsched.cli.app import app

runner = CliRunner()


def test_help_names_the_verbs() -> None:
    result = runner.invoke(app, ["--help"])
    assert result.exit_code == 0
    for verb in ("version", "fetch-model", "demo"):
        assert verb in result.output


def test_version() -> None:
    result = runner.invoke(app, ["version"])
    assert result.output.strip() == importlib.metadata.version("pdsched")


def test_an_unknown_model_is_an_error_without_a_traceback() -> None:
    result = runner.invoke(app, ["demo", "--short", "--model", "/no/such/folder"])
    assert result.exit_code == 1
    assert "error: no model folder at '/no/such/folder'" in result.output
    assert "Traceback" not in result.output
