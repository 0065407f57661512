"""Logs of dcgmi dmon."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gpusonde.telemetry import TraceFormatError, read_trace, read_traces

_HEADING = """\
#Entity   GPUTL   SMACT   FBUSD   POWER    TOTEC       PCITX
ID
"""


def _file(folder: Path, text: str) -> Path:
    path = folder / "dmon.log"
    path.write_text(text, encoding="utf-8")
    return path


def _row(entity: str, *values: str) -> str:
    return "    ".join([entity, *(values or ("57", "0.951", "1000", "300.125", "123456", "1024"))]) + "\n"


def test_values_come_in_the_units_of_the_catalogue(tmp_path: Path) -> None:
    trace = read_trace(_file(tmp_path, _HEADING + _row("GPU 0")), interval_s=0.1)
    assert {name: float(values[0]) for name, values in trace.values.items()} == {
        "gpu_utilization": 0.57,
        "sm_active": 0.951,
        "framebuffer_used_bytes": 1000 * 2.0**20,
        "power_watts": 300.125,
        "energy_joules": 123.456,
        "pcie_tx_bytes_per_second": 1024.0,
    }
    assert trace.warnings == ()
    assert trace.origin_unix_s is None


def test_entities_become_traces_and_headings_may_repeat(tmp_path: Path) -> None:
    tick = _row("GPU 0") + _row("GPU 1") + _row("GPU-I 7") + _row("GPU-CI 3")
    traces = read_traces(_file(tmp_path, _HEADING + tick + tick + _HEADING + tick), interval_s=0.1)
    assert [trace.gpu_uuid for trace in traces] == ["GPU-0", "GPU-1", "GPU-I-7", "GPU-CI-3"]
    for trace in traces:
        assert np.allclose(trace.time_s, [0.0, 0.1, 0.2])
    assert read_trace(_file(tmp_path, _HEADING + tick), gpu=1, interval_s=1.0).gpu_uuid == "GPU-1"


def test_a_log_without_times_is_refused_with_the_option_that_tells_them(tmp_path: Path) -> None:
    path = _file(tmp_path, _HEADING + _row("GPU 0") * 3)
    with pytest.raises(TraceFormatError, match="--interval-s 100ms where dcgmi dmon ran with -d 100"):
        read_trace(path)
    assert read_trace(path, interval_s=0.1).time_s == pytest.approx([0.0, 0.1, 0.2])


def test_a_tick_in_which_an_entity_is_missing_keeps_the_others_in_step(tmp_path: Path) -> None:
    text = _HEADING + _row("GPU 0") + _row("GPU 1") + _row("GPU 0") + _row("GPU 0") + _row("GPU 1")
    traces = read_traces(_file(tmp_path, text), interval_s=1.0)
    assert traces[0].time_s.tolist() == [0.0, 1.0, 2.0]
    assert traces[1].time_s.tolist() == [0.0, 2.0]


@pytest.mark.parametrize(
    "stamps", [("2025-07-26T23:32:09.703", "2025-07-26T23:32:09.803"), ("1753572729.703", "1753572729.803")]
)
def test_time_stamps_of_ts_in_front_of_the_lines_are_the_times(tmp_path: Path, stamps: tuple[str, str]) -> None:
    lines = "".join(f"{stamps[0]} {line}\n" for line in (_HEADING + _row("GPU 0")).splitlines())
    trace = read_trace(_file(tmp_path, lines + f"{stamps[1]} {_row('GPU 0')}"))
    assert trace.time_s.tolist() == [0.0, 0.1]
    assert trace.origin_unix_s == 1753572729.703
    assert trace.warnings == ()
    assert "interval_s was not used" in read_trace(_file(tmp_path, lines), interval_s=0.1).warnings[0]


@pytest.mark.parametrize("heading", ["# Entity  SMACT\n      Id\n", "# EntityId   SMACT\n", "#Entity SMACT\n# ID\n"])
def test_headings_of_all_releases_are_known(tmp_path: Path, heading: str) -> None:
    trace = read_trace(_file(tmp_path, heading + "    GPU 2   0.5  \n"), interval_s=1.0)
    assert trace.values["sm_active"].tolist() == [0.5]


def test_not_available_is_missing_and_counted(tmp_path: Path) -> None:
    text = "#Entity SMACT POWER\nID\n" + _row("GPU 0", "N/A", "1.0") + _row("GPU 0", "0.5", "N/A")
    trace = read_trace(_file(tmp_path, text), interval_s=1.0)
    assert np.isnan(trace.values["sm_active"][0])
    assert trace.warnings == (
        "SMACT: 1 values were given as not available; they are missing",
        "POWER: 1 values were given as not available; they are missing",
    )


def test_the_number_of_the_last_xid_is_not_taken_for_a_count(tmp_path: Path) -> None:
    trace = read_trace(_file(tmp_path, "#Entity SMACT XIDER\nID\n" + _row("GPU 0", "0.5", "79")), interval_s=1.0)
    assert trace.metrics == ("sm_active",)
    assert "'XIDER'" in trace.warnings[0]


@pytest.mark.parametrize("cut", [1, 3, 10, 30])
def test_a_last_row_that_was_cut_is_left_out_with_a_warning(tmp_path: Path, cut: int) -> None:
    trace = read_trace(_file(tmp_path, (_HEADING + _row("GPU 0") * 3)[:-cut]), interval_s=1.0)
    assert len(trace) == 2
    assert trace.warnings == ("line 5: the last row is incomplete and was left out; the file was cut there",)


@pytest.mark.parametrize(
    ("text", "line", "field", "says"),
    [
        (_HEADING, 1, None, "no complete row"),
        (_HEADING + _row("GPU 0", "1", "2") + _row("GPU 0"), 3, None, "2 values, but the heading names 6"),
        (_HEADING + _row("GPU 0") + "Error setting watches.\n" + _row("GPU 0"), 4, None, "'Error setting watches.'"),
        (_HEADING + _row("GPU 0", "x", "1", "1", "1", "1", "1") + _row("GPU 0"), 3, "GPUTL", "'x' is not a number"),
        (_HEADING + _row("GPU 0") + "#Entity SMACT\nID\n" + _row("GPU 0", "1"), 4, None, "another heading"),
        ("#Entity DVNAM\nID\n" + _row("GPU 0", "T4"), 1, None, "no column is a metric"),
        (_row("GPU 0") * 2, 1, None, "without their header"),
        ("Jul 26 23:32:09 " + _HEADING + _row("GPU 0"), 1, None, "ts '%Y-%m-%dT%H:%M:%.S'"),
        (_HEADING + "2025-07-26T23:32:09 " + _row("GPU 0") + _row("GPU 0"), 4, "time stamp", "some have none"),
        (_HEADING + ("2025-07-26T23:32:09 " + _row("GPU 0")) * 2, 4, "time stamp", "is the same as"),
        (_HEADING + "2025-07-99T23:32:09 " + _row("GPU 0"), 3, "time stamp", "no date"),
    ],
)
def test_bad_input_is_refused_with_its_line_and_field(
    tmp_path: Path, text: str, line: int, field: str | None, says: str
) -> None:
    path = _file(tmp_path, text)
    with pytest.raises(TraceFormatError) as caught:
        read_traces(path)
    assert (caught.value.line, caught.value.field) == (line, field)
    assert str(caught.value).startswith(f"{path}:{line}: ")
    assert says in str(caught.value)
