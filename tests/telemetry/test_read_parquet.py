"""Parquet files, ours and those that pandas and others write."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpusonde.telemetry import (
    Trace,
    TraceFormatError,
    read_trace,
    read_traces,
    write_trace,
)

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

_DATA = Path(__file__).parents[3] / "shared" / "data" / "traces"


def _file(folder: Path, columns: dict[str, Any], metadata: dict[str, str] | None = None) -> Path:
    path = folder / "t.parquet"
    table = pa.table(columns)
    pq.write_table(table.replace_schema_metadata(metadata) if metadata else table, path)
    return path


def _refusal(path: Path) -> TraceFormatError:
    with pytest.raises(TraceFormatError) as caught:
        read_traces(path)
    assert str(caught.value).startswith(f"{path}")
    return caught.value


@pytest.mark.parametrize("kind", ["float64", "float32", "float16", "int32", "uint8", "int64"])
def test_any_numeric_type_is_read(tmp_path: Path, kind: str) -> None:
    path = _file(tmp_path, {"time_s": [0.0, 0.5], "power_watts": pa.array(np.array([1, 2]).astype(kind))})
    trace = read_trace(path)
    assert trace.time_s.tolist() == [0.0, 0.5]
    assert trace.values["power_watts"].tolist() == [1.0, 2.0]
    assert trace.warnings == ()


def test_nulls_nans_and_sentinels_are_missing(tmp_path: Path) -> None:
    blank = 9223372036854775794
    path = _file(
        tmp_path,
        {
            "time_s": [0, 1, 2],
            "power_watts": [None, 1.0, float("nan")],
            "framebuffer_used_bytes": pa.array([0, blank, None], pa.int64()),
        },
    )
    trace = read_trace(path)
    assert np.isnan(trace.values["power_watts"][[0, 2]]).all()
    assert np.isnan(trace.values["framebuffer_used_bytes"][1:]).all()
    assert "1 values are sentinels or impossible (the first on row 2)" in trace.warnings[0]


@pytest.mark.parametrize(
    "times",
    [
        pa.array([1753572729703, 1753572729803], pa.timestamp("ms", tz="UTC")),
        pa.array([1753572729703000, 1753572729803000], pa.timestamp("us", tz="Europe/Berlin")),
        pa.array([1753572729703, 1753572729803], pa.int64()),
        pa.array([1753572729703000000, 1753572729803000000], pa.int64()),
        pa.array(["2025-07-26T23:32:09.703Z", "2025-07-26T23:32:09.803Z"]),
    ],
)
def test_time_stamps_of_any_type_are_read_exactly(tmp_path: Path, times: Any) -> None:
    trace = read_trace(_file(tmp_path, {"timestamp": times, "power_watts": [1.0, 2.0]}))
    assert trace.time_s.tolist() == [0.0, 0.1]
    assert trace.origin_unix_s == 1753572729.703
    assert "time_zone" not in trace.attributes


def test_a_time_stamp_without_zone_is_taken_for_utc_and_says_so(tmp_path: Path) -> None:
    times = pa.array([1753572729703], pa.timestamp("ms"))
    trace = read_trace(_file(tmp_path, {"timestamp": times, "power_watts": [1.0]}))
    assert trace.origin_unix_s == 1753572729.703
    assert "UTC" in trace.attributes["time_zone"]


def test_unix_seconds_as_floats_are_read_to_the_microsecond(tmp_path: Path) -> None:
    trace = read_trace(_file(tmp_path, {"timestamp": [1753572729.703, 1753572729.803], "power_watts": [1.0, 2.0]}))
    assert np.allclose(trace.time_s, [0.0, 0.1], atol=1e-6)


@pytest.mark.parametrize("kind", ["string", "large_string", "dictionary", "int"])
def test_rows_of_several_traces_become_one_trace_each(tmp_path: Path, kind: str) -> None:
    names: dict[str, Any] = {
        "string": pa.array(["7", "3", "7"]),
        "large_string": pa.array(["7", "3", "7"], pa.large_string()),
        "dictionary": pa.array(["3", "7"]).dictionary_encode().take(pa.array([1, 0, 1])),
        "int": pa.array([7, 3, 7]),
    }
    path = _file(tmp_path, {"time_s": [0.0, 0.0, 1.0], "trace_id": names[kind], "power_watts": [1.0, 2.0, 3.0]})
    traces = read_traces(path)
    assert [(trace.gpu_uuid, trace.values["power_watts"].tolist()) for trace in traces] == [
        ("7", [1.0, 3.0]),
        ("3", [2.0]),
    ]
    assert read_trace(path, gpu="3").attributes["trace_id"] == "3"


def test_per_cent_is_refused_and_read_where_the_name_of_the_column_states_it(tmp_path: Path) -> None:
    error = _refusal(_file(tmp_path, {"time_s": [0.0, 1.0, 2.0], "gpu_utilization": [0, 57, 100]}))
    assert "per cent?" in str(error)
    trace = read_trace(_file(tmp_path, {"time_s": [0.0, 1.0, 2.0], "gpu_utilization [%]": [0, 57, 100]}))
    assert trace.values["gpu_utilization"].tolist() == [0.0, 0.57, 1.0]


def test_unknown_columns_are_kept_out_with_a_warning(tmp_path: Path) -> None:
    path = _file(tmp_path, {"time_s": [0.0], "power_watts": [1.0], "note": ["x"], "__index_level_0__": [0]})
    assert read_trace(path).warnings == ("columns left out, as they are no metrics: 'note'",)


@pytest.mark.parametrize(
    ("columns", "line", "field", "says"),
    [
        ({"time_s": [0.0, 2.0, 1.0], "power_watts": [1.0] * 3}, 3, "time_s", "lies before that on row 2"),
        ({"time_s": [0.0, 1.0, 1.0, 2.0], "power_watts": [1.0] * 4}, 3, "time_s", "is the same as"),
        ({"time_s": [0.0, None], "power_watts": [1.0] * 2}, 2, "time_s", "no time"),
        ({"time_s": [0.0, float("nan")], "power_watts": [1.0] * 2}, 2, "time_s", "not a finite time"),
        ({"time_s": ["a", "b"], "power_watts": [1.0] * 2}, None, "time_s", "not numbers"),
        ({"time_s": [0.0], "power_watts": ["1"]}, None, "power_watts", "holds string, not numbers"),
        ({"time_s": [0.0], "power_watts": [[1.0]]}, None, "power_watts", "not numbers"),
        ({"timestamp": ["soon"], "power_watts": [1.0]}, 1, "timestamp", "no time stamp"),
        ({"timestamp": [-5.0], "power_watts": [1.0]}, 1, "timestamp", "not a Unix time"),
        ({"timestamp": [True], "power_watts": [1.0]}, None, "timestamp", "not numbers"),
        ({"time_s": [0.0], "a": [1.0]}, None, None, "no column is a metric"),
        ({"a": [0.0], "power_watts": [1.0]}, None, None, "no time column"),
        ({"time_s": pa.array([], "float64"), "power_watts": pa.array([], "float64")}, None, None, "no rows"),
    ],
)
def test_bad_input_is_refused_with_its_row_and_field(
    tmp_path: Path, columns: dict[str, Any], line: int | None, field: str | None, says: str
) -> None:
    error = _refusal(_file(tmp_path, columns))
    assert (error.line, error.field) == (line, field)
    assert says in str(error)
    assert line is None or f":row {line}: " in str(error)


@pytest.mark.parametrize("stored", ["{", '{"gpu_uuid": 3}', "[1]", '[{"metrics": ["nonsense"]}]'])
def test_damaged_metadata_is_refused(tmp_path: Path, stored: str) -> None:
    path = _file(tmp_path, {"time_s": [0.0], "power_watts": [1.0]}, {"gpusonde.traces": stored})
    assert "damaged metadata" in str(_refusal(path))


@pytest.mark.parametrize("keep", [4, 5, 100, -1, -100])
def test_a_file_that_was_cut_is_refused(tmp_path: Path, keep: int) -> None:
    path = _file(tmp_path, {"time_s": np.arange(100.0), "power_watts": np.ones(100)})
    path.write_bytes(path.read_bytes()[:keep])
    assert "damaged or was cut" in str(_refusal(path))


def test_what_unpacks_to_more_than_the_limit_is_refused(tmp_path: Path) -> None:
    path = _file(tmp_path, {"time_s": np.arange(100_000.0), "power_watts": np.ones(100_000)})
    with pytest.raises(TraceFormatError, match="bytes when unpacked"):
        read_traces(path, max_bytes=path.stat().st_size + 1)


def test_without_pyarrow_the_error_names_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _file(tmp_path, {"time_s": [0.0], "power_watts": [1.0]})
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(TraceFormatError, match="pip install pyarrow"):
        read_traces(path)
    with pytest.raises(TraceFormatError, match=r"or use a \.csv file"):
        write_trace(Trace(np.zeros(1), {"power_watts": np.zeros(1)}), tmp_path / "out.parquet")
    assert not list(tmp_path.glob(".*"))


@pytest.mark.shared_data
def test_the_recorded_sets_of_many_traces_are_read() -> None:
    path = _DATA / "synthetic_epochs.parquet"
    if not path.is_file():
        pytest.skip(f"{path} is not there")
    traces = read_traces(path)
    assert len(traces) == 48
    assert traces[0].attributes["trace_id"] == "e000"
    # 826 of its ticks fall on the millisecond of the tick after them.
    assert sum(len(trace) for trace in traces) == 539_165 - 826
