"""The main job: real chat prompts, some of them long, streamed live from one prefill and one decode worker."""

from __future__ import annotations

import asyncio

from rich.console import Console

from pdsched.demo.prompts import LONG, SHORT, Prompt
from pdsched.demo.snapshot import Names
from pdsched.demo.view import watch
from pdsched.engine import Engine
from pdsched.engine.stats import RequestStats

MAX_TOKENS = {True: 48, False: 96}
"""Tokens of an answer at most, in a short and in a full run."""


async def answer(console: Console, engine: Engine, short: bool) -> list[RequestStats]:
    """Ask, show the streams while they come, print the answers. Returns the requests' times."""
    prompts = SHORT[:3] + LONG[1:2] if short else SHORT[:5] + LONG[:3]
    names = Names()
    engine.forget()
    async with watch(console, engine, "Answers: prompts are computed on worker 1, tokens come from worker 2", names):
        await asyncio.gather(*(_ask(engine, prompt, names, MAX_TOKENS[short]) for prompt in prompts))
    console.print()
    for number, name in names.names.items():
        prompt = next(prompt for prompt in prompts if prompt.name == name)
        stats = engine.requests[number]
        length = f"{stats.prompt_tokens} prompt tokens, " if prompt.text else ""
        console.print(f"[bold]{name}[/bold] ({length}{len(stats.token_ns)} tokens): [italic]{prompt.question}[/italic]")
        console.print(names.texts[number].strip() + "\n", markup=False, highlight=False)
    return list(engine.requests.values())


async def _ask(engine: Engine, prompt: Prompt, names: Names, max_tokens: int) -> None:
    number = engine.next_id()
    names.names[number] = prompt.name
    names.texts[number] = ""
    async for output in engine.generate(prompt.messages, max_tokens=max_tokens, request_id=number):
        names.texts[number] += output.text
