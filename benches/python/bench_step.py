"""What a scheduling decision costs from Python: one steady decode step, arrays and table differences included.

    make bench

Contexts of about 1,000 tokens whose lengths differ, so that each step a sixteenth of the requests crosses a block
boundary (block size 16) and registers a block, prefix caching on. Outputs and blocks taken are checked.
"""

from __future__ import annotations

import gc
import statistics
import time

import numpy as np

from pdsched import Request, Scheduler, SchedulerConfig
from pdsched.reports import Row, markdown, write_report

BLOCK_SIZE = 16
CONTEXT = 1016
STEPS = 400
REPETITIONS = 5
GOAL_NS = 100


def ready(num_requests: int) -> Scheduler:
    """A scheduler with that many requests decoding, and room for all they get."""
    longest = CONTEXT + BLOCK_SIZE + STEPS
    config = SchedulerConfig(
        num_blocks=num_requests * (longest // BLOCK_SIZE + 2),
        block_size=BLOCK_SIZE,
        max_num_seqs=num_requests,
        max_num_batched_tokens=max(num_requests, 1 << 20),
    )
    scheduler = Scheduler(config)
    rng = np.random.default_rng(0)
    for index in range(num_requests):
        prompt = rng.integers(0, 50_000, CONTEXT + index % BLOCK_SIZE)
        scheduler.add(Request(index, prompt, 1 << 20), now=0)
    step = scheduler.schedule(0)
    assert step is not None
    scheduler.complete(step.id, np.ones(step.num_samples, dtype=np.int64), now=0)
    return scheduler


def measure(num_requests: int) -> list[float]:
    """Process CPU nanoseconds per step, one figure per repetition."""
    figures = []
    for _ in range(REPETITIONS):
        scheduler = ready(num_requests)
        tokens = np.random.default_rng(1).integers(0, 50_000, num_requests)
        gc.collect()
        gc.disable()
        diffs = 0
        start = time.process_time_ns()
        for _ in range(STEPS):
            step = scheduler.schedule(0)
            assert step is not None
            arrays = (step.token_ids, step.positions, step.slot_mapping, step.query_start_loc, step.seq_lens)
            more = (step.logits_indices, step.rows, step.sampled_rows, step.gather)
            diffs += len(step.table_diff[0])
            out = scheduler.complete(step.id, tokens, now=0)
            new = out.token_ids
        figures.append((time.process_time_ns() - start) / STEPS)
        gc.enable()
        assert len(arrays[0]) == len(more[0]) == len(new) == num_requests
        assert new.tolist() == tokens.tolist(), "outputs are not what was sampled"
        assert diffs == num_requests * STEPS // BLOCK_SIZE, f"{diffs} blocks taken"
        scheduler.check()
    return figures


def main() -> None:
    """Measures, prints and writes ``reports/step.json``."""
    rows, raw = [], {}
    for num_requests in (64, 256, 1024):
        figures = measure(num_requests)
        raw[str(num_requests)] = figures
        per_step = statistics.median(figures)
        per_request = per_step / num_requests
        rows.append(Row(f"{num_requests} decodes, per step", round(per_step / 1e3, 2), "us"))
        rows.append(Row(f"{num_requests} decodes, per request", round(per_request, 1), "ns", f"<= {GOAL_NS}"))
    path = write_report("step", rows, "make bench", raw=raw)
    print(markdown(rows))
    print(f"\nmedians of {REPETITIONS} runs of {STEPS} steps, CPU time, block size {BLOCK_SIZE}; written to {path}")


if __name__ == "__main__":
    main()
