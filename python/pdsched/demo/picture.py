"""The picture: inter-token latency over time, the set-ups side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pdsched.engine.stats import percentile


@dataclass(frozen=True, slots=True)
class Panel:
    """One set-up."""

    title: str
    times_s: npt.NDArray[np.float64]
    """When each gap ended."""
    gaps_s: npt.NDArray[np.float64]
    spans_s: Sequence[tuple[float, float]]
    """Arrival and first token of each long prompt."""
    baseline_p50_s: float
    """Median gap of the same streams without any prefill."""


def draw(panels: Sequence[Panel], path: Path, subtitle: str) -> Path:
    """Write the picture as PNG; all panels share both axes' scales."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import FuncFormatter

    figure, axes = plt.subplots(1, len(panels), figsize=(5.2 * len(panels), 5.0), sharey=True, squeeze=False)
    for axis, panel in zip(axes[0], panels, strict=True):
        for i, (start, end) in enumerate(panel.spans_s):
            label = "long prompt: arrival to first token" if i == 0 else None
            axis.axvspan(start, end, color="tab:orange", alpha=0.13, linewidth=0, label=label)
        axis.scatter(
            panel.times_s, panel.gaps_s * 1e3, s=7, color="tab:blue", alpha=0.55, linewidths=0, label="one gap"
        )
        p99 = percentile(panel.gaps_s, 99) * 1e3
        axis.axhline(p99, color="tab:red", linewidth=1.2, label=f"p99: {_ms(p99)}")
        base = panel.baseline_p50_s * 1e3
        axis.axhline(base, color="black", linewidth=1, linestyle="--", label=f"no prefill anywhere, p50: {_ms(base)}")
        axis.set_yscale("log")
        axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _position: _ms(value)))
        axis.set_title(panel.title, fontsize=11)
        axis.set_xlabel("time since the first long prompt came [s]")
        axis.grid(visible=True, which="major", alpha=0.3)
        axis.legend(loc="upper right", fontsize=8, framealpha=0.9)
    low, high = axes[0][0].get_ylim()
    axes[0][0].set_ylim(low, high * 6)  # room for the legends
    axes[0][0].set_ylabel("gap between two tokens of a stream (log scale)")
    figure.suptitle(f"Inter-token latency while long prompts are prefilled\n{subtitle}", fontsize=12)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return path


def _ms(value: float) -> str:
    """A time in milliseconds as people say it."""
    return f"{value / 1e3:.3g} s" if value >= 1000 else f"{value:.3g} ms"
