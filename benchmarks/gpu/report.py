"""The page with every figure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any


def report(results: dict[str, Any]) -> str:
    """Return the page: every part that was run, as a table; a part that failed says why."""
    environment = results["environment"]
    lines = ["# On a real GPU", "", "| | |", "|---|---|"]
    lines += [f"| {key} | {value} |" for key, value in environment.items()]
    builders: dict[str, Callable[[Any], list[str]]] = {
        "read": _read_lines,
        "kernels": _kernel_lines,
        "recordings": _recording_lines,
        "paired": _paired_lines,
    }
    for name, build in builders.items():
        part = results.get(name)
        if part is None:
            continue
        failed = isinstance(part, dict) and "failed" in part
        lines += ["", *([f"## {name}", "", f"Failed: {part['failed']}"] if failed else build(part))]
    return "\n".join(lines) + "\n"


def _read_lines(part: dict[str, Any]) -> list[str]:
    milliseconds = [f"{part[key] * 1e3:.2f} ms" for key in ("wall_p50_s", "wall_p99_s", "cpu_mean_s")]
    return [
        "## Cost of a reading",
        "",
        f"Source {part['source']}, {part['gpus']} GPU(s), {part['metrics']} metrics, ten readings a second.",
        "",
        "| wall p50 | wall p99 | CPU mean | share of a core |",
        "|---|---|---|---|",
        f"| {milliseconds[0]} | {milliseconds[1]} | {milliseconds[2]} | {part['share_of_core'] * 100:.2f} % |",
    ]


def _kernel_lines(part: dict[str, Any]) -> list[str]:
    rows = [
        f"| {row['kernel']} | {row['metric']} | {_figure(row['known'])} | {_figure(row['measured'])} "
        f"| {_figure(row['measured'] / row['known'] if row['known'] else math.nan)} | {row['what']} |"
        for row in part["rows"]
    ]
    head = ["| kernel | metric | known | measured | measured / known | known how |", "|---|---|---|---|---|---|"]
    lag = f"`sm_active` follows the device by {_figure(part['lag_s'])} s (best correlation, steps of 0.02 s)."
    return ["## Agreement with known kernels", "", *head, *rows, "", lag]


def _recording_lines(part: Sequence[dict[str, Any]]) -> list[str]:
    rows = [
        f"| {row['recording']} | {row['duration_s']:.0f} s | {row['ticks']} | {row['metrics']} | {row['epochs']} "
        f"| {'-' if row['period_s'] is None else format(row['period_s'], '.3f') + ' s'} |"
        for row in part
    ]
    text = (
        "`recordings.parquet` holds them, `truth.json` the true times of their epochs; score a detector with "
        "`gpusonde evaluate epochs recordings.parquet truth.json`."
    )
    head = ["| recording | length | ticks | metrics | epochs | mean epoch |", "|---|---|---|---|---|---|"]
    return ["## Recordings", "", text, "", *head, *rows]


def _paired_lines(part: dict[str, Any]) -> list[str]:
    interval = f"{part['low'] * 100:+.2f} to {part['high'] * 100:+.2f} %"
    text = (
        f"{part['network']}, batch {part['batch_size']}, blocks of {part['block_s']:.1f} s, {part['pairs']} pairs: "
        f"with the agent on, a block takes {part['mean'] * 100:+.2f} % (95 % interval {interval})."
    )
    return ["## What the watched job loses", "", text]


def _figure(value: float) -> str:
    return "-" if not math.isfinite(value) else f"{value:.3g}"
