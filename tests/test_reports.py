"""Reports: goals, the file's form, the table."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from pdsched.reports import Row, Value, machine, markdown, meets, write_report


@pytest.mark.parametrize(
    ("value", "goal", "met"),
    [
        (1.5, "<= 1.5", True),
        (1.5, "< 1.5", False),
        (10, ">= 10", True),
        (9.99, ">=10", False),
        (0.2, "> 0.1", True),
        (0, "== 0", True),
        (True, "== 1", True),
        (3.0, None, None),
        ("fast", None, None),
        (None, "<= 1", False),
        (math.nan, "<= 1", False),
        (math.nan, "> 1", False),
    ],
)
def test_goals_are_comparisons(value: Value, goal: str | None, met: bool | None) -> None:
    assert meets(value, goal) is met


@pytest.mark.parametrize("goal", ["", "1.5", "<= fast", "!= 1", "=< 1"])
def test_other_goals_are_refused_by_name(goal: str) -> None:
    with pytest.raises(ValueError, match="goal must be a comparison") as error:
        meets(1.0, goal)
    assert repr(goal) in str(error.value)


def test_text_is_not_compared_with_a_number() -> None:
    with pytest.raises(TypeError, match="got 'fast'"):
        meets("fast", "<= 1")


def test_report_has_machine_command_and_rows(tmp_path: Path) -> None:
    rows = [Row("ITL p99", 1.25, "x", "<= 1.5"), Row("TTFT p50", 0.3, "s"), Row("lost", math.nan, "s", "< 1")]
    path = write_report("demo", rows, ["pdsched", "demo"], folder=tmp_path / "reports")

    assert path == tmp_path / "reports" / "demo.json"
    report = json.loads(path.read_text())
    assert set(report) == {"machine", "command", "rows"}
    assert report["command"] == "pdsched demo"
    assert report["rows"] == [
        {"figure": "ITL p99", "value": 1.25, "unit": "x", "goal": "<= 1.5", "met": True},
        {"figure": "TTFT p50", "value": 0.3, "unit": "s", "goal": None, "met": None},
        {"figure": "lost", "value": None, "unit": "s", "goal": "< 1", "met": False},
    ]


def test_raw_data_lies_beside_the_report(tmp_path: Path) -> None:
    raw = {"gaps": {"a": np.arange(3), "mean": np.float64(1.5)}, "log": [1, 2]}
    write_report("demo", [], "pdsched demo", {"cpu": "none"}, raw, folder=tmp_path)

    assert json.loads((tmp_path / "raw" / "demo-gaps.json").read_text()) == {"a": [0, 1, 2], "mean": 1.5}
    assert json.loads((tmp_path / "raw" / "demo-log.json").read_text()) == [1, 2]
    assert json.loads((tmp_path / "demo.json").read_text())["machine"] == {"cpu": "none"}
    assert not list(tmp_path.rglob("*.tmp"))


def test_what_is_not_data_is_refused_and_leaves_the_old_report(tmp_path: Path) -> None:
    write_report("demo", [], "first", folder=tmp_path)
    with pytest.raises(TypeError, match="got object"):
        write_report("demo", [], "second", {"cpu": object()}, folder=tmp_path)
    assert json.loads((tmp_path / "demo.json").read_text())["command"] == "first"


def test_machine_names_what_decides_about_speed() -> None:
    here = machine()
    assert here["cpu"]
    assert here["cores"] >= 1
    assert here["memory_gb"] > 0
    json.dumps(here)


def test_table_is_padded_and_shows_what_is_missed() -> None:
    table = markdown([Row("step", 0.04321987, "µs", "< 0.1"), Row("ratio", 12345.6, "x", "<= 2"), Row("view", None)])
    assert table.splitlines() == [
        "| figure |   value | unit | goal  | met |",
        "|--------|--------:|------|-------|-----|",
        "| step   | 0.04322 | µs   | < 0.1 | yes |",
        "| ratio  |  12,346 | x    | <= 2  | NO  |",
        "| view   |       - |      |       |     |",
    ]
