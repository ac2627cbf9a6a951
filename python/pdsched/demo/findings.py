"""From measurements to figures, and what each of them compares."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from pdsched.demo.experiment import Measurement
from pdsched.demo.snapshot import TransferRow
from pdsched.engine.stats import percentile
from pdsched.reports import Row

COMPARED = {
    "gaps": "Inter-token latencies (ITL) of the short streams as the engine sees them, those that lie in the window, "
    "even in part. The window runs from the arrival of the first long prompt to the first token of the last one.",
    "a, b, c": "The same prompts at the same times, on the same two processes and cores; only roles and chunk size "
    "differ. Caches are empty at the start of each.",
    "baseline_both": "For (a) and (b): the same streams, half of them on each worker, and one decoding long prompt per "
    "worker, all prefilled before the window; no prefill within it.",
    "baseline_c": "For (c): the identical run once more in the same processes and roles, same prompts at the same "
    "times and so the same streams and batch sizes, with the KV of every prompt already in both pools: of each "
    "prompt only the last, unshareable block is computed, and nothing but that is transferred.",
}
BASELINE_OF = {"a": "baseline_both", "b": "baseline_both", "c": "baseline_c"}
RATIO_GOALS = {"a": ">= 10", "c": "<= 1.5"}
MIN_GAPS = 500
MAX_ENGINE_CPU_PERCENT = 5


def figures(
    measured: Mapping[str, Measurement], transfers: Iterable[TransferRow], seconds: float, short: bool
) -> list[Row]:
    """Every figure of the report. Goals that need 500 gaps are only set where there are that many."""
    rows: list[Row] = []
    for key, run in measured.items():
        gaps = run.gaps_s()
        rows += [
            Row(f"{key}: gaps", len(gaps), "", f">= {MIN_GAPS}" if not short else None),
            *(Row(f"{key}: ITL p{q}", percentile(gaps, q) * 1e3, "ms") for q in (50, 99)),
            Row(f"{key}: ITL max", float(gaps.max()) * 1e3, "ms"),
            Row(f"{key}: output", run.tokens_per_s(), "tokens/s"),
            Row(f"{key}: prompt tokens computed in the window", run.prefill_tokens, "tokens"),
            Row(f"{key}: mean decode batch", run.decode_batch, "requests"),
        ]
        if key in BASELINE_OF:
            rows += [Row(f"{key}: TTFT p{q}, long prompts", _ttft(run, q), "s") for q in (50, 99)]
            cpu = run.engine_cpu * 100
            rows.append(Row(f"{key}: engine and view", cpu, "% of a core", f"<= {MAX_ENGINE_CPU_PERCENT}"))
    for key, base in BASELINE_OF.items():
        if key in measured and base in measured:
            ratio = ratio_to_baseline(measured[key], measured[base])
            rows.append(Row(f"{key}: ITL p99 over that of {base}", ratio, "x", RATIO_GOALS.get(key)))
    shares = [row.there_before_end * 100 for row in transfers if row.there_before_end is not None]
    if shares:
        rows.append(Row("c: KV of long prompts there when the prefill ended, lowest", min(shares), "%", ">= 80"))
        rows.append(Row("c: the same, median", float(np.median(shares)), "%"))
    speeds = [row.gigabytes_per_s for row in transfers if row.gigabytes_per_s is not None]
    if speeds:
        rows.append(Row("c: KV transfer, median", float(np.median(speeds)), "GB/s"))
    rows += [Row(f"what is compared: {what}", text) for what, text in COMPARED.items()]
    rows.append(Row("whole demo", seconds, "s", "<= 120" if short else "<= 600"))
    return rows


def ratio_to_baseline(run: Measurement, baseline: Measurement) -> float:
    """ITL p99 over ITL p99."""
    return percentile(run.gaps_s(), 99) / percentile(baseline.gaps_s(), 99)


def raw(measured: Mapping[str, Measurement]) -> dict[str, Any]:
    """What the figures were computed from."""
    runs = {
        key: {
            "window_ns": [run.start_ns, run.end_ns],
            "streams": [_request(stats) for stats in run.streams],
            "longs": [_request(stats) for stats in run.longs],
        }
        for key, run in measured.items()
    }
    return {"runs": runs}


def _request(stats: Any) -> dict[str, Any]:
    return {
        "prompt_tokens": stats.prompt_tokens,
        "submitted_ns": stats.submitted_ns,
        "token_ns": stats.token_ns,
        "prefill_worker": stats.prefill,
        "decode_worker": stats.decode,
    }


def _ttft(run: Measurement, q: float) -> float:
    return percentile([stats.ttft_ns / 1e9 for stats in run.longs if stats.ttft_ns is not None], q)
