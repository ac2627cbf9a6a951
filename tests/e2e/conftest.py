"""One tiny model for all tests with real processes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")

from pdsched.testing.tiny_models import save_tiny_model, tiny_model

from .harness import Reference

LENGTH = {"max_position_embeddings": 4096}


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny Llama."""
    return save_tiny_model(tmp_path_factory.mktemp("model"), "llama", seed=1, **LENGTH)


@pytest.fixture(scope="session")
def reference() -> Reference:
    """The same model in this process, with its own attention."""
    return Reference(tiny_model("llama", seed=1, attention="sdpa", **LENGTH))
