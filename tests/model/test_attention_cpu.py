"""The CPU backend against attention written out, for batches of any mix of lengths."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pdsched.model.attention import AttentionBatch, make_backend, paged_attention_forward
from pdsched.model.attention_cpu import GatherAttention, group_by_length
from pdsched.model.info import ModelError

KV_HEADS, GROUP, DIM, LAYERS = 2, 3, 8, 2


def attend_plainly(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float) -> torch.Tensor:
    """`[n, heads, dim]` queries at the end of `[context, kv_heads, dim]`, in float64."""
    keys, values = (x.double().repeat_interleave(GROUP, dim=1) for x in (key, value))
    scores = torch.einsum("qhd,khd->hqk", query.double(), keys) * scale
    hidden = torch.ones(scores.shape[1:], dtype=torch.bool).triu(key.shape[0] - query.shape[0] + 1)
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(hidden, -torch.inf).softmax(-1), values)


@settings(max_examples=60, deadline=None)
@given(
    decodes=st.lists(st.integers(1, 400), max_size=7),
    chunks=st.lists(st.tuples(st.integers(0, 90), st.integers(1, 40)), max_size=3),
    block_size=st.integers(1, 17),
    seed=st.integers(0, 2**16),
)
def test_equals_attention_written_out(
    decodes: list[int], chunks: list[tuple[int, int]], block_size: int, seed: int
) -> None:
    spans = [(context - 1, 1) for context in decodes] + chunks
    if not spans:
        return
    random = torch.Generator().manual_seed(seed)
    contexts = [before + new for before, new in spans]
    needed = [-(-context // block_size) for context in contexts]
    ids = torch.randperm(sum(needed) + 3, generator=random).tolist()
    pool = torch.full((len(ids), LAYERS, 2, block_size, KV_HEADS, DIM), torch.nan)
    tables = np.full((len(spans), max(needed)), -1, dtype=np.int32)
    slots: list[int] = []
    states = torch.randn(2, sum(contexts), KV_HEADS, DIM, generator=random)
    own: list[torch.Tensor] = []
    layer, at = 1, 0
    for entry, (before, new) in enumerate(spans):
        blocks, ids = ids[: needed[entry]], ids[needed[entry] :]
        tables[entry, : len(blocks)] = blocks
        for token in range(before):
            pool[blocks[token // block_size], layer, :, token % block_size] = states[:, at + token]
        slots += [blocks[t // block_size] * block_size + t % block_size for t in range(before, before + new)]
        own.append(states[:, at + before : at + before + new])
        at += before + new
    new_tokens = [new for _, new in spans]
    batch = AttentionBatch(
        np.array(slots, dtype=np.int64),
        np.concatenate([[0], np.cumsum(new_tokens)]).astype(np.int32),
        np.array(contexts, dtype=np.int32),
        tables,
        len(decodes),
    )
    backend = make_backend(pool)
    key, value = torch.cat(own, dim=1)
    padded = backend.padded(len(slots))
    query = torch.randn(padded, KV_HEADS * GROUP, DIM, generator=random)
    fill = torch.full((padded - len(slots), KV_HEADS, DIM), 9.0)
    key, value = torch.cat([key, fill]), torch.cat([value, fill])
    backend.begin(batch)
    backend.write(layer, key, value)
    out = backend.attend(layer, query, key, value, 0.3)
    at = row = 0
    for context, new in zip(contexts, new_tokens, strict=True):
        all_keys, all_values = states[:, at : at + context]
        expected = attend_plainly(query[row : row + new], all_keys, all_values, 0.3)
        torch.testing.assert_close(out[row : row + new].double(), expected, atol=2e-5, rtol=2e-5)
        at, row = at + context, row + new
    assert (out[row:] == 0).all()
    assert pool[:, 0].isnan().all(), "the other layer was not touched"


@given(st.lists(st.integers(1, 9000), max_size=40))
def test_groups_are_small_and_even(lengths: list[int]) -> None:
    groups = group_by_length(lengths)
    assert sorted(i for group in groups for i in group) == list(range(len(lengths)))
    for group in groups:
        ours = [lengths[i] for i in group]
        assert len(group) == 1 or len(group) * max(ours) <= 2048
        assert max(ours) - min(ours) <= 128


def test_padding_never_shrinks_and_is_small() -> None:
    backend = GatherAttention(torch.zeros(1, 1, 2, 1, 1, 1))
    assert [backend.padded(n) for n in range(10)] == [0, 1, 4, 4, 4, 6, 6, 8, 8, 10]


def test_staging_is_allocated_once() -> None:
    backend = GatherAttention(torch.zeros(64, 1, 2, 4, KV_HEADS, DIM))
    tables = np.arange(32, dtype=np.int32)[None]
    starts, states = np.array([0, 1], dtype=np.int32), torch.ones(1, KV_HEADS, DIM)
    staging = []
    for context in (128, 100, 1, 127):
        slots, lengths = np.array([context - 1], dtype=np.int64), np.array([context], dtype=np.int32)
        backend.begin(AttentionBatch(slots, starts, lengths, tables, 1))
        backend.write(0, states, states)
        backend.attend(0, torch.ones(1, KV_HEADS * GROUP, DIM), states, states, 1.0)
        staging.append((backend._key_staging.data_ptr(), backend._value_staging.data_ptr()))
    assert len(set(staging)) == 1


def test_kinds_of_attention_that_would_be_wrong_are_refused() -> None:
    module = torch.nn.Linear(1, 1)
    q = torch.zeros(1, 2, 1, 4)
    with pytest.raises(ModelError, match="ModelRunner only"):
        paged_attention_forward(module, q, q, q, None)
    backend = GatherAttention(torch.zeros(1, 1, 2, 1, 1, 1))
    refused: dict[str, Any] = {"sliding_window": 128, "softcap": 30.0, "s_aux": torch.zeros(2)}
    for name, value in refused.items():
        with pytest.raises(ModelError, match=f"does not support {name}="):
            paged_attention_forward(module, q, q, q, None, paged_attention=backend, **{name: value})
