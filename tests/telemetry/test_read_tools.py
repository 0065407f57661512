"""Files of other tools, each of its own making: the layouts' sources stand in benchmarks/usability/tool_files.py."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gpusonde.telemetry import TraceError, TraceFormatError, read_trace, read_traces
from gpusonde.telemetry.readers.dialects import DIALECTS
from gpusonde.telemetry.readers.read import formats

ROOT = Path(__file__).resolve().parents[2]

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(str(ROOT / "benchmarks" / "usability"))
    import tool_files
    from tool_files import Tick, ticks, write

ONE, TWO = ticks(1.0)[:30], ticks(1.0, 2)[:60]
_UTILIZATION = ("gpu_utilization", lambda tick: tick.utilization / 100)
_POWER = ("power_watts", lambda tick: tick.watts)
_WHOLE_POWER = ("power_watts", lambda tick: float(round(tick.watts)))
_MEMORY = ("framebuffer_used_bytes", lambda tick: tick.mebibytes * 2.0**20)
Expected = tuple[str, Callable[[Tick], float]]


def _read(folder: Path, text: str, **options: Any) -> list[Any]:
    return read_traces(write(folder / "made", text), **options)


@pytest.mark.parametrize("made", [ONE, TWO], ids=["one GPU", "two GPUs"])
@pytest.mark.parametrize(
    ("maker", "expected", "options"),
    [
        (tool_files.query_log, [_UTILIZATION, _POWER, _MEMORY], {}),
        (tool_files.smi_tables, [_UTILIZATION, _WHOLE_POWER, _MEMORY], {}),
        (tool_files.dmon, [_UTILIZATION, _WHOLE_POWER, _MEMORY], {}),
        (lambda made: tool_files.dmon(made, comma=True), [_UTILIZATION, _WHOLE_POWER], {}),
        (lambda made: tool_files.dmon(made, times="T"), [_UTILIZATION, _WHOLE_POWER], {}),
        (lambda made: tool_files.dmon(made, times=""), [_UTILIZATION, _WHOLE_POWER], {"interval_s": 1.0}),
        (tool_files.dcgmi, [_UTILIZATION], {"interval_s": 1.0}),
        (tool_files.prometheus, [_UTILIZATION, _POWER, _MEMORY], {}),
        (tool_files.victoria, [_UTILIZATION, _POWER, _MEMORY], {}),
        (lambda made: tool_files.grafana(made, " W"), [_WHOLE_POWER], {}),
        (tool_files.grafana, [_UTILIZATION], {"columns": ["GPU *=gpu_utilization:percent"]}),
        (tool_files.wandb_events, [_UTILIZATION, _POWER, _MEMORY], {}),
        (tool_files.wandb_jsonl, [_UTILIZATION, _POWER], {}),
        (tool_files.mlflow_csv, [_UTILIZATION, _POWER], {}),
        (tool_files.mlflow_json, [_UTILIZATION], {}),
        (tool_files.nvitop, [_UTILIZATION, _POWER, _MEMORY], {}),
        (tool_files.nvtop, [_UTILIZATION, _WHOLE_POWER], {"interval_s": 1.0}),
        (tool_files.gpustat, [_UTILIZATION, _WHOLE_POWER, _MEMORY], {}),
        (tool_files.zeus_samples, [_POWER], {}),
        (tool_files.dynolog, [_UTILIZATION, _POWER], {}),
        (tool_files.own_lines, [_UTILIZATION, _POWER], {}),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_each_tool_s_file_gives_times_gpus_and_values_in_our_units(
    tmp_path: Path,
    made: list[Tick],
    maker: Callable[[list[Tick]], str],
    expected: list[Expected],
    options: dict[str, Any],
) -> None:
    traces = _read(tmp_path, maker(made), **options)
    assert len(traces) == len({tick.gpu for tick in made})
    for gpu, trace in enumerate(traces):
        own = [tick for tick in made if tick.gpu == gpu]
        assert np.allclose(trace.time_s - trace.time_s[0], np.arange(len(own)), atol=1e-3)
        assert trace.attributes.get("gpu_index") == str(gpu) or maker is tool_files.own_lines
        for metric, value in expected:
            assert np.allclose(trace.values[metric], [value(tick) for tick in own], rtol=1e-5), metric


@pytest.mark.parametrize(
    ("text", "metric", "expected"),
    [
        (tool_files.wandb_chart(ONE), "gpu_utilization", [tick.utilization / 100 for tick in ONE]),
        (tool_files.zeus_power(ONE), "power_watts", [tick.watts for tick in ONE]),
        (tool_files.codecarbon(ONE), "power_watts", [tick.watts for tick in ONE]),
        ("1764811351,57,72\n1764811352,58,73\n", "power_watts", [72.0, 73.0]),
        ("ms,busy\n0,57\n1000,58\n", "gpu_utilization", [0.57, 0.58]),
    ],
    ids=["wandb chart", "zeus", "codecarbon", "no header", "own names"],
)
def test_files_of_one_gpu_and_columns_that_the_user_names(
    tmp_path: Path, text: str, metric: str, expected: list[float]
) -> None:
    columns = {
        "1": ["1=timestamp", "2=gpu_utilization:percent", "3=power_watts:W"],
        "m": ["ms=time_s:ms", "busy=gpu_utilization:percent"],
    }.get(text[0], [])
    trace = read_trace(write(tmp_path / "made", text), columns=columns if text[:2] != "me" else [])
    assert np.allclose(trace.values[metric], expected)
    assert np.allclose(np.diff(trace.time_s), 1.0)


def test_a_query_log_without_a_header_is_refused_with_the_options_that_open_it(tmp_path: Path) -> None:
    path = write(tmp_path / "log", tool_files.query_log(TWO, header=False))
    with pytest.raises(TraceFormatError, match="--column 1=timestamp --column 2=gpu_index") as caught:
        read_traces(path)
    columns = [word for word in str(caught.value).replace(",", "").split() if word[:1].isdigit() and "=" in word]
    traces = read_traces(path, columns=columns)
    assert [trace.gpu_uuid for trace in traces] == ["GPU-0", "GPU-1"]
    assert traces[1].values["gpu_utilization"][3] == TWO[7].utilization / 100
    assert traces[1].values["framebuffer_used_bytes"][3] == TWO[7].mebibytes * 2.0**20


def test_a_query_log_without_times_takes_the_interval_and_the_number_of_gpus(tmp_path: Path) -> None:
    path = write(tmp_path / "log", tool_files.query_log(TWO, fields="power.draw,utilization.gpu"))
    with pytest.raises(TraceFormatError, match="--interval-s"):
        read_traces(path)
    with pytest.raises(TraceFormatError, match="--gpus N"):
        read_traces(path, interval_s=1.0)
    traces = read_traces(path, interval_s=1.0, gpus=2)
    assert [trace.values["power_watts"][0] for trace in traces] == [TWO[0].watts, TWO[1].watts]
    assert traces[0].interval_s == 1.0


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_compressed_files_of_any_kind_are_unpacked(tmp_path: Path, suffix: str) -> None:
    trace = read_trace(write(tmp_path / f"made{suffix}", tool_files.wandb_events(ONE)))
    assert len(trace) == len(ONE)


def test_a_damaged_zstd_file_is_named_so(tmp_path: Path) -> None:
    path = write(tmp_path / "made.zst", tool_files.own_lines(ONE))
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(TraceError):
        read_traces(path)


def test_stdin_is_read_as_a_file_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(tool_files.gpustat(TWO).encode())))
    assert len(read_traces("-")) == 2
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"a,b\n1,2\n")))
    with pytest.raises(TraceFormatError, match=r"^stdin:1: not a trace") as caught:
        read_traces("-")
    assert caught.value.path == "-"


def test_rows_of_mlflow_are_ordered_by_dates_too(tmp_path: Path) -> None:
    rows = "".join(f"system/gpu_0_power_usage_watts,{60 + at},2025-12-04T01:22:0{at}Z\n" for at in (2, 0, 1))
    trace = _read(tmp_path, f"key,value,timestamp\n{rows}")[0]
    assert trace.time_s.tolist() == [0.0, 1.0, 2.0]
    assert trace.values["power_watts"].tolist() == [60.0, 61.0, 62.0]


def test_a_json_file_that_was_cut_is_read_up_to_there(tmp_path: Path) -> None:
    text = tool_files.wandb_jsonl(ONE)
    trace = _read(tmp_path, text[:-40])[0]
    assert len(trace) == len(ONE) - 1
    assert any("was cut there" in warning for warning in trace.warnings)


def _series(**changed: Any) -> str:
    answer = json.loads(tool_files.prometheus(ONE))
    for each in answer["data"]["result"]:
        each["metric"].update(changed)
    return json.dumps(answer)


@pytest.mark.parametrize(
    ("text", "options", "says"),
    [
        ('{"status":"error","errorType":"bad_data","error":"parse error"}', {}, "Prometheus refused: 'parse error'"),
        ('{"status":"success","data":{"resultType":"matrix","result":[]}}', {}, "nothing matches the query"),
        ('{"status":"success","data":{"resultType":"scalar"}}', {}, "without series"),
        (_series(__name__="up"), {}, "same labels"),
        (tool_files.prometheus(ONE).replace("DCGM_FI", "XCGM_FI"), {}, "--column XCGM_FI_DEV_GPU_UTIL=gpu_util"),
        (tool_files.grafana(ONE), {}, "say what the columns are|name the columns with --column"),
        (tool_files.grafana(ONE, "%"), {}, "--column"),
        (tool_files.nvtop(ONE), {}, "--interval-s 1s"),
        (tool_files.dmon(ONE, times=""), {}, "--interval-s 1s"),
        (tool_files.pmon(ONE), {}, "pmon, which tells of processes"),
        ('{"time_s": 0, "power_watts": 1', {}, "JSON that cannot be read"),
        ('{"time_s": "soon", "power_watts": 1}', {}, "'soon' is not a time in seconds"),
        (
            '{"time_s": 0, "power_watts": 1}\n{"time_s": "nan", "power_watts": 1}',
            {},
            "made:2: .*'nan' is not a finite time",
        ),
        (
            "when,load\n0,5\nnan,6\n1,7\n",
            {"columns": ["when=time_s", "load=gpu_utilization:percent"]},
            "not a finite time",
        ),
        (
            "key,value,timestamp\nsystem/gpu_0_power_usage_watts,60,soon\n",
            {},
            "made:2: field 'timestamp': 'soon' is no",
        ),
        ('{"time_s": 0, "power_watts": "much"}', {}, "'much' is not a number"),
        ("[[[[[[[[" * 400, {}, "JSON that cannot be read"),
        ("[1, 2]", {}, "one object per tick"),
        ("{}", {}, "no column"),
        ("+--------------------------+\n| NVIDIA-SMI 570.1 |\n", {}, "no GPU with its values"),
        (
            tool_files.wandb_chart(ONE).replace("__MIN", "").replace("brisk", "bold", 1),
            {},
            "column is there twice|of one GPU",
        ),
        (tool_files.own_csv(ONE), {"columns": ["nowhere=power_watts"]}, "no column is called 'nowhere'"),
    ],
)
def test_what_cannot_be_read_is_refused_with_what_to_do(
    tmp_path: Path, text: str, options: dict[str, Any], says: str
) -> None:
    with pytest.raises(TraceFormatError, match=says):
        _read(tmp_path, text, **options)


@pytest.mark.parametrize(
    ("column", "says"),
    [
        ("util", "not of the form THEIRS=OURS"),
        ("util=gpu_utilisation", "did you mean gpu_utilization"),
        ("util=foo", "neither time_s, timestamp, gpu_uuid, gpu_index, gpu_model, trace_id nor a metric; 'gpusonde m"),
        ("util=gpu_utilization:MiB", "takes one of percent$"),
        ("t=time_s:weeks", "takes one of s, ms"),
    ],
)
def test_a_column_that_cannot_be_understood_is_an_error_of_its_own(tmp_path: Path, column: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        read_traces(tmp_path / "any", columns=[column])


def test_columns_of_a_parquet_file_can_be_named_too(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pytest.importorskip("pyarrow").table(
        {"when": [0.0, 0.5, 1.0], "load": [1.0, None, 57.0], "note": ["a"] * 3}
    )
    parquet.write_table(table, tmp_path / "own.parquet")
    trace = read_trace(tmp_path / "own.parquet", columns=["when=time_s", "load=gpu_utilization:percent"])
    assert trace.time_s.tolist() == [0.0, 1.0]  # a tick without a value is none
    assert trace.values["gpu_utilization"].tolist() == [0.01, 0.57]


@pytest.mark.parametrize("text", [tool_files.dmon(ONE), tool_files.dcgmi(ONE)])
def test_columns_of_logs_whose_columns_are_known_are_not_taken(tmp_path: Path, text: str) -> None:
    with pytest.raises(TraceFormatError, match="are known; leave --column out"):
        _read(tmp_path, text, columns=["sm=gpu_utilization"])


def test_gpus_of_several_hosts_that_have_no_uuid_stay_apart(tmp_path: Path) -> None:
    answer = json.loads(tool_files.prometheus(ONE))
    other = json.loads(tool_files.prometheus(ONE))
    for host, one in (("a:9400", answer), ("b:9400", other)):
        for each in one["data"]["result"]:
            each["metric"] = {"__name__": each["metric"]["__name__"], "gpu": "0", "instance": host}
    answer["data"]["result"] += other["data"]["result"]
    assert [trace.gpu_uuid for trace in _read(tmp_path, json.dumps(answer))] == ["a:9400/GPU-0", "b:9400/GPU-0"]


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("t,load,note\n" + "".join(f"{at},5,a\n" for at in range(500)), {"columns": ["t=time_s", "load=power_watts"]}),
        ("key,value,timestamp\n" + "".join(f"system/gpu_0_x,5,{at}\n" for at in range(500)), {}),
        ("".join(f'{{"time_s": {at}, "power_watts": 5}}\n' for at in range(500)), {}),
        ("".join(f'{{"time_s": {at}, "a{at}": 5}}\n' for at in range(100)), {}),
        (tool_files.prometheus(ticks(0.1)), {}),
    ],
    ids=["table", "long table", "JSON Lines", "a name of its own in each", "Prometheus"],
)
def test_cells_that_take_more_memory_than_the_limit_are_refused(
    tmp_path: Path, text: str, options: dict[str, Any]
) -> None:
    with pytest.raises(TraceFormatError, match=r"bytes in memory, more than the limit of .*; cut the file into parts"):
        _read(tmp_path, text, max_bytes=len(text) + 1, **options)


def test_times_of_day_go_on_after_midnight(tmp_path: Path) -> None:
    text = tool_files.dmon(ONE, times="T")
    for second in range(60):
        text = text.replace(f" 01:22:{second:02d}", f" 23:59:{second:02d}").replace(
            f" 01:23:{second:02d}", f" 00:00:{second:02d}"
        )
    assert np.allclose(np.diff(_read(tmp_path, text)[0].time_s), 1.0)


def test_the_page_lists_every_dialect() -> None:
    page = (ROOT / "docs" / "trace_files.md").read_text(encoding="utf-8")
    assert {dialect.name for dialect in DIALECTS} <= {name for name, *_ in formats()}
    assert all(f"| {name} |" in page for name, *_ in formats())
