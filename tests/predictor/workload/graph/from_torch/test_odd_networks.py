"""What front ends can miss: each network is odd in one way."""

import signal

import pytest

torch = pytest.importorskip("torch", reason="needs torch (extra torch)")

from support import odd_torch_networks as networks  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from gpusonde.errors import UnsupportedGraphError  # noqa: E402
from gpusonde.predictor.workload.graph import Primitive  # noqa: E402
from gpusonde.predictor.workload.graph.cost import count_graph_cost  # noqa: E402
from gpusonde.predictor.workload.graph.graph_json import dump_graph, load_graph  # noqa: E402
from gpusonde.predictor.workload.graph.torch import export, from_torch, fx  # noqa: E402
from gpusonde.predictor.workload.graph.torch.fx import read_mode  # noqa: E402


def states(*shape):
    return torch.zeros(shape, device="meta")


def masked_encoder():
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), 2)


NETWORKS = {
    "writes unread": (networks.WritesUnread, (states(2, 8),), {}),
    "writes a buffer": (networks.WritesBuffer, (states(2, 8),), {}),
    "keeps tensors": (networks.KeepsTensors, (states(2, 8),), {}),
    "picks elements": (networks.PicksElements, (states(2, 3, 6, 6),), {}),
    "composite": (networks.Composite, (states(2, 4, 6, 6),), {}),
    "empty parts": (networks.EmptyParts, (states(2, 8),), {}),
    "sums": (networks.Sums, (states(2, 6, 8),), {}),
    "one by one": (networks.OneByOne, (states(2, 8),), {}),
    "returns an object": (networks.ReturnsObject, (torch.zeros((2, 3), dtype=torch.long, device="meta"),), {}),
    "adapted": (networks.Adapted, (states(2, 8),), {}),
    "masked encoder": (masked_encoder, (states(2, 5, 32),), {"mask": states(5, 5)}),
}


def on_meta(build):
    with torch.device("meta"):
        return build()


def primitives(graph):
    return [each.primitive for each in graph.operations]


@pytest.mark.parametrize("name", NETWORKS)
def test_parameters_and_flops_are_exact_and_the_text_is_read_again(name):
    build, example, keywords = NETWORKS[name]
    module = on_meta(build)
    graph = from_torch(module, example, keywords=keywords)
    with read_mode(module), FlopCounterMode(display=False) as counter:
        module(*example, **keywords)
    assert count_graph_cost(graph).total.matrix_flops == counter.get_total_flops()
    assert graph.parameter_count == sum(each.numel() for each in module.parameters())
    assert graph.notes == ()
    assert load_graph(dump_graph(graph)) == graph


@pytest.mark.parametrize("name", ["writes unread", "writes a buffer", "picks elements", "adapted", "empty parts"])
def test_fx_misses_nothing_that_export_sees(name):
    build, example, _ = NETWORKS[name]
    module = on_meta(build)
    with read_mode(module):
        traced = fx.trace(module, example, {}, name=name, batch_size=2)
        exported = export.export(module, example, {}, name=name, batch_size=2)
    assert traced.edges == exported.edges
    assert [(each.primitive, each.output, each.inputs) for each in traced.operations] == [
        (each.primitive, each.output, each.inputs) for each in exported.operations
    ]


def test_what_an_operator_returns_as_one_is_all_read():
    graph = from_torch(on_meta(networks.ReturnsParts), (states(2, 5, 8),))
    assert graph.front_end == "fx"
    joined = next(each for each in graph.operations if each.primitive is Primitive.CONCATENATION)
    assert joined.inputs == ((2, 5, 4), (2, 5, 4))
    assert graph.operations[-1].inputs == ((4, 5, 4), (1, 2, 8), (1, 2, 8))


def test_fx_leaves_functions_written_in_python_to_export():
    module = on_meta(networks.Composite)
    with pytest.raises(UnsupportedGraphError, match="does not look into Conv2d"), read_mode(module):
        fx.trace(module, (states(2, 4, 6, 6),), {}, name="composite", batch_size=2)


def test_what_a_network_assigns_while_it_is_read_is_undone():
    module = networks.KeepsTensors()
    from_torch(module, torch.zeros(2, 8))
    assert (module.last, module.kept, module.history) == (None, {}, [])
    assert torch.equal(module.mean, torch.zeros(8))
    assert set(dict(module.named_buffers())) == {"mean"}
    assert module(torch.zeros(2, 8)).shape == (2, 8)


def test_tensors_without_elements_are_no_operations():
    graph = from_torch(on_meta(networks.EmptyParts), (states(2, 8),))
    assert primitives(graph) == [Primitive.INPUT, Primitive.LINEAR, Primitive.CONCATENATION, Primitive.OUTPUT]
    assert graph.operations[2].inputs == ((2, 8),)


def test_an_empty_example_is_refused():
    with pytest.raises(UnsupportedGraphError, match="at least one sample"):
        from_torch(nn.Linear(8, 4), torch.zeros(0, 8), batch_size=1)


class Alarm(Exception):
    """What a caller raises when its time is up."""


@pytest.mark.parametrize(
    "read", [from_torch, lambda module, example: export.export(module, (example,), {}, name="x", batch_size=1)]
)
def test_a_caller_s_time_limit_is_not_taken_for_a_fault_of_the_network(read):
    class Slow(torch.nn.Module):
        def forward(self, x):
            signal.raise_signal(signal.SIGUSR1)
            return x + 1

    def interrupt(*_):
        raise Alarm

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with pytest.raises(Alarm):
            read(Slow(), torch.empty(1, 3))
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_time_that_is_up_is_told_as_that_also_while_a_network_is_built():
    def slow():
        raise TimeoutError("up")

    with pytest.raises(TimeoutError):
        export.build(slow)
    with pytest.raises(UnsupportedGraphError, match="building the network failed: KeyError"):
        export.build(lambda: {}["network"])
