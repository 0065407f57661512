"""Both front ends on small networks that are hard in one way each."""

import pytest

torch = pytest.importorskip("torch", reason="needs torch (extra torch)")

from support import torch_networks as networks  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from gpusonde.errors import DataDependentGraphError, UnsupportedGraphError  # noqa: E402
from gpusonde.predictor.workload.graph import Primitive  # noqa: E402
from gpusonde.predictor.workload.graph.cost import count_graph_cost  # noqa: E402
from gpusonde.predictor.workload.graph.torch import export, from_torch, fx  # noqa: E402
from gpusonde.predictor.workload.graph.torch.fx import read_mode  # noqa: E402


def tokens(*shape):
    return torch.zeros(shape, dtype=torch.long, device="meta")


def states(*shape):
    return torch.zeros(shape, device="meta")


def encoder_of_torch():
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), 2)


NETWORKS = {
    "decoder": (networks.Decoder, (tokens(2, 7),)),
    "encoder": (networks.Encoder, (tokens(2, 7), tokens(2, 7))),
    "masked encoder": (networks.Encoder, (tokens(2, 7), tokens(2, 7), states(2, 7))),
    "transformer encoder": (encoder_of_torch, (states(2, 5, 32),)),
    "transformer": (lambda: nn.Transformer(32, 4, 2, 2, 64, batch_first=True), (states(2, 5, 32), states(2, 6, 32))),
    "attention with weights": (lambda: nn.MultiheadAttention(32, 4, batch_first=True), (states(2, 5, 32),) * 3),
    "upscaler": (networks.Upscaler, (states(2, 3, 16, 16),)),
    "by shape": (networks.ByShape, (states(2, 3, 8),)),
    "lstm with projections": (lambda: nn.LSTM(8, 16, 2, proj_size=4), (states(5, 2, 8),)),
    "one dimension": (
        lambda: nn.Sequential(nn.Conv1d(4, 8, 3), nn.InstanceNorm1d(8, affine=True), nn.PReLU(8), nn.MaxPool1d(2)),
        (states(2, 4, 16),),
    ),
    "three dimensions": (
        lambda: nn.Sequential(nn.Conv3d(3, 8, 3), nn.BatchNorm3d(8), nn.ReLU6(), nn.AdaptiveAvgPool3d(1), nn.Flatten()),
        (states(2, 3, 8, 8, 8),),
    ),
    "computed weight": (
        lambda: nn.utils.parametrizations.weight_norm(nn.Conv2d(4, 4, 3)),
        (states(2, 4, 5, 5),),
    ),
}


def on_meta(build):
    with torch.device("meta"):
        return build()


def primitives(graph):
    return [each.primitive for each in graph.operations]


@pytest.mark.parametrize("name", NETWORKS)
def test_parameters_and_flops_are_exact(name):
    build, example = NETWORKS[name]
    module = on_meta(build)
    graph = from_torch(module, example)
    with read_mode(module), FlopCounterMode(display=False) as counter:
        module(*example)
    assert graph.parameter_count == sum(each.numel() for each in module.parameters())
    assert count_graph_cost(graph).total.matrix_flops == counter.get_total_flops()
    assert graph.notes == ()
    assert Primitive.OTHER not in primitives(graph)


@pytest.mark.parametrize("name", ["encoder", "masked encoder", "upscaler", "one dimension", "three dimensions"])
def test_both_front_ends_make_the_same_graph(name):
    build, example = NETWORKS[name]
    module = on_meta(build)
    with read_mode(module):
        traced = fx.trace(module, example, {}, name=name, batch_size=2)
        exported = export.export(module, example, {}, name=name, batch_size=2)
    assert (traced.front_end, exported.front_end) == ("fx", "export")
    assert traced.edges == exported.edges
    for one, other in zip(traced.operations, exported.operations, strict=True):
        assert (one.primitive, one.output, one.inputs, one.weight, one.parameters, one.groups) == (
            other.primitive,
            other.output,
            other.inputs,
            other.weight,
            other.parameters,
            other.groups,
        )


@pytest.mark.parametrize("name", ["decoder", "transformer encoder", "upscaler"])
def test_weights_on_the_cpu_or_on_no_device_make_the_same_graph(name):
    build, example = NETWORKS[name]
    without = from_torch(on_meta(build), example)
    with_weights = from_torch(build(), tuple(torch.zeros_like(each, device="cpu") for each in example))
    assert with_weights == without


def test_a_graph_costs_in_proportion_to_the_batch_it_was_taken_with():
    one, many = (from_torch(on_meta(networks.Decoder), (tokens(batch, 7),)) for batch in (1, 6))
    predicted, real = count_graph_cost(one).at(6), count_graph_cost(many).total
    assert (predicted.matrix_flops, predicted.elementwise_flops) == (real.matrix_flops, real.elementwise_flops)
    assert (predicted.weight_bytes, predicted.output_bytes) == (real.weight_bytes, real.output_bytes)
    assert predicted.input_bytes == pytest.approx(real.input_bytes, rel=0.02)  # positions are shared by all samples


def test_a_weight_in_two_places_is_counted_once():
    graph = from_torch(on_meta(networks.Decoder), (tokens(2, 7),))
    owners = [each for each in graph.operations if any(one.name == "tokens.weight" for one in each.parameters)]
    assert [each.primitive for each in owners] == [Primitive.LOOKUP]
    assert graph.operations[-2].weight == (100, 32)


def test_recurrent_layers_are_one_operation_each_and_cost_all_their_matrices():
    graph = from_torch(on_meta(networks.Tagger), (tokens(2, 7),))
    lstm = 2 * (80 * (10 + 20) + 80 * (40 + 20))
    gru = 36 * (40 + 12)
    assert primitives(graph).count(Primitive.RECURRENT) == 2
    assert count_graph_cost(graph, [Primitive.RECURRENT]).total.matrix_flops == 2 * 2 * 7 * (lstm + gru)
    assert graph.parameter_count == sum(each.numel() for each in networks.Tagger().parameters())


def test_the_batch_need_not_come_first():
    graph = from_torch(on_meta(lambda: nn.LSTM(8, 16)), (states(5, 2, 8),), batch_size=2)
    assert graph.batch_size == 2


def test_an_example_without_a_tensor_needs_a_batch_size():
    with pytest.raises(UnsupportedGraphError, match="batch_size"):
        from_torch(nn.Linear(2, 2), ())


def test_dropout_and_views_are_contracted():
    module = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Unflatten(1, (2, 4)), nn.Flatten(), nn.ReLU())
    graph = from_torch(module, torch.zeros(2, 8))
    assert primitives(graph) == [Primitive.INPUT, Primitive.LINEAR, Primitive.ACTIVATION, Primitive.OUTPUT]
    assert graph.edges == ((0, 1), (1, 2), (2, 3))


def test_a_graph_within_the_graph_is_looked_into():
    class WithGradients(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.other = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, found):
            found = self.one(found) if found.shape[0] > 1 else found
            with torch.enable_grad():
                return self.other(found)

    graph = from_torch(WithGradients(), torch.zeros(2, 4))
    assert primitives(graph) == [Primitive.INPUT, Primitive.LINEAR, Primitive.LINEAR, Primitive.OUTPUT]
    assert graph.edges == ((0, 1), (1, 2), (2, 3))


@pytest.mark.parametrize(
    "build",
    [networks.ByData, networks.LoopByData, networks.SizeByData, networks.Branch],
    ids=lambda each: each.__name__,
)
def test_what_depends_on_the_values_of_the_data_has_no_single_graph(build, capfd):
    with pytest.raises(DataDependentGraphError, match="there is no single graph"):
        from_torch(build(), torch.zeros(2, 4))
    assert capfd.readouterr() == ("", "")


def test_an_example_that_the_network_cannot_take_says_what_to_check():
    with pytest.raises(UnsupportedGraphError, match=r"Check that network\(\*example\) runs"):
        from_torch(nn.Linear(4, 4), torch.zeros(2, 5))


@pytest.mark.parametrize(
    ("module", "said"), [(nn.LazyLinear(4), "call the network once"), (torch.relu, "torch.nn.Module is needed")]
)
def test_what_has_no_shapes_is_refused(module, said):
    with pytest.raises(UnsupportedGraphError, match=said):
        from_torch(module, torch.zeros(2, 5))


def test_heads_that_only_training_runs_are_in_the_graph_and_in_its_notes():
    graph = from_torch(networks.WithAuxiliaryHead(), torch.zeros(2, 8))
    assert primitives(graph).count(Primitive.LINEAR) == 3
    assert graph.parameter_count == 72 + 18 + 18
    assert graph.notes == (
        "taken as in training: 18 trainable numbers are used only there (auxiliary.weight, auxiliary.bias)",
        "7 trainable numbers of the network are never used (forgotten)",
    )


def test_unknown_operators_are_counted_as_elementwise_and_named():
    class Odd(nn.Module):
        def forward(self, found):
            return torch.special.bessel_j0(found)

    graph = from_torch(Odd(), torch.zeros(2, 4))
    assert primitives(graph) == [Primitive.INPUT, Primitive.OTHER, Primitive.OUTPUT]
    assert graph.notes == ("unknown operators, counted as elementwise: aten::special_bessel_j0 (1)",)


def test_the_module_is_left_as_it_was():
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout())
    module[1].eval()
    fused = torch.backends.mha.get_fastpath_enabled()
    before = {name: each.clone() for name, each in module.state_dict().items()}
    from_torch(module, torch.ones(2, 4))
    assert [each.training for each in module] == [True, False, True]
    assert torch.backends.mha.get_fastpath_enabled() is fused
    assert all(torch.equal(each, module.state_dict()[name]) for name, each in before.items())
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("wrap", [nn.DataParallel, torch.compile])
def test_a_wrapped_network_is_the_network_inside(wrap):
    module = nn.Linear(4, 2)
    assert from_torch(wrap(module), torch.zeros(3, 4)) == from_torch(module, torch.zeros(3, 4))


def test_networks_may_take_and_return_collections():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 2)

        def forward(self, pair, options):
            return {"sum": self.linear(pair[0]) + options["bias"], "other": pair[1]}

    graph = from_torch(Named(), ([torch.zeros(3, 4), torch.zeros(3, 5)], {"bias": torch.zeros(2)}), batch_size=3)
    assert primitives(graph).count(Primitive.INPUT) == 3
    assert graph.operations[-1].inputs == ((3, 2), (3, 5))


def test_frozen_weights_and_buffers_are_no_inputs():
    class Fixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4).requires_grad_(False)
            self.register_buffer("table", torch.zeros(4, 4))

        def forward(self, found):
            return self.linear(found) @ self.table

    graph = from_torch(Fixed(), torch.zeros(3, 4))
    assert primitives(graph) == [Primitive.INPUT, Primitive.LINEAR, Primitive.LINEAR, Primitive.OUTPUT]
    assert graph.parameter_count == 20
    assert count_graph_cost(graph).total.matrix_flops == 2 * 2 * 3 * 4 * 4


def test_inputs_can_be_given_by_name():
    graph = from_torch(
        on_meta(networks.Encoder), (tokens(2, 7),), keywords={"segments": tokens(2, 7), "mask": states(2, 7)}
    )
    assert primitives(graph).count(Primitive.INPUT) == 3
