"""Logs of nvidia-smi --query-gpu, with and without units, indices, headers and accidents."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from support.nvidia_smi_log import Schedule, log, power, schedule, stamp

from gpusonde.telemetry import TraceError, TraceFormatError, read_trace, read_traces

_DATA = Path(__file__).parents[3] / "shared" / "data" / "traces"


def _file(folder: Path, text: str) -> Path:
    path = folder / "smi.csv"
    path.write_text(text, encoding="utf-8")
    return path


def _row(tick: int, *cells: str) -> str:
    return ", ".join([stamp(tick * 0.1), *cells]) + "\n"


def test_gpus_that_take_turns_become_one_trace_each_with_their_own_times(tmp_path: Path) -> None:
    rows = schedule(3, 100, hole_share=0.02)
    traces = read_traces(_file(tmp_path, log(rows)))
    assert [trace.gpu_uuid for trace in traces] == ["GPU-0", "GPU-1", "GPU-2"]
    for gpu, trace in enumerate(traces):
        own = np.flatnonzero(rows.gpu == gpu)
        assert np.array_equal(trace.time_s, np.round(rows.time_s[own] - rows.time_s[0], 3))
        assert trace.values["power_watts"].tolist() == [power(gpu, int(row)) for row in own]
        assert trace.values["gpu_utilization"].tolist() == [0.57] * 100
        assert trace.values["framebuffer_used_bytes"].tolist() == [132.0 * 1024**2] * 100
        assert trace.warnings == ()


def test_local_time_is_taken_for_utc_and_says_so_without_a_warning(tmp_path: Path) -> None:
    trace = read_trace(_file(tmp_path, log(Schedule(np.arange(5) * 0.1, np.zeros(5, dtype=np.int64)))))
    assert trace.origin_unix_s == 1753572729.0
    assert "UTC" in trace.attributes["time_zone"]
    assert trace.warnings == ()


def test_broken_bursts_are_counted_in_a_warning(tmp_path: Path) -> None:
    traces = read_traces(_file(tmp_path, log(schedule(4, 50).without([41, 90, 91]))))
    assert len(traces) == 4
    assert {len(trace) for trace in traces} == {48}
    assert traces[0].warnings == (
        "5 rows of 2 broken bursts were left out: rows of some of the 4 GPUs are missing there",
    )


def test_the_number_of_gpus_can_be_given_and_is_refused_where_it_cannot_be(tmp_path: Path) -> None:
    path = _file(tmp_path, log(schedule(2, 100, pause_s=0.002, within_s=0.001, seed=4)))
    with pytest.raises(TraceFormatError, match="--gpus N") as caught:
        read_traces(path)
    assert caught.value.line == 2
    clear = _file(tmp_path, log(schedule(4, 20)))
    with pytest.raises(TraceFormatError, match="contradicts 3 GPUs"):
        read_traces(clear, gpus=3)
    assert len(read_traces(clear, gpus=4)) == 4


@pytest.mark.parametrize(
    ("header", "cells"),
    [
        ("power.draw [W], utilization.gpu [%], memory.used [MiB]", ("69.32 W", "57 %", "132 MiB")),
        ("power.draw [W], utilization.gpu [%], memory.used [MiB]", ("69.32", "57", "132")),
        ("power.draw, utilization.gpu, memory.used", ("69.32", "57", "132")),
        ("power.draw [W], utilization.gpu [%], memory.used [MiB]", ("69.32", "57 %", "132 MiB")),
        ("power.draw.instant [W], utilization.gpu [%], memory.used [MiB]", ("69.32 W", "57 %", "132 MB")),
    ],
)
def test_units_may_stand_in_the_header_in_the_cells_in_both_or_nowhere(
    tmp_path: Path, header: str, cells: tuple[str, ...]
) -> None:
    trace = read_trace(_file(tmp_path, f"timestamp, {header}\n{_row(0, *cells)}{_row(1, *cells)}"))
    assert trace.values["power_watts"].tolist() == [69.32, 69.32]
    assert trace.values["gpu_utilization"].tolist() == [0.57, 0.57]
    assert trace.values["framebuffer_used_bytes"].tolist() == [132 * 2.0**20] * 2


def test_every_field_with_a_metric_is_read(tmp_path: Path) -> None:
    header = (
        "timestamp, utilization.memory [%], utilization.encoder [%], utilization.decoder [%], memory.free [MiB], "
        "temperature.gpu, temperature.memory, clocks.current.sm [MHz], clocks.current.memory [MHz], fan.speed [%]\n"
    )
    trace = read_trace(
        _file(tmp_path, header + _row(0, "9 %", "1 %", "2 %", "10 MiB", "64", "70 C", "1980 MHz", "2619 MHz", "0 %"))
    )
    assert {name: float(values[0]) for name, values in trace.values.items()} == {
        "memory_utilization": 0.09,
        "encoder_utilization": 0.01,
        "decoder_utilization": 0.02,
        "framebuffer_free_bytes": 10 * 2.0**20,
        "gpu_temperature_celsius": 64.0,
        "memory_temperature_celsius": 70.0,
        "sm_clock_mhz": 1980.0,
        "memory_clock_mhz": 2619.0,
    }
    assert trace.warnings == ("columns left out, as they are no metrics: 'fan.speed [%]'",)


def test_instantaneous_power_is_preferred_to_an_average(tmp_path: Path) -> None:
    header = "timestamp, power.draw.average [W], power.draw [W], power.draw.instant [W]\n"
    trace = read_trace(_file(tmp_path, header + _row(0, "1 W", "2 W", "3 W")))
    assert trace.values["power_watts"].tolist() == [3.0]
    assert "'power.draw [W]', 'power.draw.average [W]'" in trace.warnings[0]


@pytest.mark.parametrize("blank", ["[N/A]", "N/A", "[Not Supported]", "[Unknown Error]", "ERR!", "[GPU is lost]"])
def test_what_nvidia_smi_prints_for_no_value_is_missing_and_counted(tmp_path: Path, blank: str) -> None:
    text = "timestamp, power.draw [W], utilization.gpu [%]\n"
    text += _row(0, "70.00 W", "1 %") + _row(1, blank, "2 %") + _row(2, "71.00 W", "3 %")
    trace = read_trace(_file(tmp_path, text))
    assert np.isnan(trace.values["power_watts"][1])
    assert trace.values["power_watts"][[0, 2]].tolist() == [70.0, 71.0]
    assert trace.warnings == ("power.draw [W]: 1 values were given as not available; they are missing",)


def test_a_column_without_any_value_stays_as_missing(tmp_path: Path) -> None:
    text = "timestamp, power.draw [W], utilization.gpu [%]\n" + _row(0, "[N/A]", "1 %") + _row(1, "[N/A]", "2 %")
    assert np.isnan(read_trace(_file(tmp_path, text)).values["power_watts"]).all()


def test_an_index_column_tells_gpus_apart_whatever_the_order(tmp_path: Path) -> None:
    text = "timestamp, index, name, power.draw [W]\n"
    for tick in range(3):
        for gpu in ((3, 2), (2, 3))[tick % 2]:
            text += _row(tick, str(gpu), f"Tesla T{gpu}", f"{gpu}{tick} W")
    path = _file(tmp_path, text)
    traces = read_traces(path)
    assert [(t.gpu_uuid, t.gpu_model, t.attributes["gpu_index"]) for t in traces] == [
        ("GPU-3", "Tesla T3", "3"),
        ("GPU-2", "Tesla T2", "2"),
    ]
    assert read_trace(path, gpu=2).values["power_watts"].tolist() == [20.0, 21.0, 22.0]
    with pytest.raises(TraceError, match="no GPU '0'; --gpu takes one of 3 = GPU-3, 2 = GPU-2"):
        read_trace(path, gpu=0)
    assert "gpus was not used: the column index" in read_traces(path, gpus=2)[0].warnings[0]


def test_uuids_name_the_gpus_where_they_are_there(tmp_path: Path) -> None:
    text = (
        "timestamp, uuid, index, power.draw [W]\n" + _row(0, "GPU-777aa4a9", "0", "1 W") + _row(0, "GPU-11", "1", "2 W")
    )
    path = _file(tmp_path, text)
    assert [trace.gpu_uuid for trace in read_traces(path)] == ["GPU-777aa4a9", "GPU-11"]
    for choice in (0, "0", "GPU-777aa4a9", "GPU-777"):
        assert read_trace(path, gpu=choice).values["power_watts"].tolist() == [1.0]


def test_the_name_column_gives_the_model_of_gpus_that_take_turns(tmp_path: Path) -> None:
    rows = schedule(2, 20)
    lines = [
        _time_row(time_s, ["Tesla T4", "NVIDIA A10G"][gpu]) for time_s, gpu in zip(rows.time_s, rows.gpu, strict=True)
    ]
    traces = read_traces(_file(tmp_path, "timestamp, name, power.draw [W]\n" + "".join(lines)))
    assert [trace.gpu_model for trace in traces] == ["Tesla T4", "NVIDIA A10G"]


def _time_row(time_s: float, name: str) -> str:
    return f"{stamp(float(time_s))}, {name}, 70.00 W\n"


def test_a_header_that_comes_again_after_log_rotation_is_skipped_and_ends_a_burst(tmp_path: Path) -> None:
    lines = log(schedule(4, 60)).splitlines()
    # The first log was cut after two rows of its 31st burst; the second begins with a burst of its own.
    text = "\n".join([*lines[: 1 + 122], lines[0], *lines[1 + 124 :]]) + "\n"
    traces = read_traces(_file(tmp_path, text))
    assert {len(trace) for trace in traces} == {59}
    assert "2 rows of 1 broken bursts" in traces[0].warnings[0]


def test_messages_of_the_driver_in_the_log_are_counted_and_skipped(tmp_path: Path) -> None:
    text = "timestamp, power.draw [W]\n" + _row(0, "1 W")
    text += "Unable to determine the device handle for GPU 0000:01:00.0: GPU is lost.  Reboot the system\n" + _row(
        1, "2 W"
    )
    trace = read_trace(_file(tmp_path, text))
    assert trace.values["power_watts"].tolist() == [1.0, 2.0]
    assert trace.warnings == ("1 lines are messages of the tool, the first is line 3; left out",)


@pytest.mark.parametrize("cut", [1, 5, 20, 30, 48])
def test_a_last_row_that_was_cut_is_left_out_with_a_warning(tmp_path: Path, cut: int) -> None:
    text = log(Schedule(np.arange(20) * 0.1, np.zeros(20, dtype=np.int64)))[:-cut]
    trace = read_trace(_file(tmp_path, text))
    assert len(trace) == 19
    assert "line 21: the last row" in trace.warnings[0]


@pytest.mark.parametrize(
    ("text", "line", "field", "says"),
    [
        (_row(0, "69.32 W", "0 %") + _row(1, "69.32 W", "0 %"), 1, None, "again without 'noheader'"),
        (_row(0, "69.32", "0"), 1, None, "again without 'noheader'"),
        ("power.draw [W], utilization.gpu [%]\n69.32 W, 0 %\n", 1, "timestamp", "--query-gpu=timestamp"),
        ("timestamp, memory.total [MiB]\n" + _row(0, "1 MiB"), 1, None, "no field of this nvidia-smi log is a metric"),
        ("timestamp, power.draw [hp]\n" + _row(0, "1"), 1, "power.draw [hp]", "unknown unit 'hp'"),
        ("timestamp, power.draw [W]\n" + _row(0, "1 %") + _row(1, "1 W"), 2, "power.draw [W]", "read as watts"),
        ("timestamp, power.draw [W]\nnow, 1 W\n" + _row(1, "1 W"), 2, "timestamp", "no time stamp"),
        ("timestamp, power.draw [W]\n" + _row(0, "1 W") + _row(1) + _row(2, "1 W"), 3, None, "1 cells"),
        (
            "timestamp, index, power.draw [W]\n" + _row(1, "0", "1 W") + _row(0, "0", "1 W"),
            3,
            "timestamp",
            "before that on",
        ),
        ("timestamp, index, power.draw [W]\n" + _row(1, "0", "1 W") * 2, 3, "timestamp", "is the same as"),
        ("timestamp, power.draw [W]\n" + _row(0, "1 W")[:-1], 1, None, "no complete row"),
        (
            "# gpu   pwr  gtemp\n# Idx     W      C\n    0    70     40\n",
            1,
            None,
            "the log has no times; say how far its ticks are apart, --interval-s",
        ),
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


def test_shuffled_rows_of_an_interleaved_log_are_refused(tmp_path: Path) -> None:
    lines = log(schedule(2, 50)).splitlines(keepends=True)
    lines[20:60] = reversed(lines[20:60])
    with pytest.raises(TraceFormatError, match=r"smi.csv:\d+: "):
        read_traces(_file(tmp_path, "".join(lines)))


@pytest.mark.shared_data
@pytest.mark.parametrize(
    ("raw", "converted", "gpus", "at_most_dropped"),
    [
        ("titanx_nvidia_smi_2gpu.csv", "titanx_2025-12-04-01-22-31.csv", 2, 2),
        ("h100_nvidia_smi_8gpu.csv", "h100_ckpt200.csv", 8, 31),
    ],
)
def test_real_logs_give_the_values_that_were_converted_by_hand(
    raw: str, converted: str, gpus: int, at_most_dropped: int
) -> None:
    if not (_DATA / "raw" / raw).is_file():
        pytest.skip(f"{_DATA / 'raw' / raw} is not there")
    traces = read_traces(_DATA / "raw" / raw)
    with (_DATA / converted).open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(traces) == gpus
    for gpu, trace in enumerate(traces):
        power_watts = np.array([float(row["power_watts"]) for row in rows if row["gpu_uuid"] == f"GPU-{gpu}"])
        time_s = np.array([float(row["time_s"]) for row in rows if row["gpu_uuid"] == f"GPU-{gpu}"])
        if gpu == 0:
            same = np.isin(np.round(time_s, 3), np.round(trace.time_s, 3))
            assert np.array_equal(power_watts[same], trace.values["power_watts"])
        # The conversion interpolated the other GPUs at the times of the first.
        inside = time_s < trace.time_s[-1]
        ours = np.interp(time_s[inside], trace.time_s, trace.values["power_watts"])
        assert np.mean(np.abs(ours - power_watts[inside]) < 1e-6) > 0.99
    dropped = sum(1 for _ in (_DATA / "raw" / raw).open()) - 1 - sum(len(trace) for trace in traces)
    assert dropped <= at_most_dropped
