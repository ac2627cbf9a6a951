"""Runs steps of the scheduler on a `transformers` model over the paged KV pool.

A step's arrays and the runner's own state by row are all it needs: block table, last sampled token, sampling
parameters. It never sees a request, so it may run steps whose tokens were unknown when they were planned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from pdsched.model.attention import BACKEND_KEYWORD, AttentionBatch, PagedAttention, make_backend
from pdsched.model.info import ModelError
from pdsched.model.kv_pool import KVPool
from pdsched.model.sampling import GREEDY, SamplingParams, sample

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]


class OpenedRow(Protocol):
    """A row that begins to stand for a request with this step."""

    @property
    def row(self) -> int:
        """Persistent row of the batch."""

    @property
    def extra(self) -> bytes:
        """Encoded `SamplingParams`; empty is greedy."""

    @property
    def token_ids(self) -> npt.NDArray[np.uint32]:
        """All tokens known so far, prompt and outputs."""

    @property
    def prompt_len(self) -> int:
        """How many of them are the prompt."""


class Step(Protocol):
    """The arrays of one step, as `pdsched.Step` has them. T tokens in S entries; L of the tokens are sampled after."""

    @property
    def token_ids(self) -> Int64s:
        """[T]; -1 where the token is not known yet, see `gather`."""

    @property
    def positions(self) -> Int64s:
        """[T] index of each token in its sequence."""

    @property
    def slot_mapping(self) -> Int64s:
        """[T] block * block_size + offset."""

    @property
    def query_start_loc(self) -> Int32s:
        """[S + 1]."""

    @property
    def seq_lens(self) -> Int32s:
        """[S] context, this step's tokens included."""

    @property
    def rows(self) -> Int32s:
        """[S] persistent row of each entry."""

    @property
    def num_decodes(self) -> int:
        """Leading entries with exactly one token."""

    @property
    def logits_indices(self) -> Int32s:
        """[L] indices into T."""

    @property
    def sampled_rows(self) -> Int32s:
        """[L] persistent row of each."""

    @property
    def gather(self) -> tuple[Int32s, Int32s]:
        """(positions in T, rows): tokens that are the last sampled token of a row."""

    @property
    def table_diff(self) -> tuple[Int32s, Int32s, Int32s]:
        """(row, column, block): changes of the block table, in order."""

    @property
    def opened(self) -> Sequence[OpenedRow]:
        """Rows that begin."""

    @property
    def closed(self) -> Int32s:
        """Rows that end."""


@dataclass(slots=True)
class _Row:
    params: SamplingParams
    prompt_len: int


_IDLE = _Row(GREEDY, 0)


class ModelRunner:
    """One model over one pool. Not thread-safe; steps are run in the order of their planning."""

    def __init__(
        self,
        model: Any,
        pool: KVPool,
        num_rows: int,
        max_blocks_per_row: int,
        backend: PagedAttention | None = None,
    ) -> None:
        """`model` comes from `load_model`; `num_rows` and `max_blocks_per_row` are the scheduler's limits.

        `backend` defaults to the one for the model's device. On a CUDA device the runner works on a copy of the pool
        over there. Raises `ModelError` when model and pool do not fit each other.
        """
        _check_fit(model, pool)
        self.model = model
        self.pool = pool
        self._device = torch.device(model.device)
        self._backend = backend or make_backend(pool.tensor.to(self._device))
        self._block_table = np.zeros((num_rows, max_blocks_per_row), dtype=np.int32)
        self._last_token = np.zeros(num_rows, dtype=np.int64)
        self._rows = [_IDLE] * num_rows
        self._special: set[int] = set()
        """Rows that are not plainly greedy."""

    def apply_tables(self, step: Step) -> None:
        """Follow what a step says about rows and block tables without running it: for steps that are skipped.

        Raises `ValueError` for malformed sampling parameters and `IndexError` for rows or columns out of range.
        """
        for row in step.closed.tolist():
            self._rows[row] = _IDLE
            self._special.discard(row)
        for opened in step.opened:
            row = opened.row
            params = SamplingParams.decode(bytes(opened.extra))
            self._rows[row] = _Row(params, opened.prompt_len)
            self._special.discard(row)
            if params.temperature > 0 or params.min_tokens > 0:
                self._special.add(row)
            if len(opened.token_ids):
                self._last_token[row] = int(opened.token_ids[-1])
        rows, columns, blocks = step.table_diff
        if len(rows):
            self._block_table[rows, columns] = blocks

    def run(self, step: Step) -> Int64s:
        """Run one step and return the sampled tokens, one per `logits_indices`.

        Raises `ValueError` for a token that is neither known nor gathered. After any exception the pool's blocks of
        this step are undefined and the step has to be failed.
        """
        self.apply_tables(step)
        token_ids = step.token_ids
        unknown, rows = step.gather
        if len(unknown):
            token_ids[unknown] = self._last_token[rows]
        if len(token_ids) and token_ids.min() < 0:
            at = int(np.argmin(token_ids))
            raise ValueError(
                f"token {at} of the step (position {step.positions[at]}) is {token_ids[at]}, not a token id"
            )
        self._backend.begin(
            AttentionBatch(
                step.slot_mapping, step.query_start_loc, step.seq_lens, self._block_table[step.rows], step.num_decodes
            )
        )
        logits = self._forward(token_ids, step.positions, step.logits_indices)
        tokens = self._sample(logits, step)
        self._last_token[step.sampled_rows] = tokens
        return tokens

    @torch.inference_mode()
    def _forward(self, token_ids: Int64s, positions: Int64s, logits_indices: Int32s) -> torch.Tensor:
        """Logits `[L, vocab]` on the model's device."""
        num_tokens, num_logits = len(token_ids), len(logits_indices)
        padding = self._backend.padded(num_tokens) - num_tokens
        # The output head runs over a whole vocabulary: only on the rows that emit, and never on none.
        kept = np.zeros(self._backend.padded(max(num_logits, 1)), dtype=np.int64)
        kept[:num_logits] = logits_indices
        output = self.model(
            input_ids=self._row_of(token_ids, padding),
            position_ids=self._row_of(positions, padding),
            use_cache=False,
            logits_to_keep=torch.from_numpy(kept).to(self._device),
            **{BACKEND_KEYWORD: self._backend},
        )
        logits: torch.Tensor = output.logits[0, :num_logits]
        return logits

    def _row_of(self, values: Int64s, padding: int) -> torch.Tensor:
        return torch.from_numpy(np.pad(values, (0, padding))).unsqueeze(0).to(self._device)

    def _sample(self, logits: torch.Tensor, step: Step) -> Int64s:
        """Greedy for all rows at once, then again one by one for those that want something else."""
        tokens: Int64s = logits.argmax(dim=-1).cpu().numpy().astype(np.int64)
        if self._special:
            for index, row in enumerate(step.sampled_rows.tolist()):
                if row in self._special:
                    state = self._rows[row]
                    position = int(step.positions[step.logits_indices[index]]) + 1
                    tokens[index] = sample(
                        logits[index].float().cpu().numpy(),
                        state.params,
                        position=position,
                        num_output=position - state.prompt_len,
                    )
        return tokens


def _check_fit(model: Any, pool: KVPool) -> None:
    config, layout = model.config, pool.layout
    heads = config.num_attention_heads
    expected = {
        "num_layers": config.num_hidden_layers,
        "num_kv_heads": getattr(config, "num_key_value_heads", None) or heads,
        "head_dim": getattr(config, "head_dim", None) or config.hidden_size // heads,
        "dtype": str(model.dtype).removeprefix("torch."),
    }
    for name, value in expected.items():
        if getattr(layout, name) != value:
            raise ModelError(f"the KV pool has {name}={getattr(layout, name)!r}, the model {value!r}")
