"""Reports: what a verb measured, on what machine, against which goal.

``reports/NAME.json`` is one object with ``machine``, ``command`` and ``rows``; a row has ``figure``, ``value``,
``unit``, ``goal`` and ``met``, which is true, false, or null where there is no goal. Whether a goal is met is decided
here and nowhere else. What the figures were computed from goes to ``reports/raw/``.
"""

import json
import math
import operator
import os
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Value = float | int | bool | str | None

#: Instruction sets that decide how fast a CPU multiplies matrices.
FLAGS = ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_tile", "asimd", "sve")

# Two characters before one: "<= 1" must not be read as "<" and "= 1".
_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
    "<": operator.lt,
    ">": operator.gt,
}


def meets(value: Value, goal: str | None) -> bool | None:
    """Whether `value` meets `goal`, a comparison such as ``"<= 1.5"``; None where there is no goal.

    A value that could not be measured (None or NaN) meets nothing. Raises ValueError for a goal that is no comparison
    with a number, TypeError for a value that cannot be compared with one.
    """
    if goal is None:
        return None
    sign = next((sign for sign in _COMPARISONS if goal.startswith(sign)), None)
    try:
        if sign is None:
            raise ValueError
        bound = float(goal.removeprefix(sign))
    except ValueError:
        raise ValueError(f'goal must be a comparison with a number such as "<= 1.5", got {goal!r}') from None
    if value is None:
        return False
    if isinstance(value, str):
        raise TypeError(f"value must be a number to be compared with {goal!r}, got {value!r}")
    return _COMPARISONS[sign](value, bound)


@dataclass(frozen=True, slots=True)
class Row:
    """One figure of a report."""

    figure: str
    value: Value
    unit: str = ""
    goal: str | None = None

    @property
    def met(self) -> bool | None:
        """Whether the goal is met; None where there is none."""
        return meets(self.value, self.goal)

    def as_dict(self) -> dict[str, Value]:
        """The row as it stands in the report."""
        value = None if isinstance(self.value, float) and not math.isfinite(self.value) else self.value
        return {"figure": self.figure, "value": value, "unit": self.unit, "goal": self.goal, "met": self.met}


def machine() -> dict[str, Any]:
    """The machine as far as it decides about a figure: CPU, cores this process may use, memory, versions, load."""
    cpu = _proc("cpuinfo")
    flags = set(cpu.get("flags", cpu.get("Features", "")).split())
    total = _proc("meminfo").get("MemTotal", "0 kB").split()[0]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "cpu": cpu.get("model name") or platform.processor() or platform.machine(),
        "cores": cores,
        "flags": [flag for flag in FLAGS if flag in flags],
        "memory_gb": round(int(total) / 2**20, 1),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "load_1min": round(os.getloadavg()[0], 2),
    }


_this_machine = machine  # for write_report, which has an argument of that name


def _proc(name: str) -> dict[str, str]:
    """``key: value`` lines of a file under /proc, the first of a key; empty where there is no /proc."""
    pairs: dict[str, str] = {}
    try:
        text = Path("/proc", name).read_text()
    except OSError:
        return pairs
    for line in text.splitlines():
        key, found, value = line.partition(":")
        if found:
            pairs.setdefault(key.strip(), value.strip())
    return pairs


def write_report(
    name: str,
    rows: Iterable[Row],
    command: str | Sequence[str],
    machine: Mapping[str, Any] | None = None,
    raw: Mapping[str, Any] | None = None,
    *,
    folder: Path | str = "reports",
) -> Path:
    """Write ``folder/NAME.json`` and return its path.

    `command` is what somebody types to get the figures again. `machine` defaults to this one. Each entry of `raw`, JSON
    or NumPy arrays, goes to ``folder/raw/NAME-KEY.json``. Files appear whole or not at all.
    """
    folder = Path(folder)
    for key, data in (raw or {}).items():
        _write(folder / "raw" / f"{name}-{key}.json", data, indent=None)
    report = {
        "machine": dict(machine) if machine is not None else _this_machine(),
        "command": command if isinstance(command, str) else " ".join(command),
        "rows": [row.as_dict() for row in rows],
    }
    return _write(folder / f"{name}.json", report, indent=2)


def _write(path: Path, data: Any, indent: int | None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(data, indent=indent, ensure_ascii=False, default=_plain)
    partial = path.with_suffix(f".{os.getpid()}.tmp")
    partial.write_text(text + "\n", encoding="utf-8")
    partial.replace(path)
    return path


def _plain(data: Any) -> Any:
    """NumPy arrays and scalars as lists and numbers, without importing NumPy."""
    if hasattr(data, "tolist"):
        return data.tolist()
    raise TypeError(f"a report holds JSON and NumPy data, got {type(data).__name__}")


def markdown(rows: Iterable[Row]) -> str:
    """The rows as a Markdown table, columns padded so that it reads well in a terminal too."""
    lines = [("figure", "value", "unit", "goal", "met")]
    verdict = {True: "yes", False: "NO", None: ""}
    lines += [(row.figure, _short(row.value), row.unit, row.goal or "", verdict[row.met]) for row in rows]
    widths = [max(len(line[i]) for line in lines) for i in range(5)]
    right = (False, True, False, False, False)

    def show(line: Sequence[str]) -> str:
        cells = (c.rjust(w) if r else c.ljust(w) for c, w, r in zip(line, widths, right, strict=True))
        return f"| {' | '.join(cells)} |"

    rule = "|".join("-" * (w + 1) + (":" if r else "-") for w, r in zip(widths, right, strict=True))
    return "\n".join([show(lines[0]), f"|{rule}|", *map(show, lines[1:])])


def _short(value: Value) -> str:
    """Four significant digits, which is more than a shared machine can vouch for."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return str(value)
