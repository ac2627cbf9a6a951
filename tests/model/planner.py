"""A small scheduler in plain Python that makes steps by hand, so that the model side is tested without the core.

Decodes first, then prompt chunks under a token budget; block ids are scattered on purpose; every decode token is left
unknown (-1) in the step, as if the step had been planned before its predecessor was done.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from pdsched.model.runner import ModelRunner

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]


@dataclass
class Opened:
    """See `pdsched.model.runner.OpenedRow`."""

    row: int
    extra: bytes
    token_ids: npt.NDArray[np.uint32]
    prompt_len: int


@dataclass
class PlannedStep:
    """See `pdsched.model.runner.Step`."""

    token_ids: Int64s
    positions: Int64s
    slot_mapping: Int64s
    query_start_loc: Int32s
    seq_lens: Int32s
    rows: Int32s
    num_decodes: int
    logits_indices: Int32s
    sampled_rows: Int32s
    gather: tuple[Int32s, Int32s]
    table_diff: tuple[Int32s, Int32s, Int32s]
    opened: list[Opened]
    closed: Int32s
    sampled: list[int] = field(default_factory=list)
    """Request ids, in the order of `sampled_rows`."""


@dataclass
class Sequence:
    """A request in the planner."""

    id: int
    tokens: list[int]
    prompt_len: int
    max_tokens: int
    extra: bytes
    row: int = -1
    num_computed: int = 0
    blocks: list[int] = field(default_factory=list)
    table_known: int = 0
    """Blocks that the runner has been told of."""

    @property
    def output(self) -> list[int]:
        """Tokens generated so far."""
        return self.tokens[self.prompt_len :]

    @property
    def done(self) -> bool:
        """Whether all its tokens are there."""
        return len(self.output) >= self.max_tokens


class Planner:
    """Plans steps for one runner. Nothing is shared between sequences, and pools are large enough."""

    def __init__(self, num_blocks: int, block_size: int, num_rows: int, chunk: int = 64, seed: int = 0) -> None:
        self.block_size = block_size
        self.chunk = chunk
        self.sequences: dict[int, Sequence] = {}
        self.closed: list[int] = []
        self._free = list(range(num_blocks))
        random.Random(seed).shuffle(self._free)
        self._rows = list(range(num_rows))

    def add(self, request: int, prompt: list[int], max_tokens: int, extra: bytes = b"") -> Sequence:
        """A new request."""
        self.sequences[request] = Sequence(request, list(prompt), len(prompt), max_tokens, extra)
        return self.sequences[request]

    def adopt(self, sequence: Sequence) -> Sequence:
        """A request whose KV arrives from elsewhere: takes blocks for what is computed; the caller fills them."""
        ours = Sequence(
            sequence.id, list(sequence.tokens), sequence.prompt_len, sequence.max_tokens, sequence.extra,
            num_computed=sequence.num_computed,
        )  # fmt: skip
        self.sequences[ours.id] = ours
        self._grow(ours, ours.num_computed)
        return ours

    def preempt(self, request: int) -> None:
        """Take row and blocks away; everything will be computed again."""
        sequence = self.sequences[request]
        self._release(sequence)
        sequence.num_computed = 0

    def plan(self) -> PlannedStep | None:
        """The next step, or None when all requests are done."""
        alive = [sequence for sequence in self.sequences.values() if not sequence.done]
        decodes = [s for s in alive if s.num_computed == len(s.tokens) - 1 and s.num_computed > 0]
        entries = [(sequence, 1) for sequence in decodes]
        budget = self.chunk
        for sequence in (s for s in alive if s not in decodes):
            count = min(budget, len(sequence.tokens) - sequence.num_computed)
            if count > 0:
                entries.append((sequence, count))
                budget -= count
        return self._build(entries, len(decodes)) if entries else None

    def complete(self, step: PlannedStep, tokens: Int64s) -> None:
        """Take the sampled tokens of a step in."""
        for request, token in zip(step.sampled, tokens.tolist(), strict=True):
            sequence = self.sequences[request]
            sequence.tokens.append(token)
            if sequence.done:
                self._release(sequence)

    def run(self, runner: ModelRunner) -> dict[int, list[int]]:
        """Plan and run until all is done; the outputs by request."""
        while (step := self.plan()) is not None:
            self.complete(step, runner.run(step))
        return {request: sequence.output for request, sequence in self.sequences.items()}

    def _build(self, entries: list[tuple[Sequence, int]], num_decodes: int) -> PlannedStep:
        opened, sampled, gathered = [], [], []
        columns: dict[str, list[int]] = {
            "token": [],
            "position": [],
            "slot": [],
            "start": [0],
            "logit": [],
            "sampled": [],
        }
        diff: list[tuple[int, int, int]] = []
        for index, (sequence, count) in enumerate(entries):
            start, end = sequence.num_computed, sequence.num_computed + count
            if sequence.row < 0:
                sequence.row = self._rows.pop(0)
                tokens = np.array(sequence.tokens, dtype=np.uint32)
                opened.append(Opened(sequence.row, sequence.extra, tokens, sequence.prompt_len))
            self._grow(sequence, end)
            known = sequence.table_known
            diff += [(sequence.row, known + i, block) for i, block in enumerate(sequence.blocks[known:])]
            sequence.table_known = len(sequence.blocks)
            if index < num_decodes:
                gathered.append((len(columns["token"]), sequence.row))
                columns["token"].append(-1)
            else:
                columns["token"] += sequence.tokens[start:end]
            columns["position"] += range(start, end)
            columns["slot"] += [sequence.blocks[p // self.block_size] * self.block_size + p % self.block_size
                                for p in range(start, end)]  # fmt: skip
            columns["start"].append(columns["start"][-1] + count)
            if end == len(sequence.tokens):
                columns["logit"].append(columns["start"][-1] - 1)
                columns["sampled"].append(sequence.row)
                sampled.append(sequence.id)
            sequence.num_computed = end
        closed, self.closed = self.closed, []
        return PlannedStep(
            token_ids=np.array(columns["token"], dtype=np.int64),
            positions=np.array(columns["position"], dtype=np.int64),
            slot_mapping=np.array(columns["slot"], dtype=np.int64),
            query_start_loc=int32s(columns["start"]),
            seq_lens=int32s([sequence.num_computed for sequence, _ in entries]),
            rows=int32s([sequence.row for sequence, _ in entries]),
            num_decodes=num_decodes,
            logits_indices=int32s(columns["logit"]),
            sampled_rows=int32s(columns["sampled"]),
            gather=(int32s([at for at, _ in gathered]), int32s([row for _, row in gathered])),
            table_diff=(int32s([d[0] for d in diff]), int32s([d[1] for d in diff]), int32s([d[2] for d in diff])),
            opened=opened,
            closed=int32s(closed),
            sampled=sampled,
        )

    def _grow(self, sequence: Sequence, tokens: int) -> None:
        while len(sequence.blocks) * self.block_size < tokens:
            sequence.blocks.append(self._free.pop(0))

    def _release(self, sequence: Sequence) -> None:
        self._free += sequence.blocks
        sequence.blocks, sequence.table_known = [], 0
        if sequence.row >= 0:
            self.closed.append(sequence.row)
            self._rows.append(sequence.row)
            sequence.row = -1


def int32s(values: list[int]) -> Int32s:
    """An int32 column."""
    return np.array(values, dtype=np.int32)
