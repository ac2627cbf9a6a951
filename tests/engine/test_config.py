"""An engine's configuration names what is wrong with it; the engine itself stays light."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pdsched.engine import EngineConfig, WorkerSpec

PAIR = [WorkerSpec("prefill", chunk_size=64), WorkerSpec("decode")]


def test_importing_the_engine_imports_no_torch() -> None:
    code = "import sys, pdsched.engine; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: EngineConfig("m", []), "workers"),
        (lambda: EngineConfig("m", [WorkerSpec("prefill")]), "workers must include"),
        (lambda: EngineConfig("m", PAIR, block_size=0), "block_size must be positive, got 0"),
        (lambda: EngineConfig("m", PAIR, kv_tokens=8), "kv_tokens must be at least one block of 16, got 8"),
        (lambda: EngineConfig("m", PAIR, record="/no/such"), "record must be an existing folder"),
        (lambda: WorkerSpec("verify"), "role must be one of"),  # type: ignore[arg-type]
        (lambda: WorkerSpec("both", chunk_size=0), "chunk_size must be at least 1, got 0"),
    ],
)
def test_configuration_errors_name_the_value(make: object, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        make()  # type: ignore[operator]


def test_the_token_budget_follows_the_chunk() -> None:
    chunked = WorkerSpec("both", chunk_size=64, max_num_seqs=8).scheduler_arguments(2048, 2, 4096)
    assert (chunked["chunk_size"], chunked["max_num_batched_tokens"]) == (64, 72)
    whole = WorkerSpec("both", max_num_seqs=8).scheduler_arguments(2048, 2, 4096)
    assert (whole["chunk_size"], whole["max_num_batched_tokens"]) == (None, 2056)
    named = WorkerSpec("both", max_num_batched_tokens=99, scheduler={"prefix_caching": False})
    assert named.scheduler_arguments(2048, 2, 4096)["max_num_batched_tokens"] == 99
    assert named.scheduler_arguments(2048, 2, 4096)["prefix_caching"] is False
    assert EngineConfig("m", PAIR, block_size=7, kv_tokens=100).num_blocks == 14
