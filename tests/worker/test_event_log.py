"""What a log took survives the process, and two runs never mix."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pdsched.worker.event_log import cluster_log, worker_log


def test_appends_and_refuses_a_second_run(tmp_path: Path) -> None:
    log = worker_log(str(tmp_path), 3, 5)
    log.write(b"ab")
    log.write(b"")
    log.write(b"cd")
    log.close()
    log.close()
    assert (tmp_path / "worker-3-5.log").read_bytes() == b"abcd"
    with pytest.raises(FileExistsError):
        worker_log(str(tmp_path), 3, 5)
    cluster_log(str(tmp_path)).close()
    assert (tmp_path / "cluster.log").exists()


def test_survives_a_kill(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pdsched.worker.event_log import cluster_log;"
        "cluster_log(sys.argv[1]).write(b'kept'); print('done', flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"done\n"
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert (tmp_path / "cluster.log").read_bytes() == b"kept"
