"""From token times to figures: windows, ratios, goals, view and picture, on made-up runs."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from pdsched.demo.experiment import Measurement
from pdsched.demo.findings import COMPARED, figures, ratio_to_baseline, raw
from pdsched.demo.picture import Panel, draw
from pdsched.demo.scenario import FULL_RUN_LONGS, SHORT_RUN_LONGS, kv_tokens, plan_longs, set_ups
from pdsched.demo.snapshot import Names, RequestRow, Snapshot, TransferRow, WorkerRow, request_row, transfer_row
from pdsched.demo.view import plain, render
from pdsched.engine.stats import RequestStats, percentile
from pdsched.worker.telemetry import TransferRecord

SECOND = 1_000_000_000


def stream(gap_s: float, count: int, stall_s: float = 0.0) -> RequestStats:
    """A stream of tokens `gap_s` apart from time 0 on, with one longer gap in the middle."""
    gaps = np.full(count, gap_s)
    if stall_s:
        gaps[count // 2] = stall_s
    times = np.concatenate([[0.0], np.cumsum(gaps)])
    return RequestStats(1, 10, 0, token_ns=[int(t * SECOND) for t in times])


def run(key: str, streams: list[RequestStats], start_s: float, end_s: float) -> Measurement:
    longs = [RequestStats(9, 1600, int(start_s * SECOND), token_ns=[int(end_s * SECOND)])]
    return Measurement(key, int(start_s * SECOND), int(end_s * SECOND), streams, longs, 1600, 4.0, 0.02)


def test_a_gap_counts_when_any_part_of_it_lies_in_the_window() -> None:
    measured = run("a", [stream(1.0, 10)], 2.5, 5.5)
    assert measured.gaps_s().tolist() == [1.0] * 4  # ending at 3, 4, 5 and 6
    times, gaps = measured.gap_points()
    assert times.tolist() == [0.5, 1.5, 2.5, 3.5]
    assert gaps.tolist() == [1.0] * 4
    assert measured.spans_s() == [(0.0, 3.0)]
    assert measured.tokens_per_s() == pytest.approx(4 / 3)


def test_a_stall_shows_in_the_ratio() -> None:
    stalled = run("a", [stream(0.1, 50, stall_s=5.0) for _ in range(4)], 0.0, 9.0)
    baseline = run("baseline_both", [stream(0.1, 50) for _ in range(4)], 0.0, 5.0)
    assert ratio_to_baseline(stalled, baseline) == pytest.approx(50)
    transfers = [TransferRow("1>2", 1600, 70.0, 4.0, 0.9), TransferRow("1>2", 1700, 78.0, 5.0, 0.7)]
    rows = {row.figure: row for row in figures({"a": stalled, "baseline_both": baseline}, transfers, 100.0, True)}
    assert rows["a: ITL p99 over that of baseline_both"].met is True
    assert rows["c: KV of long prompts there when the prefill ended, lowest"].met is False
    assert rows["a: engine and view"].met is True
    assert rows["whole demo"].met is True
    assert all(rows[f"what is compared: {what}"].value == text for what, text in COMPARED.items())
    content = raw({"a": stalled})
    assert len(content["runs"]["a"]["streams"]) == 4


def test_percentile_of_nothing_is_not_a_number() -> None:
    assert np.isnan(percentile([], 99))


def test_a_slow_machine_gets_fewer_long_prompts() -> None:
    assert plan_longs(short=True, prefill_s=5.0) == SHORT_RUN_LONGS
    assert 1 <= plan_longs(short=True, prefill_s=12.0) < SHORT_RUN_LONGS
    assert plan_longs(short=True, prefill_s=500.0) == 1
    assert plan_longs(short=False, prefill_s=6.0) == FULL_RUN_LONGS
    assert kv_tokens(3) < kv_tokens(8)


def test_set_ups_differ_only_in_roles_and_chunks() -> None:
    a, b, c = set_ups((0, 1), 2000)
    assert [[spec.role for spec in setup.specs] for setup in (a, b, c)] == [
        ["both"] * 2,
        ["both"] * 2,
        ["prefill", "decode"],
    ]
    assert [spec.core for setup in (a, b, c) for spec in setup.specs] == [0, 1] * 3
    assert a.specs[0].chunk_size is None
    assert (a.specs[0].max_num_batched_tokens or 0) > 2000


def test_view_in_a_terminal_and_without_one() -> None:
    requests = [
        RequestRow(f"alice-{i}", "decoding", "1>2", 1700, 33, 2.2, 0.134, "a quick answer", active=i > 3)
        for i in range(20)
    ]
    transfers = [TransferRow("1>2", 1700, 78.3, 4.4, 0.86)]
    workers = [
        WorkerRow("worker 1", "prefill", 50, 1000, 0, None),
        WorkerRow("worker 2", "decode", 900, 1000, 12, 133.0),
    ]
    snapshot = Snapshot("A title", 12.3, requests, transfers, workers)
    console = Console(width=100, file=io.StringIO(), record=True)
    console.print(render(snapshot, 100))
    text = console.export_text()
    for part in ("A title", "900/1000", "alice-19", "… and 4 more", "86 %", "133 ms", "2.20"):
        assert part in text
    assert max(len(line) for line in text.splitlines()) <= 100
    line = plain(snapshot)
    assert "16 of 20 requests running" in line
    assert "86 % there before the prefill ended" in line
    assert plain(Snapshot("", 0.0, [], [], []))


def test_rows_of_a_snapshot() -> None:
    names = Names()
    names.names[1], names.texts[1] = "capital", "Paris\nis"
    stats = RequestStats(1, 44, 0, token_ns=[2 * SECOND, 3 * SECOND], state="decoding", prefill=1, decode=2)
    row = request_row(stats, names)
    assert (row.name, row.worker, row.tokens, row.ttft_s, row.itl_s, row.text) == (
        "capital",
        "1>2",
        2,
        2.0,
        1.0,
        "Paris is",
    )
    record = TransferRecord(5, 2, 1, 0, num_tokens=10, chunks=2, done_chunks=1, num_bytes=100, copy_seconds=1e-6)
    assert transfer_row("1>2", record).there_before_end is None
    record.done_chunks, record.bytes_before_last = 2, 80
    assert transfer_row("1>2", record).there_before_end == 0.8


def test_the_picture_is_written(tmp_path: Path) -> None:
    times = np.linspace(0, 10, 50)
    panels = [Panel(f"({key})", times, np.full(50, 0.1), [(0.0, 5.0)], 0.1) for key in "abc"]
    path = draw(panels, tmp_path / "new" / "demo.png", "here")
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
