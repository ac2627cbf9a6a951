"""Processes: clear errors when they do not start, none left when the engine ends, however it ends."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pdsched.engine import Engine, EngineConfig, WorkerSpec, WorkerStartError
from pdsched.model.info import ModelError

PAIR = [WorkerSpec("prefill", chunk_size=64), WorkerSpec("decode")]


async def _start(config: EngineConfig) -> None:
    async with Engine(config):
        pass


def _children() -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()]


def test_an_unknown_model_folder_is_named() -> None:
    with pytest.raises(ModelError, match="/no/such/folder"):
        Engine(EngineConfig("/no/such/folder", PAIR))


def test_a_worker_that_cannot_start_says_why(model: Path) -> None:
    before = _children(), sorted(os.listdir("/proc/self/fd"))
    with pytest.raises(WorkerStartError, match=r"worker 2 \(decode\) did not start: ValueError: core must be one of"):
        asyncio.run(_start(EngineConfig(model, [PAIR[0], WorkerSpec("decode", core=9999)])))
    assert (_children(), sorted(os.listdir("/proc/self/fd"))) == before


def test_a_worker_that_dies_at_start_is_reported(model: Path) -> None:
    async def work() -> None:
        engine = Engine(EngineConfig(model, PAIR))
        starting = asyncio.create_task(engine.__aenter__())
        while len(_children()) < 2:
            await asyncio.sleep(0.01)
        os.kill(max(_children()), signal.SIGKILL)
        with pytest.raises(WorkerStartError, match="did not start: ended by signal SIGKILL"):
            await starting

    asyncio.run(work())
    assert _children() == []


def test_a_bad_scheduler_argument_is_reported(model: Path) -> None:
    specs = [PAIR[0], WorkerSpec("decode", scheduler={"hash_bits": 99})]
    with pytest.raises(WorkerStartError, match="99"):
        asyncio.run(_start(EngineConfig(model, specs)))


def test_more_memory_than_there_is_is_refused_before_anything_starts(model: Path) -> None:
    with pytest.raises(WorkerStartError, match=r"worker 1: KV pool wants \d+ bytes of shared memory"):
        asyncio.run(_start(EngineConfig(model, PAIR, kv_tokens=1 << 40)))


def test_workers_end_with_a_killed_engine(model: Path, tmp_path: Path) -> None:
    """kill -9 of the engine's process: nobody can clean up, and nothing stays."""
    script = tmp_path / "run.py"
    script.write_text(
        "import asyncio, sys\n"
        "from pdsched.engine import Engine, EngineConfig, WorkerSpec\n"
        "async def main():\n"
        "    async with Engine(EngineConfig(sys.argv[1], [WorkerSpec('prefill'), WorkerSpec('decode')])) as engine:\n"
        "        print(engine.pid(1), engine.pid(2), flush=True)\n"
        "        await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    process = subprocess.Popen([sys.executable, str(script), str(model)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    pids = [int(pid) for pid in process.stdout.readline().split()]
    assert len(pids) == 2
    process.kill()
    process.wait()
    process.stdout.close()
    deadline = time.monotonic() + 5
    while any(_alive(pid) for pid in pids):
        assert time.monotonic() < deadline, "orphans"
        time.sleep(0.05)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
