"""What may be handed in, in which types, and what is said about what may not."""

from __future__ import annotations

import array
from typing import Any

import numpy as np
import pytest

from pdsched import BlockPool, Cluster, ClusterConfig, Request, Scheduler, SchedulerConfig, Worker

from .harness import config, text

PROMPT = text(1, 20)

KINDS: dict[str, Any] = {
    "list": PROMPT,
    "tuple": tuple(PROMPT),
    "int32": np.asarray(PROMPT, np.int32),
    "int64": np.asarray(PROMPT, np.int64),
    "uint32": np.asarray(PROMPT, np.uint32),
    "uint8": np.asarray(PROMPT, np.uint8),
    "strided": np.repeat(np.asarray(PROMPT, np.int64), 2)[::2],
    "strided uint32": np.repeat(np.asarray(PROMPT, np.uint32), 2)[::2],
    "buffer": array.array("i", PROMPT),
    "memory view": memoryview(array.array("q", PROMPT)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_token_ids_of_every_kind(kind: str) -> None:
    scheduler = Scheduler(config(32))
    scheduler.add(Request(1, KINDS[kind], 4), 0)
    tokens = scheduler.tokens(1)
    assert tokens is not None
    assert tokens.tolist() == PROMPT


@pytest.mark.parametrize(
    "kind", [[7, 8], (7, 8), np.array([7, 8]), np.array([7, 8], np.int32), np.array([[7], [8]])[:, 0]]
)
def test_samples_of_every_kind(kind: Any) -> None:
    scheduler = Scheduler(config(32))
    for id in (1, 2):
        scheduler.add(Request(id, PROMPT, 4), 0)
    step = scheduler.schedule(0)
    assert step is not None
    assert scheduler.complete(step.id, kind, [1, 1], now=0).token_ids.tolist() == [7, 8]


def test_the_prompt_is_copied() -> None:
    prompt = np.asarray(PROMPT, np.uint32)
    scheduler = Scheduler(config(32))
    scheduler.add(Request(1, prompt, 4), 0)
    prompt[:] = 0
    tokens = scheduler.tokens(1)
    assert tokens is not None
    assert tokens.tolist() == PROMPT


@pytest.mark.parametrize(
    ("prompt", "error", "match"),
    [
        ([1, -1], ValueError, r"prompt_token_ids\[1\] = -1 is not a token id"),
        ([1, 2**32], ValueError, r"prompt_token_ids\[1\] = 4294967296"),
        (np.array([1, -5]), ValueError, r"prompt_token_ids\[1\] = -5"),
        (np.array([1.5]), TypeError, "prompt_token_ids has dtype float64"),
        (np.array([[1], [2]]), ValueError, "prompt_token_ids has 2 dimensions"),
        (["a"], TypeError, r"prompt_token_ids\[0\] = a"),
        ([1.0], TypeError, r"prompt_token_ids\[0\] = 1.0"),
        ("text", ValueError, "prompt_token_ids has 0 dimensions"),
    ],
)
def test_prompts_that_are_none(prompt: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        Request(1, prompt, 4)


@pytest.mark.parametrize(
    ("request_", "match"),
    [
        (Request(1, [], 4), "request 1: the prompt is empty"),
        (Request(1, [1], 0), "request 1: max_tokens = 0 leaves nothing"),
        (Request(1, [1], 2, output_token_ids=[5, 6]), "after 2 known outputs"),
        (Request(1, [1], 4, min_tokens=5), "min_tokens = 5 exceeds max_tokens = 4"),
        (Request(1, [0] * 600, 4), "600 tokens need 38 blocks, the whole pool has 32"),
        (Request(1, [0] * 512, 4), "512 tokens need 33 blocks, the whole pool has 32"),
        (Request(9, [1], 4), "request 9 is unfinished already"),
    ],
)
def test_b090_requests_that_are_refused(request_: Request, match: str) -> None:
    scheduler = Scheduler(config(32))
    scheduler.add(Request(9, PROMPT, 4), 0)
    with pytest.raises(ValueError, match=match):
        scheduler.add(request_, 0)
    if request_.id != 9:
        with pytest.raises(ValueError, match=match):
            scheduler.reserve(request_, 0)
    assert scheduler.num_unfinished == 1
    scheduler.check()


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"num_blocks": 0}, "num_blocks = 0: must exceed reserved_blocks"),
        ({"num_blocks": 4, "reserved_blocks": 4}, "num_blocks = 4"),
        ({"block_size": 0}, "block_size = 0"),
        ({"max_num_seqs": 0}, "max_num_seqs = 0"),
        ({"max_num_batched_tokens": 7}, "max_num_batched_tokens = 7: must be at least max_num_seqs"),
        ({"chunk_size": 0}, "chunk_size = 0"),
        ({"max_model_len": 1}, "max_model_len = 1"),
        ({"max_steps_in_flight": 0}, "max_steps_in_flight = 0"),
        ({"max_steps_in_flight": 17}, "max_steps_in_flight = 17"),
        ({"watermark_blocks": 32}, "watermark_blocks = 32"),
        ({"hash_bits": 65}, "hash_bits = 65"),
        ({"seeded_bug": "none such"}, "none such"),
    ],
)
def test_configurations_that_cannot_be_used(fields: dict[str, Any], match: str) -> None:
    good = {"num_blocks": 32, "block_size": 16, "max_num_seqs": 8, "max_num_batched_tokens": 64}
    with pytest.raises(ValueError, match=match):
        Scheduler(SchedulerConfig(**{**good, **fields}))


@pytest.mark.parametrize(
    ("tokens", "error", "match"),
    [
        ([], ValueError, "step 1 samples 1 tokens, got 0"),
        ([1, 2], ValueError, "step 1 samples 1 tokens, got 2"),
        ([-1], ValueError, "step 1: token -1 at index 0 is not a token id"),
        ([1.5], TypeError, "tokens has dtype float64"),
    ],
)
def test_completions_that_cannot_be_taken_change_nothing(tokens: Any, error: type[Exception], match: str) -> None:
    scheduler = Scheduler(config(32))
    scheduler.add(Request(1, PROMPT, 4), 0)
    step = scheduler.schedule(0)
    assert step is not None
    with pytest.raises(error, match=match):
        scheduler.complete(step.id, tokens, now=0)
    with pytest.raises(ValueError, match="counts has a 2"):
        scheduler.complete(step.id, [1], [2], now=0)
    assert scheduler.complete(step.id, [1], now=0).token_ids.tolist() == [1]
    scheduler.check()


def test_pools_name_the_block() -> None:
    pool = BlockPool(8, 16)
    with pytest.raises(ValueError, match=r"block 8 is not in 0\.\.8"):
        pool.release([8])
    with pytest.raises(ValueError, match=r"block 8 is not in 0\.\.8"):
        pool.ref_count(8)
    with pytest.raises(ValueError, match="block 3 has 0 owners"):
        pool.register([3], text(1, 16))
    with pytest.raises(ValueError, match="num_blocks = 0"):
        BlockPool(0, 16)


def test_workers_and_clusters_refuse_what_is_no_message() -> None:
    worker = Worker(config(32), worker_id=1, incarnation=1, role="both")
    with pytest.raises(ValueError, match="message"):
        worker.handle(b"rubbish", 0)
    with pytest.raises(TypeError, match="expected bytes, TransferDone or PeerDead"):
        worker.handle(7, 0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match='role = "neither"'):
        Worker(config(32), worker_id=1, incarnation=1, role="neither")
    cluster = Cluster(ClusterConfig(1))
    with pytest.raises(ValueError, match="message"):
        cluster.handle(b"", 0)
    worker.check()
    cluster.check()
