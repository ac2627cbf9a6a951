"""The KV pool of a worker: one block-major array, so that a whole block is one contiguous run over all layers.

Shape `[num_blocks, layers, 2, block_size, kv_heads, head_dim]`; the axis of two is key, value. Block-major is the shape
that KV transfer wants (one copy a block); a layer's keys are then a strided view, which attention can live with.

This module needs NumPy only. `KVPool.tensor` is the same memory as a torch tensor and imports torch when it is called.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import mmap

    import torch

    from pdsched.model.info import ModelInfo

# NumPy has no bfloat16; its bits are carried as integers, which is all that a copy needs.
_STORAGE: dict[str, np.dtype[Any]] = {
    "float32": np.dtype("<f4"),
    "float16": np.dtype("<f2"),
    "bfloat16": np.dtype("<u2"),
}
_PAGE = 4096

Buffer: TypeAlias = "bytes | bytearray | memoryview | mmap.mmap | npt.NDArray[Any]"
"""What a pool may be laid over; it must be writable."""


@dataclass(frozen=True, slots=True)
class KVLayout:
    """What the bytes of a pool mean. Two pools whose `fingerprint()` agree can exchange whole blocks as they are."""

    model: str
    """What tells the model apart from another of the same shape: `ModelInfo.fingerprint`."""
    dtype: str
    """`float32`, `float16` or `bfloat16`."""
    num_layers: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    """Tokens per block."""

    def __post_init__(self) -> None:
        if self.dtype not in _STORAGE:
            raise ValueError(f"dtype must be one of {', '.join(_STORAGE)}, got {self.dtype!r}")
        for name in ("num_layers", "num_kv_heads", "head_dim", "block_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")

    @classmethod
    def of(cls, model: ModelInfo, block_size: int, dtype: str = "float32") -> KVLayout:
        """The layout of `model`'s pool."""
        return cls(model.fingerprint, dtype, model.num_layers, model.num_kv_heads, model.head_dim, block_size)

    @property
    def storage(self) -> np.dtype[Any]:
        """NumPy's type for one element."""
        return _STORAGE[self.dtype]

    @property
    def token_nbytes(self) -> int:
        """Bytes of one token over all layers, keys and values."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * self.storage.itemsize

    @property
    def block_nbytes(self) -> int:
        """Bytes of one block over all layers: one contiguous run."""
        return self.block_size * self.token_nbytes

    @property
    def block_shape(self) -> tuple[int, int, int, int, int]:
        """`(layers, 2, block_size, kv_heads, head_dim)`."""
        return (self.num_layers, 2, self.block_size, self.num_kv_heads, self.head_dim)

    @property
    def strides(self) -> tuple[int, int, int, int, int, int]:
        """Bytes from one block, layer, key-or-value, token, head, element to the next."""
        element = self.storage.itemsize
        head = element * self.head_dim
        token = head * self.num_kv_heads
        half = token * self.block_size
        return (2 * half * self.num_layers, 2 * half, half, token, head, element)

    def fingerprint(self) -> str:
        """A short string that is equal exactly when model, element type, shape and strides are."""
        text = json.dumps(asdict(self) | {"strides": self.strides}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def difference(self, other: KVLayout) -> str | None:
        """The first field in which `other` differs, with both values, for a refusal at hand-shake; None if equal."""
        theirs = asdict(other)
        for name, mine in asdict(self).items():
            if mine != theirs[name]:
                return f"{name}: {mine!r} here, {theirs[name]!r} there"
        return None


class KVPool:
    """`num_blocks` blocks of one layout, in memory of its own or in a buffer that is given (a shared arena, an mmap).

    The pool does no accounting: who owns which block is decided by the core's `BlockPool`.
    """

    def __init__(self, layout: KVLayout, num_blocks: int, buffer: Buffer | None = None, *, touch: bool = True) -> None:
        """Lay the pool over the start of `buffer`, or allocate it.

        With `touch` every memory page is mapped now, because the first write to a fresh one costs several times what a
        copy does; the bytes keep their values. Leave it off where somebody else may already be writing.

        Raises `ValueError` for a buffer that is too small or read-only, and for `num_blocks` below 1.
        """
        if num_blocks < 1:
            raise ValueError(f"num_blocks must be at least 1, got {num_blocks}")
        self.layout = layout
        self.num_blocks = num_blocks
        needed = num_blocks * layout.block_nbytes
        flat: npt.NDArray[np.uint8]
        if buffer is None:
            flat = np.zeros(needed, dtype=np.uint8)
        else:
            flat = np.frombuffer(buffer, dtype=np.uint8)
            if flat.size < needed:
                raise ValueError(f"a pool of {num_blocks} blocks needs {needed} bytes, the buffer has {flat.size}")
            if not flat.flags.writeable:
                raise ValueError("the buffer for a KV pool must be writable")
            flat = flat[:needed]
        if touch:
            pages = flat[::_PAGE]
            np.bitwise_or(pages, 0, out=pages)
        self.array: npt.NDArray[Any] = flat.view(layout.storage).reshape(num_blocks, *layout.block_shape)
        """`[num_blocks, layers, 2, block_size, kv_heads, head_dim]`; bfloat16 is held as uint16."""

    @property
    def nbytes(self) -> int:
        """Bytes of the whole pool."""
        return self.num_blocks * self.layout.block_nbytes

    @functools.cached_property
    def tensor(self) -> torch.Tensor:
        """The same memory as a torch tensor of the layout's element type."""
        import torch

        dtype: torch.dtype = getattr(torch, self.layout.dtype)
        return torch.from_numpy(self.array).view(dtype)

    def copy_blocks(self, target: KVPool, source_ids: Sequence[int], target_ids: Sequence[int]) -> None:
        """Copy whole blocks into other blocks of `target`, one memory copy each, without the GIL.

        Raises `ValueError` when the layouts differ, the lists differ in length, or an id lies outside its pool.
        """
        if (difference := self.layout.difference(target.layout)) is not None:
            raise ValueError(f"cannot copy between pools of different layout: {difference}")
        if len(source_ids) != len(target_ids):
            raise ValueError(f"{len(source_ids)} source blocks but {len(target_ids)} target blocks")
        for ids, pool in ((source_ids, self), (target_ids, target)):
            for block in ids:
                if not 0 <= block < pool.num_blocks:
                    raise ValueError(f"block {block} is outside a pool of {pool.num_blocks} blocks")
        for source, destination in zip(source_ids, target_ids, strict=True):
            np.copyto(target.array[destination], self.array[source])
