"""Our own CSV files, as we write them and as people make them."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from gpusonde.telemetry import (
    TraceError,
    TraceFormatError,
    read_trace,
    read_traces,
)


def _file(folder: Path, text: str | bytes, name: str = "t.csv") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def _refusal(path: Path) -> TraceFormatError:
    with pytest.raises(TraceFormatError) as caught:
        read_traces(path)
    assert str(caught.value).startswith(f"{path}")
    return caught.value


def test_times_and_metrics_are_read_as_they_stand(tmp_path: Path) -> None:
    trace = read_trace(_file(tmp_path, "time_s,power_watts,sm_active\n5.5,100,0.25\n5.6,101.5,\n"))
    assert trace.time_s.tolist() == [5.5, 5.6]
    assert trace.values["power_watts"].tolist() == [100.0, 101.5]
    assert trace.values["sm_active"][0] == 0.25
    assert np.isnan(trace.values["sm_active"][1])
    assert trace.origin_unix_s is None
    assert trace.warnings == ()


@pytest.mark.parametrize(
    ("stamps", "origin"),
    [
        (("2025-07-26T23:32:09.703Z", "2025-07-26T23:32:09.803Z"), 1753572729.703),
        (("2025-07-27 01:32:09.703+02:00", "2025-07-27 01:32:09.803+02:00"), 1753572729.703),
        (("2025-07-26T18:32:09.703-0500", "2025-07-26T18:32:09.803-0500"), 1753572729.703),
        (("1753572729.703", "1753572729.803"), 1753572729.703),
        (("1753572729703", "1753572729803"), 1753572729.703),
        (("1753572729703000", "1753572729803000"), 1753572729.703),
        (("1753572729703000000", "1753572729803000000"), 1753572729.703),
    ],
)
def test_time_stamps_are_read_in_iso_8601_and_unix_time_of_any_unit(
    tmp_path: Path, stamps: tuple[str, str], origin: float
) -> None:
    trace = read_trace(_file(tmp_path, f"timestamp,power_watts\n{stamps[0]},1\n{stamps[1]},2\n"))
    assert trace.time_s.tolist() == [0.0, 0.1]
    assert trace.origin_unix_s == origin
    assert "time_zone" not in trace.attributes


def test_a_clock_reading_without_zone_is_taken_for_utc_and_says_so(tmp_path: Path) -> None:
    trace = read_trace(_file(tmp_path, "timestamp,power_watts\n2025-07-26T23:32:09,1\n"))
    assert trace.origin_unix_s == 1753572729.0
    assert "UTC" in trace.attributes["time_zone"]


@pytest.mark.parametrize("key", ["gpu_uuid", "trace_id"])
def test_rows_of_several_gpus_become_one_trace_each(tmp_path: Path, key: str) -> None:
    path = _file(tmp_path, f"time_s,{key},power_watts\n0,b,1\n0,a,2\n1,b,3\n1,a,4\n2,a,5\n")
    traces = read_traces(path)
    assert [trace.gpu_uuid for trace in traces] == ["b", "a"]
    assert traces[0].values["power_watts"].tolist() == [1.0, 3.0]
    assert traces[1].time_s.tolist() == [0.0, 1.0, 2.0]


def test_trace_id_and_gpu_uuid_together_tell_traces_apart(tmp_path: Path) -> None:
    path = _file(tmp_path, "time_s,trace_id,gpu_uuid,power_watts\n0,r1,g,1\n0,r2,g,2\n1,r1,g,3\n")
    traces = read_traces(path)
    assert [(t.gpu_uuid, t.attributes["trace_id"], len(t)) for t in traces] == [("g", "r1", 2), ("g", "r2", 1)]
    assert read_trace(path, gpu="r2").values["power_watts"].tolist() == [2.0]


def test_several_gpus_and_no_choice_lists_them(tmp_path: Path) -> None:
    path = _file(tmp_path, "time_s,gpu_uuid,power_watts\n0,GPU-aa,1\n0,GPU-bb,2\n")
    with pytest.raises(TraceError, match=r"2 GPUs \(0 = GPU-aa, 1 = GPU-bb\); choose one with --gpu I"):
        read_trace(path)
    with pytest.raises(TraceError, match=r"no GPU '7'"):
        read_trace(path, gpu=7)
    for choice in (1, "1", "GPU-bb", "GPU-b"):
        assert read_trace(path, gpu=choice).values["power_watts"].tolist() == [2.0]


@pytest.mark.parametrize(
    "text",
    [
        "\ufefftime_s,power_watts\r\n0,1\r\n1,2\r\n",
        "time_s;power_watts\n0,0;1,0\n1,0;2,0\n",
        "time_s;power_watts\n0.0;1.0\n1.0;2.0\n",
        "time_s\tpower_watts\n0\t1\n1\t2\n",
        "\n# a comment without meaning\ntime_s , power_watts\n\n0 , 1\n# another\n1, 2 \n",
        '"time_s","power_watts"\n"0","1"\n"1","2"\n',
        "time_s,power_watts\n0,1\ntime_s,power_watts\n1,2\n",
    ],
)
def test_marks_line_ends_separators_comments_and_quotes_make_no_difference(tmp_path: Path, text: str) -> None:
    trace = read_trace(_file(tmp_path, text))
    assert trace.time_s.tolist() == [0.0, 1.0]
    assert trace.values["power_watts"].tolist() == [1.0, 2.0]
    assert trace.warnings == ()


def test_a_file_that_powershell_redirected_into_utf_16_is_read(tmp_path: Path) -> None:
    trace = read_trace(_file(tmp_path, "time_s,power_watts\r\n0,1\r\n1,2\r\n".encode("utf-16")))
    assert trace.values["power_watts"].tolist() == [1.0, 2.0]


def test_the_files_name_does_not_matter(tmp_path: Path) -> None:
    assert len(read_trace(_file(tmp_path, "time_s,power_watts\n0,1\n", name="x.parquet"))) == 1


def test_comments_written_by_hand_are_attributes(tmp_path: Path) -> None:
    text = "# gpu_model: Tesla T4\n# origin_unix_s: 1000.5\n# made by: me: today\ntime_s,power_watts\n0,1\n"
    trace = read_trace(_file(tmp_path, text))
    assert (trace.gpu_model, trace.origin_unix_s) == ("Tesla T4", 1000.5)
    assert dict(trace.attributes) == {"made by": "me: today"}


def test_an_unknown_column_is_kept_out_with_a_warning_that_names_the_nearest(tmp_path: Path) -> None:
    trace = read_trace(_file(tmp_path, "time_s,power_watts,power_wats,comment\n0,1,2,text\n"))
    assert trace.metrics == ("power_watts",)
    assert trace.warnings == (
        "columns left out, as they are no metrics: 'power_wats' (did you mean power_watts?), 'comment'",
    )


@pytest.mark.parametrize("value", ["-0.1", "950", "2147483632", "140737488355328", "9223372036854775794", "inf"])
def test_sentinels_and_impossible_values_are_missing_and_counted(tmp_path: Path, value: str) -> None:
    trace = read_trace(_file(tmp_path, f"time_s,sm_active\n0,0.5\n1,{value}\n2,{value}\n"))
    assert np.isnan(trace.values["sm_active"][1:]).all()
    assert len(trace.warnings) == 1
    assert "2 values are sentinels or impossible (the first on line 3)" in trace.warnings[0]


@pytest.mark.parametrize(
    ("metric", "values", "says", "unit"),
    [
        ("gpu_utilization", [0, 1, 57, 98, 100, 0, 0, 2], "per cent?", "%"),
        ("gpu_utilization", [0] * 90 + [1] * 6 + [2, 3], "per cent?", "%"),
        ("sm_active", [0.0, 3.5, 4.25, 2.0, 0.5], "per cent?", "%"),
        ("dram_active", [0.9, 0.8, 12.0, 0.2], "per cent?", "%"),
        ("framebuffer_used_bytes", [0, 132, 16280, 40960], "MiB?", "MiB"),
        ("power_watts", [69320, 110450, 250000], "mW?", "mW"),
    ],
)
def test_values_in_another_unit_are_refused_and_read_where_the_header_states_it(
    tmp_path: Path, metric: str, values: list[float], says: str, unit: str
) -> None:
    rows = "\n".join(f"{i},{value}" for i, value in enumerate(values))
    error = _refusal(_file(tmp_path, f"time_s,{metric}\n{rows}\n"))
    assert says in str(error)
    assert f"name the column '{metric} [{unit}]'" in str(error)
    assert error.field == metric
    trace = read_trace(_file(tmp_path, f"time_s,{metric} [{unit}]\n{rows}\n"))
    scale = {"%": 0.01, "MiB": 2.0**20, "mW": 1e-3}[unit]
    assert trace.values[metric] == pytest.approx(np.array(values) * scale)
    assert trace.warnings == (f"{metric} [{unit}]: read in the unit that the header states, as {metric}",)


@pytest.mark.parametrize("header", ["gpu_utilization (%)", "gpu_utilization_percent", "gpu_utilization_pct"])
def test_a_header_says_per_cent_in_several_ways(tmp_path: Path, header: str) -> None:
    trace = read_trace(_file(tmp_path, f"time_s,{header}\n0,57\n1,100\n"))
    assert trace.values["gpu_utilization"].tolist() == [0.57, 1.0]


def test_activity_above_one_here_and_there_is_read_as_it_is(tmp_path: Path) -> None:
    trace = read_trace(_file(tmp_path, "time_s,sm_active\n0,0.5\n1,1.2\n2,0.9\n3,0.8\n"))
    assert trace.values["sm_active"].tolist() == [0.5, 1.2, 0.9, 0.8]


def test_a_clock_in_the_wrong_unit_is_refused(tmp_path: Path) -> None:
    assert "not mhz?" in str(_refusal(_file(tmp_path, "time_s,sm_clock_mhz\n0,1410000\n1,1980000\n")))


@pytest.mark.parametrize(("given", "read_as_s"), [("ms", 0.1), ("s", 100.0)])
def test_times_that_are_most_likely_milliseconds_are_refused_until_the_user_says_so(
    tmp_path: Path, given: str, read_as_s: float
) -> None:
    path = _file(tmp_path, "time_s,power_watts\n0,100\n100,100\n200,100\n301,100\n")
    assert f"--column time_s=time_s:{given}" in str(_refusal(path))
    assert read_trace(path, columns=[f"time_s=time_s:{given}"]).interval_s == pytest.approx(read_as_s)


@pytest.mark.parametrize(("metric", "unit", "expected"), [("power_watts", "kW", 250.0), ("sm_clock_mhz", "GHz", 250.0)])
def test_values_a_thousand_times_too_small_are_refused_until_the_user_says_their_unit(
    tmp_path: Path, metric: str, unit: str, expected: float
) -> None:
    rows = "".join(f"{at},0.25\n" for at in range(30))
    path = _file(tmp_path, f"time_s,{metric}\n{rows}")
    option = f"{metric}={metric}:{unit}"
    assert f"{unit}? No value is larger than 0.25" in str(_refusal(path))
    assert f"--column '{option}'" in str(_refusal(path))
    assert read_trace(path, columns=[option]).values[metric][0] == pytest.approx(expected)


def test_rows_of_two_gpus_in_one_column_are_refused(tmp_path: Path) -> None:
    rows = "".join(f"{at / 10 + gpu * 0.004},{70 + 100 * gpu}\n" for at in range(60) for gpu in (0, 1))
    error = _refusal(_file(tmp_path, f"time_s,power_watts\n{rows}"))
    assert "2 GPUs in one column? Name the GPU of each row in a column gpu_uuid" in str(error)


def test_milliseconds_since_1970_in_time_s_are_refused(tmp_path: Path) -> None:
    error = _refusal(_file(tmp_path, "time_s,power_watts\n1753572729703,1\n1753572729803,2\n"))
    assert "milliseconds? Name the column timestamp" in str(error)


def test_whole_times_far_apart_are_said_to_be_perhaps_milliseconds(tmp_path: Path) -> None:
    trace = read_trace(_file(tmp_path, "time_s,power_watts\n0,100\n120,100\n240,100\n361,100\n"))
    assert trace.warnings == (
        "ticks are 120 s apart; if these are milliseconds, say --column time_s=time_s:ms, or divide by 1000",
    )


def test_a_sentinel_that_could_be_a_number_of_bytes_is_missing_all_the_same(tmp_path: Path) -> None:
    trace = read_trace(_file(tmp_path, "time_s,framebuffer_used_bytes\n0,2147483632\n1,2147483648\n"))
    assert np.isnan(trace.values["framebuffer_used_bytes"][0])
    assert trace.values["framebuffer_used_bytes"][1] == 2147483648.0


@pytest.mark.parametrize("blank", ["", "nan", "NaN"])
def test_nan_and_empty_cells_are_missing_without_a_warning(tmp_path: Path, blank: str) -> None:
    trace = read_trace(_file(tmp_path, f"time_s,power_watts,sm_active\n0,{blank},0\n1,2,0\n"))
    assert np.isnan(trace.values["power_watts"][0])
    assert trace.warnings == ()


def test_words_for_no_value_are_missing_and_counted(tmp_path: Path) -> None:
    trace = read_trace(_file(tmp_path, "time_s,power_watts\n0,N/A\n1,2\n2,null\n"))
    assert np.isnan(trace.values["power_watts"][[0, 2]]).all()
    assert trace.warnings == ("power_watts: 2 values were given as not available; they are missing",)


def test_a_last_row_that_was_cut_is_left_out_with_a_warning(tmp_path: Path) -> None:
    for text in ("time_s,power_watts,sm_active\n0,1,0\n1,2", "time_s,power_watts,sm_active\n0,1,0\n1,2,0.5e"):
        trace = read_trace(_file(tmp_path, text))
        assert trace.time_s.tolist() == [0.0]
        assert "line 3: the last row is incomplete and was left out" in trace.warnings[0]


def test_a_complete_last_row_without_line_end_is_kept_with_a_warning(tmp_path: Path) -> None:
    trace = read_trace(_file(tmp_path, "time_s,power_watts\n0,1\n1,2"))
    assert trace.values["power_watts"].tolist() == [1.0, 2.0]
    assert "line 3" in trace.warnings[0]


def test_a_row_that_was_cut_anywhere_else_is_refused_with_its_line(tmp_path: Path) -> None:
    error = _refusal(_file(tmp_path, "time_s,power_watts\n0,1\n1\n2,3\n"))
    assert error.line == 3
    assert "1 cells, but the header names 2" in str(error)


@pytest.mark.parametrize(
    ("text", "line", "field", "says"),
    [
        ("time_s,power_watts\n0,1\n2,1\n1,1\n", 4, "time_s", "lies before that on line 3"),
        ("time_s,power_watts\n0,1\n1,1\n1,1\n2,1\n", 4, "time_s", "is the same as that on line 3"),
        ("time_s,gpu_uuid,power_watts\n0,a,1\n0,b,1\n1,a,1\n0,b,1\n", 5, "time_s", "of b"),
        ("timestamp,power_watts\n2025-01-01T00:00:01Z,1\n2025-01-01T00:00:00Z,1\n", 3, "timestamp", "sort the file"),
        ("time_s,power_watts\n0,1\n,1\n1,1\n", 3, "time_s", "not a time"),
        ("time_s,power_watts\n0,1\nnan,1\n1,1\n", 3, "time_s", "not a finite time"),
        ("time_s,power_watts\n0,1\n1e400,1\n", 3, "time_s", "not a finite time"),
        ("time_s,power_watts\n0,1\n1,abc\n2,1\n", 3, "power_watts", "'abc' is not a number"),
        ("time_s,power_watts\n0,1\n1,1_0\n2,1\n", 3, "power_watts", "'1_0' is not a number"),
        ("time_s,power_watts\n0,1 %\n", 2, "power_watts", "not a number that can be read as watts"),
        ("timestamp,power_watts\nyesterday,1\n", 2, "timestamp", "no time stamp"),
        ("timestamp,power_watts\n2025-02-30T00:00:00Z,1\n", 2, "timestamp", "no date"),
        ("timestamp,power_watts\n2025-02-03T24:00:00Z,1\n", 2, "timestamp", "no time of day"),
        ("timestamp,power_watts\n9999999999999999999,1\n", 2, "timestamp", "outside of the years"),
        ("timestamp,power_watts\n9999-12-31T00:00:00Z,1\n", 2, "timestamp", "outside of the years"),
        ("time_s,power_watts,power_watts\n0,1,1\n", 1, "power_watts", "there twice"),
        ("time_s,unheard_of\n0,1\n", 1, None, "no column is a metric"),
        ("power_watts,sm_active\n0,1\n", 1, None, "no time column"),
        ("0,1\n1,2\n", 1, None, "put a header line above"),
        ("time_s,power_watts\n", 1, None, "no complete row"),
        ("time_s,power_watts\n0", 1, None, "no complete row"),
        ("time_s,power_watts\n0,1,2\n", 2, None, "3 cells"),
        ('time_s,power_watts\n0,"1\n1,2\n', 2, None, "correct its quotes"),
        ("# gpusonde-trace: {broken\ntime_s,power_watts\n0,1\n", 1, "gpusonde-trace", "damaged metadata"),
        ('# gpusonde-trace: {"attributes": {"a": 1}}\ntime_s,power_watts\n0,1\n', 1, "gpusonde-trace", "attributes"),
        ("# gpusonde-trace: " + "[" * 100_000 + "\ntime_s,power_watts\n0,1\n", 1, "gpusonde-trace", "damaged"),
        ("Dear Sir or Madam,\n\nplease find enclosed\n", 1, None, "not a trace"),
        ("\n\n# nothing\n", None, None, "no header line"),
        ("", None, None, "empty"),
    ],
)
def test_bad_input_is_refused_with_its_line_and_field(
    tmp_path: Path, text: str, line: int | None, field: str | None, says: str
) -> None:
    error = _refusal(_file(tmp_path, text))
    assert (error.line, error.field) == (line, field)
    assert says in str(error)


@pytest.mark.parametrize(
    ("content", "line", "says"),
    [
        (b"time_s,power_watts\n0,1\n1,\xff\n", 3, "not UTF-8 text"),
        (b"time_s,power_watts\n0,1\n\0\0\0\0\n", 3, "NUL"),
        (bytes(range(256)) * 10, 2, "not UTF-8 text"),
        (b"time_s,power_watts\n0,1\n" + b"9" * 3_000_000 + b"\n", 3, "a line of more than"),
        (b"x" * 3_000_000, 1, "a line of more than"),
        ("time_s,power_watts\n0,1\n".encode("utf-16")[:-1], 2, "not UTF-16 text"),
    ],
)
def test_a_file_that_is_no_text_is_refused_with_its_line(tmp_path: Path, content: bytes, line: int, says: str) -> None:
    error = _refusal(_file(tmp_path, content))
    assert error.line == line
    assert says in str(error)


def test_a_bad_byte_far_into_a_large_file_is_named_by_its_line(tmp_path: Path) -> None:
    rows = b"".join(b"%d,1\n" % i for i in range(300_000))
    error = _refusal(_file(tmp_path, b"time_s,power_watts\n" + rows + b"300000,\xe9\n300001,1\n"))
    assert error.line == 300_002


def test_lines_are_counted_across_the_blocks_in_which_a_file_is_read(tmp_path: Path) -> None:
    rows = b"".join(b"%d,%d\n" % (i, i % 700) for i in range(300_000))
    trace = read_trace(_file(tmp_path, b"time_s,power_watts\n" + rows))
    assert np.array_equal(trace.time_s, np.arange(300_000.0))
    assert np.array_equal(trace.values["power_watts"], np.arange(300_000) % 700)
    assert _refusal(_file(tmp_path, b"time_s,power_watts\n" + rows + b"300000,x\n300001,1\n")).line == 300_002


def test_a_file_over_the_size_limit_is_refused(tmp_path: Path) -> None:
    path = _file(tmp_path, "time_s,power_watts\n0,1\n1,2\n")
    with pytest.raises(TraceFormatError, match="more than the limit of 10"):
        read_traces(path, max_bytes=10)


def test_a_file_that_gzip_compressed_is_read_up_to_the_size_limit(tmp_path: Path) -> None:
    packed = gzip.compress(b"time_s,power_watts\n0,100\n1,200\n")
    path = _file(tmp_path, packed, "t.csv.gz")
    assert read_trace(path).values["power_watts"].tolist() == [100.0, 200.0]
    assert "damaged or was cut" in str(_refusal(_file(tmp_path, packed[:-9], "cut.gz")))
    assert "empty" in str(_refusal(_file(tmp_path, gzip.compress(b""), "empty.gz")))
    bomb = _file(tmp_path, gzip.compress(b"time_s,power_watts\n" + b"0,100\n" * 100_000), "bomb.gz")
    with pytest.raises(TraceFormatError, match="when unpacked"):
        read_trace(bomb, max_bytes=100_000)


def test_what_is_no_regular_file_is_refused_without_waiting(tmp_path: Path) -> None:
    import os

    os.mkfifo(tmp_path / "fifo")
    assert "not a regular file" in str(_refusal(tmp_path / "fifo"))
    assert "not a regular file" in str(_refusal(tmp_path))
    with pytest.raises(FileNotFoundError):
        read_traces(tmp_path / "missing.csv")


def test_ticks_of_a_sampler_that_caught_up_within_one_millisecond_are_merged(tmp_path: Path) -> None:
    times = [*np.arange(0.0, 5.0, 0.1).round(3).tolist(), 5.3, 5.3, 5.3, 5.4, 5.5]
    text = "time_s,power_watts\n" + "".join(f"{time},{i}\n" for i, time in enumerate(times))
    trace = read_trace(_file(tmp_path, text))
    assert trace.time_s.tolist() == sorted(set(times))
    assert trace.values["power_watts"].tolist() == [*range(50), 52, 53, 54]
    assert trace.warnings[0].startswith("2 ticks have the time of the tick after them")


def test_a_few_repeated_times_are_merged_with_a_warning_wherever_they_stand(tmp_path: Path) -> None:
    times = np.arange(0.0, 10.0, 0.1).round(3).tolist()
    for place in (0, 60, 99):
        times.insert(place, times[place])
    trace = read_trace(_file(tmp_path, "time_s,power_watts\n" + "".join(f"{time},1\n" for time in times)))
    assert trace.time_s.tolist() == sorted(set(times))
    assert trace.warnings[0].startswith("3 ticks have the time of the tick after them, the first of them on line 2")


def test_many_repeated_times_are_refused_with_the_first_line(tmp_path: Path) -> None:
    times = np.arange(0.0, 10.0, 0.1).round(3).tolist()
    for place in (20, 40, 60, 80):
        times.insert(place, times[place])
    error = _refusal(_file(tmp_path, "time_s,power_watts\n" + "".join(f"{time},1\n" for time in times)))
    assert (error.line, error.field) == (23, "time_s")


def test_time_stamps_of_whole_seconds_at_ten_ticks_a_second_are_refused(tmp_path: Path) -> None:
    text = "timestamp,power_watts\n" + "".join(f"{1_700_000_000 + i // 10},1\n" for i in range(500))
    assert _refusal(_file(tmp_path, text)).line == 3


def test_more_traces_than_any_file_holds_are_refused(tmp_path: Path) -> None:
    rows = "".join(f"0,g{i},1\n" for i in range(65_537))
    assert "different GPUs" in str(_refusal(_file(tmp_path, "time_s,gpu_uuid,power_watts\n" + rows)))


@pytest.mark.parametrize(
    ("option", "value"), [("gpus", 0), ("gpus", 65), ("interval_s", 0.0), ("interval_s", float("nan"))]
)
def test_options_out_of_range_are_refused(tmp_path: Path, option: str, value: float) -> None:
    with pytest.raises(ValueError, match=option):
        read_traces(_file(tmp_path, "time_s,power_watts\n0,1\n"), **{option: value})  # type: ignore[arg-type]


def test_options_that_do_not_apply_are_said(tmp_path: Path) -> None:
    trace = read_trace(_file(tmp_path, "time_s,power_watts\n0,1\n"), gpus=1, interval_s=0.1)
    assert trace.warnings == (
        "gpus was not used: the rows of a CSV file name their GPUs",
        "interval_s was not used: the rows of a CSV file have times",
    )
