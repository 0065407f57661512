"""What strangers send is refused within a second, with the reason, and nothing in it runs."""

from __future__ import annotations

import contextlib
import resource
import time
from pathlib import Path

import pytest
from support.hostile_graphs import HOSTILE, MARKER, json_graph, pt2, small_onnx, with_pickle

from gpusonde.errors import GraphError, MalformedGraphError
from gpusonde.predictor.workload.graph.reading import read_graph

_MOST_MEMORY_KIB = 600 << 10


@pytest.mark.parametrize("name", HOSTILE)
def test_it_is_refused_within_a_second(name: str) -> None:
    hostile = HOSTILE[name]
    MARKER.unlink(missing_ok=True)
    data = hostile.make()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.process_time()
    with pytest.raises(hostile.refusal) as refused:
        read_graph(data)
    took_s = time.process_time() - started
    assert took_s < 1
    assert not MARKER.exists()
    assert 0 < len(str(refused.value)) < 1000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < _MOST_MEMORY_KIB


@pytest.mark.parametrize("name", HOSTILE)
def test_it_is_refused_when_its_format_is_named_too(name: str) -> None:
    hostile = HOSTILE[name]
    with pytest.raises(GraphError):
        read_graph(hostile.make(), hostile.format)


@pytest.mark.parametrize("make", [json_graph, small_onnx, pt2])
def test_what_hostile_files_are_made_from_is_sound(make: object) -> None:
    graph = read_graph(make())  # type: ignore[operator]
    assert [each.primitive.value for each in graph.operations][:2] == ["input", "linear"]
    assert graph.parameter_count == 32


@pytest.mark.parametrize(
    "entry", ["data/sample_inputs/model.pt", "data/constants/custom_obj_0", "data/weights/weight_0", "x.pkl"]
)
def test_a_pickle_in_an_archive_is_not_loaded_but_named(entry: str, tmp_path: Path) -> None:
    marker = tmp_path / "executed"
    with pytest.raises(MalformedGraphError, match=r"would call 'posix.system'"):
        read_graph(with_pickle(pt2(), marker, entry))
    assert not marker.exists()


def test_that_torch_would_run_it_is_why(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    sound, evil, marker = tmp_path / "sound.pt2", tmp_path / "evil.pt2", tmp_path / "executed"
    program = torch.export.export(torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU()), (torch.zeros(1, 8),))
    torch.export.save(program, sound)
    evil.write_bytes(with_pickle(sound.read_bytes(), marker))
    assert read_graph(sound).parameter_count == 36
    with pytest.raises(MalformedGraphError, match="attack"):
        read_graph(evil)
    assert not marker.exists()
    # What the pickle returns is no input, so that loading may fail; by then it has run.
    with contextlib.suppress(Exception):
        torch.export.load(evil)
    assert marker.exists()
