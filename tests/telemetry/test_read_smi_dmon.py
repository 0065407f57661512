"""Logs of nvidia-smi dmon -o DT, and what of nvidia-smi is refused by its name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gpusonde.telemetry import TraceFormatError, read_trace, read_traces

_NAMES = "#Date       Time        gpu    pwr  gtemp  mtemp     sm    mem    enc    dec    jpg   mclk   pclk     fb"
_UNITS = "#YYYYMMDD   HH:MM:SS    Idx      W      C      C      %      %      %      %      %    MHz    MHz     MB"


def _row(second: int, gpu: int = 0, watts: str = "72") -> str:
    start = f" 20251204   01:22:{second:02d}      {gpu}     {watts}"
    return f"{start}     61      -     57     12      0      0      0    405   1350    132"


def _file(folder: Path, lines: list[str], *, csv: bool = False, end: str = "\n") -> Path:
    if csv:
        lines = ["#" + ", ".join(line[1:].split()) if line[0] == "#" else ", ".join(line.split()) for line in lines]
    path = folder / "dmon.txt"
    path.write_text("\n".join(lines) + end, encoding="utf-8")
    return path


@pytest.mark.parametrize("csv", [False, True])
def test_times_and_values_are_read_in_the_units_of_the_catalogue(tmp_path: Path, csv: bool) -> None:
    lines = [_NAMES, _UNITS, _row(31), _row(32), _NAMES, _UNITS, _row(33)]
    trace = read_trace(_file(tmp_path, lines, csv=csv))
    assert trace.time_s.tolist() == [0.0, 1.0, 2.0]
    assert trace.origin_unix_s == 1764811351.0
    values = {name: float(column[0]) for name, column in trace.values.items()}
    assert np.isnan(values.pop("memory_temperature_celsius"))
    assert values == {
        "power_watts": 72.0,
        "gpu_temperature_celsius": 61.0,
        "gpu_utilization": 0.57,
        "memory_utilization": 0.12,
        "encoder_utilization": 0.0,
        "decoder_utilization": 0.0,
        "memory_clock_mhz": 405.0,
        "sm_clock_mhz": 1350.0,
        "framebuffer_used_bytes": 132 * 2.0**20,
    }
    assert any("'jpg'" in warning for warning in trace.warnings)
    assert "UTC" in trace.attributes["time_zone"]


@pytest.mark.parametrize("csv", [False, True])
def test_eight_gpus_become_eight_traces(tmp_path: Path, csv: bool) -> None:
    rows = [_row(second, gpu, str(100 + gpu)) for second in range(10, 14) for gpu in range(8)]
    path = _file(tmp_path, [_NAMES, _UNITS, *rows], csv=csv)
    traces = read_traces(path)
    assert [trace.values["power_watts"].tolist() for trace in traces] == [[100.0 + gpu] * 4 for gpu in range(8)]
    assert read_trace(path, gpu=5).gpu_uuid == "GPU-5"


def test_a_last_row_that_was_cut_is_left_out_with_a_warning(tmp_path: Path) -> None:
    trace = read_trace(_file(tmp_path, [_NAMES, _UNITS, _row(31), _row(32), _row(33)[:-2]], end=""))
    assert len(trace) == 2
    assert "line 5: the last row is incomplete" in trace.warnings[-2]


@pytest.mark.parametrize(
    ("lines", "line", "says"),
    [
        ([_NAMES, _UNITS], None, "no complete row"),
        ([_NAMES, _UNITS, _row(31), "Unable to query", _row(32)], 4, "'Unable to query' is no row"),
        ([_NAMES, _row(31)], 2, "before the two lines of the heading"),
        ([_NAMES, _UNITS.replace(" W ", " V "), _row(31)], 2, "unknown unit 'V'"),
        ([_NAMES, _UNITS, _row(31), _row(31), _row(31), _row(31)], 4, "is the same as"),
        (["#Date Time gpu jpg", "#YYYYMMDD HH:MM:SS Idx %", " 20251204 01:22:31 0 1"], 2, "no column is a metric"),
        (["# gpu    pwr", "# Idx      W", "    0     18"], 1, "has no times; say how far its ticks are apart"),
        (["# gpu        pid  type    sm", "# Idx          #   C/G     %"], 1, "pmon, which tells of processes"),
        (["#Date Time gpu pid type", "#YYYYMMDD HH:MM:SS Idx # C/G"], 1, "pmon, which tells of processes"),
        (["Thu Dec  4 01:22:31 2025", "+" + "-" * 78 + "+"], 1, "the table that nvidia-smi prints for people"),
        (["+" + "-" * 78 + "+", "| NVIDIA-SMI 570.1 |"], 1, "the table that nvidia-smi prints for people"),
    ],
)
def test_what_cannot_be_read_is_refused_by_its_name(
    tmp_path: Path, lines: list[str], line: int | None, says: str
) -> None:
    with pytest.raises(TraceFormatError) as caught:
        read_traces(_file(tmp_path, lines))
    assert caught.value.line == line
    assert says in str(caught.value)
