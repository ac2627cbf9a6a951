"""What is asked of every set-up: the same streams and the same long prompts at the same times."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pdsched.demo.prompts import LONG, SHORT
from pdsched.engine import WorkerSpec
from pdsched.engine.config import Role
from pdsched.model.tokenizer import Tokenizer

CHUNK = 256
"""Prompt tokens per step in the chunked set-ups and on the prefill worker."""
MIN_LONG = 1500
"""Tokens from which a prompt counts as long."""
NUM_STREAMS = 12
LONG_ANSWER = 24
"""Tokens that each long prompt's answer has."""
SPACING = 0.8
"""Time between two long prompts over the time that one takes to prefill: one worker falls behind, two do not."""
LEAD_SECONDS = 1.5
"""Streams decode undisturbed for this long before the first long prompt comes."""
SHORT_RUN_LONGS = 3
FULL_RUN_LONGS = 8

Tokens = npt.NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class Scenario:
    """Prompts as tokens, and when they come."""

    streams: list[tuple[str, Tokens]]
    """(name, prompt): short chats that decode all the time."""
    longs: list[tuple[str, Tokens]]
    """(name, prompt): what is prefilled meanwhile."""
    spacing_s: float
    """Time from one long prompt to the next."""
    prefill_s: float
    """What one long prompt is expected to take; decides nothing but the budget of time."""


@dataclass(frozen=True, slots=True)
class SetUp:
    """Two workers on two cores, told how to share the work."""

    key: str
    label: str
    """Short, for tables."""
    name: str
    specs: list[WorkerSpec]


def make_scenario(tokenizer: Tokenizer, num_longs: int, tokens_per_s: float) -> Scenario:
    """`num_longs` long prompts, spaced by what this machine needs for one. The shortest come first into a small run."""
    encoded = [(prompt.name, tokenizer.chat(prompt.messages)) for prompt in LONG]
    longs = sorted(((name, tokens) for name, tokens in encoded if len(tokens) >= MIN_LONG), key=lambda p: len(p[1]))
    longs = longs[:num_longs]
    shorts = itertools.islice(itertools.cycle(SHORT), NUM_STREAMS)
    streams = [(f"{prompt.name}-{i}", tokenizer.chat(prompt.messages)) for i, prompt in enumerate(shorts)]
    prefill_s = float(np.mean([len(tokens) for _, tokens in longs])) / tokens_per_s
    return Scenario(streams, longs, SPACING * prefill_s, prefill_s)


def set_ups(cores: Sequence[int | None], longest: int) -> list[SetUp]:
    """The three ways to share two cores. `longest` is the longest prompt: a whole one must fit a step."""
    seats = NUM_STREAMS + FULL_RUN_LONGS + 4

    def worker(role: Role, core: int | None, chunk: int | None) -> WorkerSpec:
        budget = (longest if chunk is None else chunk) + (0 if role == "prefill" else seats)
        return WorkerSpec(role, core, chunk, max_num_seqs=seats, max_num_batched_tokens=budget)

    first, second = cores
    whole = [worker("both", core, None) for core in cores]
    chunked = [worker("both", core, CHUNK) for core in cores]
    apart = [worker("prefill", first, CHUNK), worker("decode", second, CHUNK)]
    return [
        SetUp("a", "both, whole prompts", "two workers doing both, whole prompts", whole),
        SetUp("b", f"both, chunks of {CHUNK}", f"two workers doing both, chunks of {CHUNK}", chunked),
        SetUp("c", "prefill | decode", f"one prefill worker (chunks of {CHUNK}), one decode worker", apart),
    ]


def kv_tokens(num_longs: int) -> int:
    """Pool size that keeps every long prompt's KV through a run: the baseline of (c) finds it there again."""
    return num_longs * 1900 + NUM_STREAMS * 600 + 1024


def plan_longs(short: bool, prefill_s: float) -> int:
    """How many long prompts fit the time: a short run ends within two minutes, a full one within ten.

    Everything together takes about 3.1 prefills per long prompt, 3.5 more for beginnings and baselines, and half a
    minute for start, steady decoding and picture; a tenth of the time is kept back.
    """
    budget = 0.9 * (120.0 if short else 600.0)
    wanted = SHORT_RUN_LONGS if short else FULL_RUN_LONGS
    fitting = int(((budget - 32.0) / prefill_s - 3.5) / 3.1)
    return max(1, min(wanted, fitting))
