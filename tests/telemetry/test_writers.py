"""Writing traces and reading them back."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpusonde.telemetry import (
    METRICS,
    Trace,
    TraceError,
    TraceMetadata,
    TraceWriter,
    UnknownMetricError,
    read_trace,
    read_traces,
    write_trace,
)

_EXTENSIONS = pytest.mark.parametrize("extension", ["csv", "parquet"])


def _assert_same(ours: Trace, theirs: Trace) -> None:
    assert np.array_equal(ours.time_s, theirs.time_s)
    assert ours.metrics == theirs.metrics
    for name in ours.metrics:
        assert np.array_equal(ours.values[name], theirs.values[name], equal_nan=True), name
    assert (ours.gpu_uuid, ours.gpu_model, ours.origin_unix_s) == (
        theirs.gpu_uuid,
        theirs.gpu_model,
        theirs.origin_unix_s,
    )
    assert dict(ours.attributes) == dict(theirs.attributes)


def _trace(uuid: str = "", **facts: object) -> Trace:
    values = {"power_watts": np.array([100.0, np.nan, 1 / 3])}
    return Trace(np.array([0.0, 0.1, 0.30000000000000004]), values, gpu_uuid=uuid, **facts)  # type: ignore[arg-type]


_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


@st.composite
def _traces(draw: st.DrawFn) -> list[Trace]:
    uuids = draw(st.lists(st.text(st.characters(codec="ascii", categories=["L", "N", "P"]), max_size=8), max_size=3))
    traces = []
    for uuid in dict.fromkeys(uuids) or [""]:
        times = sorted(draw(st.sets(st.floats(-1e12, 1e12), min_size=1, max_size=6)))
        values = {}
        for entry in draw(st.lists(st.sampled_from(METRICS), min_size=1, max_size=4, unique=True)):
            # Exact sentinels are not values; floats of half the range avoid them.
            number = st.floats(0, (entry.maximum or 1e9) / 2).map(lambda x: x * 0.999) | st.just(float("nan"))
            values[entry.name] = np.array([draw(number) for _ in times])
        traces.append(
            Trace(
                np.array(times),
                values,
                gpu_uuid=uuid,
                gpu_model=draw(_text),
                origin_unix_s=draw(st.none() | st.floats(0, 4e9)),
                attributes=draw(st.dictionaries(_text, _text, max_size=2)),
            )
        )
    return traces


@_EXTENSIONS
@settings(max_examples=40, deadline=None)
@given(traces=_traces())
def test_what_was_written_is_read_back_exactly(
    tmp_path_factory: pytest.TempPathFactory, extension: str, traces: list[Trace]
) -> None:
    path = tmp_path_factory.mktemp("t") / f"t.{extension}"
    write_trace(traces, path)
    back = read_traces(path)
    assert len(back) == len(traces)
    for ours, theirs in zip(traces, back, strict=True):
        _assert_same(ours, theirs)
        assert theirs.warnings == ()


def test_a_csv_file_says_in_comments_what_columns_cannot(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    write_trace(_trace("GPU-1", gpu_model="Tesla T4", origin_unix_s=5.5, attributes={"generated": "yes"}), path)
    assert path.read_text(encoding="utf-8") == (
        '# gpusonde-trace: {"gpu_uuid": "GPU-1", "gpu_model": "Tesla T4", "origin_unix_s": 5.5, '
        '"attributes": {"generated": "yes"}}\n'
        "time_s,gpu_uuid,power_watts\n"
        "0.0,GPU-1,100.0\n"
        "0.1,GPU-1,\n"
        "0.30000000000000004,GPU-1,0.3333333333333333\n"
    )


@_EXTENSIONS
def test_traces_with_different_metrics_keep_their_own(tmp_path: Path, extension: str) -> None:
    path = tmp_path / f"t.{extension}"
    traces = [_trace("a"), Trace(np.array([1.0]), {"sm_active": np.array([0.5])}, gpu_uuid="b")]
    write_trace(traces, path)
    assert [trace.metrics for trace in read_traces(path)] == [("power_watts",), ("sm_active",)]


@_EXTENSIONS
def test_an_older_file_is_replaced_as_a_whole(tmp_path: Path, extension: str) -> None:
    path = tmp_path / f"t.{extension}"
    path.write_text("older")
    write_trace(_trace(), path)
    assert len(read_trace(path)) == 3
    assert os.listdir(tmp_path) == [path.name]


@_EXTENSIONS
def test_a_failure_leaves_the_older_file_and_no_litter(
    tmp_path: Path, extension: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / f"t.{extension}"
    path.write_text("older")

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_trace(_trace(), path)
    assert path.read_text() == "older"
    assert os.listdir(tmp_path) == [path.name]


@pytest.mark.parametrize(
    ("traces", "name", "says"),
    [
        ([], "t.csv", "no trace"),
        ([_trace("a"), _trace("a")], "t.csv", "the same gpu_uuid"),
        ([_trace()], "t.txt", r"ends with \.csv or \.parquet"),
        ([_trace(" a")], "t.csv", "blanks around"),
        ([_trace("a\nb")], "t.csv", "control characters"),
        ([Trace(np.zeros(1), {})], "t.csv", "at least one metric"),
        ([Trace(np.zeros(0), {"power_watts": np.zeros(0)}, gpu_uuid="g")], "t.csv", "no ticks"),
    ],
)
def test_what_could_not_be_read_back_is_refused(tmp_path: Path, traces: list[Trace], name: str, says: str) -> None:
    with pytest.raises(TraceError, match=says):
        write_trace(traces, tmp_path / name)
    assert not os.listdir(tmp_path)


@_EXTENSIONS
def test_a_writer_takes_ticks_of_several_gpus_as_they_come(tmp_path: Path, extension: str) -> None:
    path = tmp_path / f"t.{extension}"
    gpus = [TraceMetadata("a", "Tesla T4", 1000.0, {"host": "h"}), TraceMetadata("b", origin_unix_s=1000.0)]
    with TraceWriter(path, ["power_watts", "sm_active"], gpus) as writer:
        writer.append([0.0, 0.1], [[1, 2], [0.1, np.nan]], "a")
        writer.append(0.05, [[7], [0.7]], "b")
        writer.append([], np.empty((2, 0)), "b")
        writer.append([0.2], [[3], [0.3]], "a")
    a, b = read_traces(path)
    assert a.time_s.tolist() == [0.0, 0.1, 0.2]
    assert a.values["power_watts"].tolist() == [1.0, 2.0, 3.0]
    assert b.values["sm_active"].tolist() == [0.7]
    assert (a.gpu_model, a.origin_unix_s, a.attributes["host"], b.origin_unix_s) == ("Tesla T4", 1000.0, "h", 1000.0)
    assert os.listdir(tmp_path) == [path.name]


def test_a_csv_file_can_be_read_while_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    with TraceWriter(path, ["power_watts"]) as writer:
        writer.append([0.0, 0.1], [[1, 2]])
        assert read_trace(path).values["power_watts"].tolist() == [1.0, 2.0]


@_EXTENSIONS
def test_what_was_recorded_before_an_error_is_kept(tmp_path: Path, extension: str) -> None:
    path = tmp_path / f"t.{extension}"

    def record() -> None:
        with TraceWriter(path, ["power_watts"]) as writer:
            writer.append([0.0], [[1]])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        record()
    assert len(read_trace(path)) == 1


@_EXTENSIONS
def test_a_full_disk_names_the_file_keeps_its_ticks_and_leaves_no_litter(
    tmp_path: Path, extension: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / f"t.{extension}"
    writer = TraceWriter(path, ["power_watts"])
    writer.append([0.0, 0.1], [[1, 2]])

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left") as caught:
        writer.close()
    assert caught.value.filename == str(path)
    if extension == "csv":
        assert len(read_trace(path)) == 2
    else:
        assert not os.listdir(tmp_path)


@_EXTENSIONS
def test_a_folder_that_is_not_there_is_reported_with_the_files_own_name(tmp_path: Path, extension: str) -> None:
    path = tmp_path / "missing" / f"t.{extension}"
    with pytest.raises(FileNotFoundError) as caught:
        TraceWriter(path, ["power_watts"]).append([0.0], [[1]])
    assert caught.value.filename == str(path)


def test_a_long_recording_becomes_several_row_groups(tmp_path: Path) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "t.parquet"
    with TraceWriter(path, ["power_watts"]) as writer:
        for start in range(0, 200_000, 20_000):
            writer.append(np.arange(start, start + 20_000) * 0.1, np.ones((1, 20_000)))
    assert pq.ParquetFile(path).num_row_groups == 3
    assert len(read_trace(path)) == 200_000


def test_a_writer_without_ticks_leaves_no_file(tmp_path: Path) -> None:
    with TraceWriter(tmp_path / "t.parquet", ["power_watts"]) as writer:
        writer.close()
    assert not os.listdir(tmp_path)


def test_ticks_that_make_no_trace_are_refused(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path / "t.csv", ["power_watts"], [TraceMetadata("a")])
    writer.append([0.0], [[1]], "a")
    with pytest.raises(TraceError, match="need"):
        writer.append([1.0], [[1], [2]], "a")
    with pytest.raises(TraceError, match="no GPU 'b' was announced"):
        writer.append([1.0], [[1]], "b")
    for times in ([0.0], [2.0, 1.0], [np.nan]):
        with pytest.raises(TraceError, match=r"do not increase after 0\.0 s"):
            writer.append(times, [[1] * len(times)], "a")
    writer.close()
    with pytest.raises(TraceError, match="closed"):
        writer.append([1.0], [[1]], "a")
    with pytest.raises(UnknownMetricError):
        TraceWriter(tmp_path / "t.csv", ["power"])
    with pytest.raises(TraceError, match="named twice"):
        TraceWriter(tmp_path / "t.csv", ["power_watts", "power_watts"])


def test_the_schema_of_parquet_files_stays_as_other_programs_know_it(tmp_path):
    pq = pytest.importorskip("pyarrow.parquet")
    trace = Trace(
        np.arange(3.0),
        {"power_watts": np.array([1.0, np.nan, 3.0]), "energy_joules": np.arange(3.0)},
        gpu_uuid="GPU-0", gpu_model="Tesla T4", origin_unix_s=5.0, attributes={"host": "a"},
    )  # fmt: skip
    write_trace(trace, tmp_path / "trace.parquet")
    schema = pq.read_schema(tmp_path / "trace.parquet")
    assert {field.name: (str(field.type), field.nullable) for field in schema} == {
        "time_s": ("double", True),
        "gpu_uuid": ("string", True),
        "power_watts": ("double", True),
        "energy_joules": ("double", True),
    }
    assert json.loads(schema.metadata[b"gpusonde.traces"]) == [
        {"gpu_uuid": "GPU-0", "gpu_model": "Tesla T4", "origin_unix_s": 5.0, "attributes": {"host": "a"}}
    ]
