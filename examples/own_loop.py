"""The scheduler inside somebody's own loop, without torch: a stand-in for a model reads and writes the step's arrays.

python examples/own_loop.py
"""

from __future__ import annotations

from time import monotonic_ns

from pdsched import Request, Scheduler, SchedulerConfig
from pdsched.testing.ghost import GhostKV, GhostRunner


def main() -> None:
    """Serves three prompts that share a prefix, and prints what came of each."""
    config = SchedulerConfig(num_blocks=64, block_size=16, max_num_seqs=8, max_num_batched_tokens=64, chunk_size=32)
    scheduler = Scheduler(config)
    # In your engine: the KV tensor, and a model with paged attention. Here: slots that remember (token, position).
    my_model = GhostRunner(GhostKV(64, 16), scheduler.num_rows, scheduler.max_blocks_per_row)

    system_prompt = list(range(40))
    for request_id in (1, 2, 3):
        request = Request(request_id, [*system_prompt, request_id], max_tokens=8)
        scheduler.add(request, now=monotonic_ns())

    outputs: dict[int, list[int]] = {}
    while scheduler.has_unfinished():
        step = scheduler.schedule(monotonic_ns())
        if step is None:
            raise RuntimeError("nothing to plan, and nothing that could change it")
        sampled = my_model.run(step)
        out = scheduler.complete(step.id, sampled, now=monotonic_ns())
        for request_id, token in zip(out.request_ids.tolist(), out.token_ids.tolist(), strict=True):
            outputs.setdefault(request_id, []).append(token)
        for done in out.finished:
            cached = done.timing.num_cached_tokens
            print(f"request {done.id}: {outputs[done.id]} ({done.reason}, {cached} prompt tokens cached)")


if __name__ == "__main__":
    main()
