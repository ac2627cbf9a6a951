"""The verbs of the command line."""

from __future__ import annotations

import asyncio
import importlib.metadata
import os
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    name="pdsched",
    help="Schedules LLM inference with prefill and decode on different workers.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.command()
def version() -> None:
    """Print the version."""
    print(importlib.metadata.version("pdsched"))


@app.command("fetch-model")
def fetch_model() -> None:
    """Get the model of demo and tests (SmolLM2-135M-Instruct) into the cache, once."""
    from pdsched.model import fetch

    try:
        print(fetch.fetch_model(lambda line: print(line, flush=True)))
    except fetch.FetchError as exc:
        _fail(exc)


@app.command()
def demo(
    short: Annotated[bool, typer.Option("--short", help="At most three long prompts, about two minutes.")] = False,
    model: Annotated[str, typer.Option(help="Folder of a transformers chat model, or a known name.")] = "default",
    out: Annotated[Path, typer.Option(help="Folder for the report and the picture.")] = Path("reports"),
) -> None:
    """Answer real prompts with one prefill and one decode worker, then measure why."""
    from rich.console import Console

    from pdsched.demo.run import run_demo
    from pdsched.engine import EngineError
    from pdsched.model.info import ModelError

    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    command = shlex.join(["pdsched", *sys.argv[1:]])
    try:
        asyncio.run(run_demo(Console(), model, short=short, folder=out, command=command))
    except (EngineError, ModelError) as exc:
        _fail(exc)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def main() -> None:
    """Entry point of the `pdsched` script."""
    app()


def _fail(error: Exception) -> None:
    """An expected error: its text, no traceback."""
    print(f"error: {error}", file=sys.stderr)
    raise typer.Exit(1)
