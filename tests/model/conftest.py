"""Fixtures of the model tests. One torch thread, as in a worker, which has one core."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch

from .tiny import Tiny


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def tiny() -> Callable[[str], Tiny]:
    """Tiny models by family, built once."""
    built: dict[str, Tiny] = {}

    def get(family: str) -> Tiny:
        if family not in built:
            built[family] = Tiny(family)
        return built[family]

    return get
