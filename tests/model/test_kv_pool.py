"""The pool: what its layout says, whose memory it uses, and copies to other block ids."""

from __future__ import annotations

import mmap
from dataclasses import replace

import numpy as np
import pytest
import torch

from pdsched.model.kv_pool import KVLayout, KVPool

LAYOUT = KVLayout(model="m", dtype="float32", num_layers=3, num_kv_heads=2, head_dim=8, block_size=4)


def test_layout_describes_the_array() -> None:
    pool = KVPool(LAYOUT, 5)
    assert pool.array.shape == (5, 3, 2, 4, 2, 8)
    assert pool.array.strides == LAYOUT.strides
    assert pool.array[0].nbytes == LAYOUT.block_nbytes == 4 * LAYOUT.token_nbytes
    assert pool.array[3].flags.c_contiguous, "a block is one run"
    assert pool.nbytes == pool.array.nbytes


@pytest.mark.parametrize(
    "change",
    [
        {"model": "n"},
        {"dtype": "bfloat16"},
        {"num_layers": 4},
        {"num_kv_heads": 1},
        {"head_dim": 16},
        {"block_size": 8},
    ],
)
def test_fingerprint_tells_layouts_apart(change: dict[str, object]) -> None:
    other = replace(LAYOUT, **change)  # type: ignore[arg-type]
    assert other.fingerprint() != LAYOUT.fingerprint()
    ((name, value),) = change.items()
    assert LAYOUT.difference(other) == f"{name}: {getattr(LAYOUT, name)!r} here, {value!r} there"


def test_equal_layouts_have_equal_fingerprints() -> None:
    assert replace(LAYOUT).fingerprint() == LAYOUT.fingerprint()
    assert LAYOUT.difference(replace(LAYOUT)) is None


@pytest.mark.parametrize(("name", "value"), [("dtype", "int8"), ("block_size", 0), ("num_layers", -1)])
def test_bad_layouts_are_refused(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"{name} must be .*{value}"):
        replace(LAYOUT, **{name: value})  # type: ignore[arg-type]


def test_a_pool_lies_in_the_buffer_that_it_is_given() -> None:
    buffer = mmap.mmap(-1, 4 * LAYOUT.block_nbytes + 4096)
    np.frombuffer(buffer, dtype=np.float32)[:4] = [1, 2, 3, 4]
    first, second = KVPool(LAYOUT, 4, buffer), KVPool(LAYOUT, 4, memoryview(buffer), touch=False)
    assert first.array[0, 0, 0, 0, 0, :4].tolist() == [1, 2, 3, 4], "touching changes nothing"
    first.tensor[2] = 7.0
    assert (second.array[2] == 7.0).all()
    assert (second.array[3] == 0.0).all()


@pytest.mark.parametrize(
    ("num_blocks", "buffer", "text"),
    [
        (0, None, "num_blocks must be at least 1, got 0"),
        (2, bytearray(100), f"needs {2 * LAYOUT.block_nbytes} bytes, the buffer has 100"),
        (1, bytes(LAYOUT.block_nbytes), "must be writable"),
    ],
)
def test_buffers_that_do_not_do(num_blocks: int, buffer: bytes | None, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        KVPool(LAYOUT, num_blocks, buffer)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_tensor_is_the_same_memory(dtype: str) -> None:
    pool = KVPool(replace(LAYOUT, dtype=dtype), 2)
    assert pool.tensor.dtype == getattr(torch, dtype)
    pool.tensor.fill_(1.0)
    assert pool.array.all()


def test_blocks_are_copied_to_other_ids() -> None:
    source, target = KVPool(LAYOUT, 6), KVPool(LAYOUT, 9)
    source.array[:] = np.arange(6)[:, None, None, None, None, None] + 1
    source.copy_blocks(target, [4, 0, 5], [1, 8, 2])
    assert target.array[:, 0, 0, 0, 0, 0].tolist() == [0, 5, 6, 0, 0, 0, 0, 0, 1]
    assert (target.array[1] == 5).all()


def test_wrong_copies_are_refused_before_anything_is_written() -> None:
    source, target = KVPool(LAYOUT, 3), KVPool(LAYOUT, 3)
    source.array.fill(1)
    for sources, targets, text in (
        ([0, 1], [0], "2 source blocks but 1 target blocks"),
        ([0, 3], [0, 1], "block 3 is outside a pool of 3 blocks"),
        ([0, 1], [0, -1], "block -1 is outside"),
    ):
        with pytest.raises(ValueError, match=text):
            source.copy_blocks(target, sources, targets)
    with pytest.raises(ValueError, match="different layout: block_size: 4 here, 8 there"):
        source.copy_blocks(KVPool(replace(LAYOUT, block_size=8), 3), [0], [0])
    assert not target.array.any()
