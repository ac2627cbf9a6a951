"""The whole demo: answers first, then the three set-ups on the same arrivals, then table, picture and report."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from pdsched.demo.answers import answer
from pdsched.demo.experiment import Measurement, idle, measure, measure_decode_only
from pdsched.demo.findings import BASELINE_OF, COMPARED, figures, ratio_to_baseline, raw
from pdsched.demo.picture import Panel, draw
from pdsched.demo.scenario import (
    FULL_RUN_LONGS,
    MIN_LONG,
    SHORT_RUN_LONGS,
    Scenario,
    SetUp,
    kv_tokens,
    make_scenario,
    plan_longs,
    set_ups,
)
from pdsched.demo.snapshot import Names, TransferRow, transfer_row
from pdsched.demo.view import watch
from pdsched.engine import Engine, EngineConfig
from pdsched.engine.stats import percentile
from pdsched.reports import Row, machine, markdown, write_report


async def run_demo(console: Console, model: str, *, short: bool, folder: Path, command: str) -> list[Row]:
    """Run everything and write `demo.png`, `demo.json` and raw data under `folder`; returns the figures."""
    since = time.monotonic()
    wanted = SHORT_RUN_LONGS if short else FULL_RUN_LONGS
    setups = set_ups(two_cores(console), longest=2100)
    config = EngineConfig(model, setups[-1].specs, kv_tokens=kv_tokens(wanted))
    console.print(f"Starting two worker processes with {config.model}, {config.kv_tokens} tokens of KV each …")
    async with Engine(config) as engine:
        console.print(f"Ready after {time.monotonic() - since:.1f} s.")
        await answer(console, engine, short)
        rate = prefill_rate(engine)
        scenario = make_scenario(engine.tokenizer, wanted, rate)
        scenario = _shortened(console, engine, scenario, short, rate)
        measured = await _measure_all(console, engine, setups, scenario)
        transfers = _transfers(engine, measured["c"])
    console.print(_table(setups, measured))
    rows = figures(measured, transfers, time.monotonic() - since, short)
    panels = [_panel(setup, measured) for setup in setups]
    where = f"{engine.info.name} on {machine()['cpu']}, one core per worker"
    where += f"; long prompts (at least {MIN_LONG} tokens): {len(scenario.longs)}"
    picture = draw(panels, folder / "demo.png", where)
    report = write_report("demo", rows, command, raw=raw(measured), folder=folder)
    numbers = [row for row in rows if not isinstance(row.value, str)]
    console.print(markdown(numbers), markup=False, highlight=False, soft_wrap=True)
    console.print("\n".join(f"{what}: {text}" for what, text in COMPARED.items()), markup=False, highlight=False)
    console.print(f"\nWritten: {picture} and {report}", highlight=False)
    return rows


def two_cores(console: Console) -> tuple[int | None, int | None]:
    """A core for each worker."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        console.print("Only one core: both workers share it, so the set-ups cannot differ as they should.")
        return cores[0], cores[0]
    return cores[0], cores[1]


def prefill_rate(engine: Engine) -> float:
    """Prompt tokens per second that the prefill worker has shown so far."""
    tokens, ns = 0, 0
    for (worker, _), figures_of_worker in engine.monitor.workers.items():
        if worker == 1:
            for step in figures_of_worker.steps:
                tokens += step.num_tokens
                ns += step.end_ns - step.start_ns
    return tokens / (ns / 1e9)


def _shortened(console: Console, engine: Engine, scenario: Scenario, short: bool, rate: float) -> Scenario:
    """The scenario with as many long prompts as the time allows on this machine."""
    wanted = len(scenario.longs)
    fitting = plan_longs(short, scenario.prefill_s)
    console.print(f"This machine prefills {rate:.0f} tokens/s on one core: {scenario.prefill_s:.1f} s per long prompt.")
    if fitting >= wanted:
        return scenario
    console.print(f"[bold]Too slow for {wanted} long prompts in the time of this run: {fitting} are used.[/bold]")
    return make_scenario(engine.tokenizer, fitting, rate)


async def _measure_all(
    console: Console, engine: Engine, setups: list[SetUp], scenario: Scenario
) -> dict[str, Measurement]:
    measured: dict[str, Measurement] = {}
    for setup in setups:
        await engine.reconfigure(setup.specs)
        names = Names()
        async with watch(console, engine, f"({setup.key}) {setup.name}", names):
            measured[setup.key] = await measure(engine, setup.key, scenario, names)
        await idle(engine)
        baseline = BASELINE_OF[setup.key]
        if setup.key == "a":
            continue  # shares its baseline with (b), which has the same streams and batch sizes
        async with watch(console, engine, f"Baseline of ({setup.key}): the same streams without any prefill", names):
            if setup.key == "b":
                measured[baseline] = await measure_decode_only(engine, baseline, scenario, names)
            else:
                length = measured[setup.key].seconds
                measured[baseline] = await measure(engine, baseline, scenario, names, at_least_s=length)
    return measured


def _transfers(engine: Engine, run: Measurement) -> list[TransferRow]:
    """The long prompts' KV transfers within a run."""
    return [
        transfer_row(f"{source[0]}>{target[0]}", record)
        for (source, target, _), record in engine.monitor.transfers.items()
        if run.start_ns <= record.started_ns <= run.end_ns and record.num_tokens >= MIN_LONG
    ]


def _table(setups: list[SetUp], measured: Mapping[str, Measurement]) -> Table:
    """At most 80 columns."""
    table = Table(
        title="The same arrivals on the same two cores", title_justify="left", box=SIMPLE_HEAD, pad_edge=False
    )
    table.add_column("set-up", no_wrap=True)
    for column in ("TTFT p50/p99 s", "ITL p50/p99/max ms", "p99/base", "tok/s"):
        table.add_column(column, justify="right", no_wrap=True)
    names = {setup.key: f"({setup.key}) {setup.label}" for setup in setups}
    for key, run in measured.items():
        gaps = run.gaps_s() * 1e3
        ttfts = [stats.ttft_ns / 1e9 for stats in run.longs if stats.ttft_ns is not None]
        base = BASELINE_OF.get(key)
        of = ", ".join(f"({other})" for other, its_base in BASELINE_OF.items() if its_base == key)
        table.add_row(
            names.get(key, f"no prefill: {of}"),
            "/".join(f"{percentile(ttfts, q):.1f}" for q in (50, 99)) if base else "",
            f"{percentile(gaps, 50):.0f}/{percentile(gaps, 99):.0f}/{gaps.max():.0f}",
            f"{ratio_to_baseline(run, measured[base]):.2f}x" if base else "",
            f"{run.tokens_per_s():.1f}",
        )
    table.caption = "TTFT of the long prompts; ITL of the streams while they are prefilled"
    return table


def _panel(setup: SetUp, measured: Mapping[str, Measurement]) -> Panel:
    run = measured[setup.key]
    baseline = percentile(measured[BASELINE_OF[setup.key]].gaps_s(), 50)
    times, gaps = run.gap_points()
    return Panel(f"({setup.key}) {setup.name}", times, gaps, run.spans_s(), baseline)
