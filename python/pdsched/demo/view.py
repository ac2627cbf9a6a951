"""The live view: a table in a terminal, plain lines without one; at most two refreshes a second, so it is cheap."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable

from rich.console import Console
from rich.live import Live
from rich.text import Text

from pdsched.demo.snapshot import Names, RequestRow, Snapshot, TransferRow, WorkerRow, take
from pdsched.engine import Engine

REFRESH_SECONDS = 0.5
PLAIN_SECONDS = 2.0
MAX_REQUESTS = 16
MAX_TRANSFERS = 6
_BAR = 20


@contextlib.asynccontextmanager
async def watch(console: Console, engine: Engine, title: str, names: Names) -> AsyncIterator[None]:
    """Show what `engine` does while the block runs; leaves the last picture standing."""
    since = time.monotonic_ns()

    def snapshot() -> Snapshot:
        return take(engine, title, since, names)

    if console.is_terminal:
        with Live(console=console, auto_refresh=False, transient=False) as live:
            async with _repeat(REFRESH_SECONDS, lambda: live.update(render(snapshot(), console.width), refresh=True)):
                yield
    else:
        console.print(title)
        async with _repeat(PLAIN_SECONDS, lambda: console.print(plain(snapshot()), highlight=False, soft_wrap=True)):
            yield


@contextlib.asynccontextmanager
async def _repeat(seconds: float, show: Callable[[], None]) -> AsyncIterator[None]:
    """Call `show` again and again while the block runs, and once at its end."""

    async def loop() -> None:
        while True:
            await asyncio.sleep(seconds)
            show()

    task = asyncio.create_task(loop(), name="pdsched-view")
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    show()


def render(snapshot: Snapshot, width: int = 120) -> Text:
    """The whole view, cut to `width` columns.

    Lines are laid out here instead of by `rich.table`, which would take ten times the CPU for each refresh.
    """
    lines = [f"{snapshot.title}  ({snapshot.seconds:.0f} s)", "", *_workers(snapshot.workers), ""]
    lines += _requests(snapshot.requests, width)
    if snapshot.transfers:
        lines += ["", *_transfers(snapshot.transfers)]
    return Text("\n".join(line[:width] for line in lines), no_wrap=True, overflow="crop")


def plain(snapshot: Snapshot) -> str:
    """One line for people and logs without a terminal."""
    active = [row for row in snapshot.requests if row.active]
    pools = "  ".join(
        f"{row.name} ({row.role}) {_percent(row.used_tokens / row.capacity_tokens)}" for row in snapshot.workers
    )
    itls = [row.itl_s for row in active if row.itl_s is not None]
    line = f"  {snapshot.seconds:6.1f} s  {len(active)} of {len(snapshot.requests)} requests running"
    line += f"  {sum(row.tokens for row in snapshot.requests)} tokens"
    line += f"  mean ITL {1e3 * sum(itls) / len(itls):.0f} ms" if itls else ""
    line += f"  pools: {pools}" if pools else ""
    if snapshot.transfers:
        last = snapshot.transfers[-1]
        line += f"  last transfer {last.route} {last.megabytes:.0f} MB"
        line += f", {last.gigabytes_per_s:.1f} GB/s" if last.gigabytes_per_s is not None else ""
        line += f", {_percent(last.there_before_end)} there before the prefill ended" if last.there_before_end else ""
    return line


def _workers(rows: list[WorkerRow]) -> list[str]:
    lines = [f"{'worker':<10}{'role':<9}{'KV pool':<44}{'decoding':>9}{'last step':>12}"]
    for row in rows:
        share = min(1.0, row.used_tokens / row.capacity_tokens)
        bar = "█" * round(share * _BAR) + "░" * (_BAR - round(share * _BAR))
        pool = f"{bar} {row.used_tokens}/{row.capacity_tokens} tokens"
        step = "" if row.step_ms is None else f"{row.step_ms:.0f} ms"
        lines.append(f"{row.name:<10}{row.role:<9}{pool:<44}{row.decoding:>9}{step:>12}")
    return lines


def _requests(rows: list[RequestRow], width: int) -> list[str]:
    head = f"{'request':<17}{'state':<13}{'worker':<7}{'prompt':>7}{'tokens':>7}{'TTFT s':>8}{'ITL ms':>8}  "
    shown = sorted(rows, key=lambda row: not row.active)[:MAX_REQUESTS]
    lines = [head + "answer"]
    for row in shown:
        ttft = "" if row.ttft_s is None else f"{row.ttft_s:.2f}"
        itl = "" if row.itl_s is None else f"{row.itl_s * 1e3:.0f}"
        line = f"{row.name[:16]:<17}{row.state:<13}{row.worker:<7}"
        line += f"{row.prompt_tokens:>7}{row.tokens:>7}{ttft:>8}{itl:>8}  "
        lines.append(line + row.text[-max(1, width - len(line)) :])
    if len(rows) > len(shown):
        lines.append(f"… and {len(rows) - len(shown)} more")
    return lines


def _transfers(rows: list[TransferRow]) -> list[str]:
    lines = [f"{'KV transfer':<13}{'tokens':>7}{'MB':>7}{'GB/s':>7}   there when the prefill ended"]
    for row in rows[-MAX_TRANSFERS:]:
        speed = "" if row.gigabytes_per_s is None else f"{row.gigabytes_per_s:.1f}"
        share = _percent(row.there_before_end)
        lines.append(f"{row.route:<13}{row.tokens:>7}{row.megabytes:>7.0f}{speed:>7}   {share}")
    return lines


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.0f} %"
