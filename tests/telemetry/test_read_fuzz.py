"""Whatever a file holds, reading it ends in traces or in an error of ours."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.nvidia_smi_log import log, schedule

from gpusonde.telemetry import Trace, TraceError, read_traces, write_trace

_DMON = "#Entity   GPUTL   SMACT\nID\n" + "GPU 0     98      0.951\nGPU 1     97      N/A\n" * 20
_TRACE = Trace(
    np.arange(40) * 0.1,
    {"power_watts": np.linspace(60, 300, 40), "sm_active": np.linspace(0, 1, 40)},
    gpu_uuid="GPU-1",
    gpu_model="Tesla T4",
    origin_unix_s=1.5e9,
    attributes={"a": "b"},
)


def _read(folder: Path, content: bytes) -> None:
    path = folder / "f"
    path.write_bytes(content)
    said = ""
    try:
        traces = read_traces(path)
    except TraceError as error:
        traces, said = [], str(error)
    assert traces or str(path) in said
    assert len(said) < 2_000
    assert all(len(trace) > 0 for trace in traces)


def _valid(folder: Path) -> dict[str, bytes]:
    write_trace(_TRACE, folder / "t.csv")
    files = {
        "csv": (folder / "t.csv").read_bytes(),
        "stamps": b"timestamp;gpu_uuid;sm_active\n"
        + b"".join(b'2025-07-26T23:32:%02d,5Z;"a;%d";0,5\n' % (i, i % 2) for i in range(30)),
        "nvidia-smi": log(schedule(3, 15)).encode(),
        "dcgmi": _DMON.encode(),
        "utf-16": log(schedule(2, 15)).encode("utf-16"),
    }
    pytest.importorskip("pyarrow")
    write_trace(_TRACE, folder / "t.parquet")
    return files | {"parquet": (folder / "t.parquet").read_bytes()}


@settings(max_examples=150, deadline=None)
@given(content=st.binary(max_size=400))
@example(b"PAR1PAR1")
@example(b"\xff\xfe")
@example(b"\xef\xbb\xbf")
@example(b"\r\r\r")
@example(b"time_s,power_watts\n" + b"9" * 400 + b",1\n")
@example(b"timestamp,power_watts\n" + b"9" * 5000 + b",1\n")
@example(b"timestamp,power_watts\n2025-13-01T00:00:00." + b"9" * 5000 + b",1\n")
@example(b"timestamp,power_watts\n2025-01-01T24:00:00." + b"9" * 5000 + b",1\n")
@example(b"timestamp,power_watts\n2300-01-01T00:00:00." + b"9" * 5000 + b",1\n")
@example(b"# gpusonde-trace: " + b"9" * 5000 + b"\ntime_s,power_watts\n1,1\n")
@example(b'# gpusonde-trace: {"origin_unix_s": ' + b"9" * 400 + b"}\ntime_s,power_watts\n1,1\n")
@example(b"# origin_unix_s: 1e999\ntime_s,power_watts\n1,1\n")
def test_random_bytes(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    _read(tmp_path_factory.mktemp("f"), content)


@settings(max_examples=150, deadline=None)
@given(
    text=st.text('time_spowra,;\t\n #:-0123456789."GPU%[]WN/A{}', max_size=200),
    prefix=st.sampled_from(
        [
            "",
            "time_s,power_watts\n",
            "timestamp,gpu_uuid,sm_active\n",
            "timestamp, power.draw [W]\n",
            "#Entity SMACT\nID\n",
        ]
    ),
)
def test_random_text_below_a_valid_header(tmp_path_factory: pytest.TempPathFactory, text: str, prefix: str) -> None:
    _read(tmp_path_factory.mktemp("f"), (prefix + text).encode())


@pytest.mark.parametrize("kind", ["csv", "stamps", "nvidia-smi", "dcgmi", "utf-16", "parquet"])
def test_valid_files_with_bytes_changed_removed_repeated_or_cut(tmp_path: Path, kind: str) -> None:
    content = _valid(tmp_path)[kind]
    _read(tmp_path, content)
    dice = random.Random(kind)
    for _ in range(250):
        damaged = bytearray(content)
        for _ in range(dice.choice([1, 1, 2, 8])):
            at, length = dice.randrange(len(damaged)), dice.choice([1, 1, 4, 40])
            match dice.randrange(5):
                case 0:
                    damaged[at] = dice.randrange(256)
                case 1:
                    damaged[at] ^= 1 << dice.randrange(8)
                case 2:
                    del damaged[at : at + length]
                case 3:
                    damaged[at:at] = damaged[at : at + length]
                case _:
                    damaged[at:at] = dice.choice([b"\n", b",", b"-", b"\0", b'"', b"nan", b"1e999", b"\xff", b"#"])
            if len(damaged) < 10:
                break
        if dice.random() < 0.1:
            del damaged[dice.randrange(len(damaged) + 1) :]
        _read(tmp_path, bytes(damaged))


@pytest.mark.parametrize("kind", ["csv", "stamps", "nvidia-smi", "dcgmi"])
def test_files_cut_at_every_byte(tmp_path: Path, kind: str) -> None:
    content = _valid(tmp_path)[kind]
    for end in range(0, len(content), 3):
        _read(tmp_path, content[:end])


_SERIES = {"__name__": "DCGM_FI_DEV_GPU_UTIL", "gpu": "0", "UUID": "GPU-1", "instance": "a:9400"}
_TIMES = [1764811351.25, 1764811352.25, 1764811353.25]
_ANSWER = {"status": "success", "data": {"result": [{"metric": _SERIES, "values": [[at, "5"] for at in _TIMES]}]}}
_EXPORTED = {"metric": _SERIES, "values": [5, None, 7], "timestamps": [round(1000 * at) for at in _TIMES]}
_HISTORY = {
    "metrics": [
        {"key": "system/gpu_0_power_usage_watts", "value": 60.5, "timestamp": round(1000 * at), "step": 0}
        for at in _TIMES
    ]
}
_TICKS = [{"time_s": at, "gpu_index": 0, "power_watts": 60.5} for at in range(3)]
_GPUSTAT = {
    "query_time": "2025-12-04T01:22:31.5",
    "gpus": [{"index": 0, "uuid": "GPU-1", "utilization.gpu": 5, "power.draw": 60}],
}
_DOCUMENTS: list[list[Any]] = [[_ANSWER], [_EXPORTED], [_HISTORY], _TICKS, [_TICKS], [_GPUSTAT]]
_ODD = [None, True, 5, -1, 1e300, "", "word", "nan", "9" * 5_000, [], {}, [[]], [1], {"a": 1}, ["a", None]]


def _json(values: list[Any]) -> bytes:
    return "\n".join(json.dumps(value) for value in values).encode()


def _labelled(**labels: Any) -> bytes:
    result = [{"metric": {**_SERIES, **labels}, "values": [[1, "5"]]}]
    return _json([{"status": "success", "data": {"result": result}}])


@pytest.mark.parametrize(
    "content",
    [
        b"[]",
        b"[] []",
        b"{}",
        b"null",
        _json([_EXPORTED, None]),
        _json([{**_EXPORTED, "metric": "a"}]),
        _json([{**_EXPORTED, "metric": None}]),
        _json([{**_EXPORTED, "timestamps": 5}]),
        _json([{**_EXPORTED, "values": [[], {}, 1]}]),
        _json([{**_EXPORTED, "timestamps": None, "values": None}]),
        _json([{"data": {"result": [1]}}]),
        _json([{"data": {"result": [{"metric": _SERIES, "values": [[1]]}]}}]),
        _json([{"data": {"result": [{"metric": _SERIES, "value": None}]}}]),
        _json([{"data": {"result": [{"metric": _SERIES, "values": [[None, "5"]]}]}}]),
        _json([{"data": {"result": [{"metric": _SERIES, "values": [["a word", "5"]]}]}}]),
        _labelled(UUID={"a": "b"}),
        _labelled(gpu=["a"]),
        _labelled(instance=["a"]),
        _labelled(__name__={}),
        _labelled(GPU_I_ID=[1]),
        _json([_HISTORY, 5]),
        _json([_HISTORY, None]),
        _json([_HISTORY, {"metrics": 5}]),
        _json([{"metrics": []}]),
        _json([_ANSWER, {"data": []}]),
        b"key,value,timestamp\nsystem/gpu_0_power_usage_watts,60,tomorrow\n",
        _json([{"time_s": 0, "gpu_index": "9" * 5_000, "power_watts": 1}]),
        _json([{"time_s": "nan", "power_watts": 1}]),
    ],
)
def test_json_of_another_shape_is_refused_with_what_to_do(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "f"
    path.write_bytes(content)
    try:
        assert all(len(trace) for trace in read_traces(path))
    except TraceError as error:
        said = str(error)
        assert said.startswith(str(path))
        assert "; " in said
        assert len(said) < 2_000


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Return every place of a document: what holds it, and its key."""
    keys = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    return [place for key in keys for place in ((value, key), *_places(value[key]))]


@settings(max_examples=400, deadline=None, derandomize=True)
@given(data=st.data())
def test_json_with_anything_in_any_place(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    values = copy.deepcopy(data.draw(st.sampled_from(_DOCUMENTS)))
    for _ in range(data.draw(st.integers(1, 3))):
        places = _places(values)
        holder, key = places[data.draw(st.integers(0, len(places) - 1))] if places else ([None], 0)
        holder[key] = copy.deepcopy(data.draw(st.sampled_from(_ODD)))
    _read(tmp_path_factory.mktemp("f"), _json(values))


def test_the_documents_that_are_changed_are_traces(tmp_path: Path) -> None:
    for values in _DOCUMENTS:
        (tmp_path / "f").write_bytes(_json(values))
        assert read_traces(tmp_path / "f")
