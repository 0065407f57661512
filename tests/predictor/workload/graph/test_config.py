"""Graphs of transformers from their configurations: parameters as published, work as counted, nothing run."""

from __future__ import annotations

import json

import pytest

from gpusonde.catalog import Precision
from gpusonde.errors import GraphLimitError, MalformedGraphError, UnsupportedGraphError
from gpusonde.predictor.workload.engine import Cluster, WorkloadModel, WorkloadRequest
from gpusonde.predictor.workload.engine.feature_counts import GraphCounts, OperationClass
from gpusonde.predictor.workload.graph import Primitive, count_graph_cost, dump_graph, load_graph
from gpusonde.predictor.workload.graph.config import from_config
from gpusonde.predictor.workload.graph.reading import read_graph

LLAMA = {
    "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256, "max_position_embeddings": 8192,
}  # fmt: skip
GPT2 = {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024, "vocab_size": 50257}
BERT = {
    "model_type": "bert", "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16,
    "intermediate_size": 4096, "vocab_size": 30522, "max_position_embeddings": 512,
}  # fmt: skip
MIXTRAL = {**LLAMA, "model_type": "mixtral", "vocab_size": 32000, "num_local_experts": 8, "num_experts_per_tok": 2}


@pytest.mark.parametrize(
    ("config", "parameters"),
    # As the models' authors count them; BERT's without the three tables and biases that no operation here has.
    [(LLAMA, 8_030_261_248), (GPT2, 124_439_808), (BERT, 335_000_000), (MIXTRAL, 46_702_792_704)],
)
def test_parameters_are_those_of_the_model(config, parameters):
    graph = from_config(config, sequence_length=128)
    assert graph.parameter_count == pytest.approx(parameters, rel=3e-3)
    assert load_graph(dump_graph(graph)) == graph


def test_products_are_six_operations_per_parameter_and_token_in_a_step():
    graph = from_config(LLAMA, sequence_length=1)
    table = LLAMA["vocab_size"] * LLAMA["hidden_size"]
    assert count_graph_cost(graph).total.matrix_flops == pytest.approx(2 * (graph.parameter_count - table), rel=0.01)
    counts = GraphCounts.of(graph)
    linear = counts.flops(1)[counts.classes == OperationClass.LINEAR].sum()
    assert linear == pytest.approx(6 * (graph.parameter_count - table), rel=0.01)


def test_two_of_eight_experts_work_and_all_are_read():
    dense = count_graph_cost(from_config({**MIXTRAL, "num_local_experts": 1}, sequence_length=64)).total
    routed = count_graph_cost(from_config(MIXTRAL, sequence_length=64)).total
    assert 1.6 < routed.matrix_flops / dense.matrix_flops < 2.0
    assert 5 < routed.weight_bytes / dense.weight_bytes < 8


def test_adapters_train_few_weights_and_save_the_gradients_of_all_others():
    whole = from_config(LLAMA, sequence_length=2048)
    adapted = from_config(LLAMA, sequence_length=2048, lora_rank=16)
    assert (adapted.parameter_count, whole.frozen_count) == (13_631_488, 0)
    assert adapted.frozen_count == pytest.approx(whole.parameter_count, rel=1e-3)
    model = WorkloadModel.shipped()
    cluster = Cluster("A100-SXM4-80GB", precision=Precision.MIXED)
    full, lora = model.predict([WorkloadRequest(each, 1, cluster) for each in (whole, adapted)])
    assert 0.55 < lora.seconds / full.seconds < 0.9
    assert lora.memory.need.weights_bytes == pytest.approx(2 * whole.parameter_count, rel=0.02)
    assert lora.memory.need.total_bytes < 0.5 * full.memory.need.total_bytes


def test_separate_attention_writes_its_scores():
    fused, eager = (
        from_config({**GPT2, **extra}, sequence_length=512) for extra in ({}, {"_attn_implementation": "eager"})
    )
    assert sum(each.primitive is Primitive.ATTENTION for each in fused.operations) == 12
    assert sum(each.primitive is Primitive.MATRIX_PRODUCT for each in eager.operations) == 24
    costs = [count_graph_cost(each).total for each in (fused, eager)]
    assert costs[0].matrix_flops == costs[1].matrix_flops
    assert costs[1].output_bytes > 1.5 * costs[0].output_bytes


def test_longer_sequences_cost_more_per_token():
    short, long = (count_graph_cost(from_config(GPT2, sequence_length=each)).total for each in (128, 1024))
    assert long.matrix_flops > 8.5 * short.matrix_flops


def test_tokens_are_counted_of_sequences_only():
    request = WorkloadRequest(from_config(GPT2, sequence_length=256), 4, Cluster("T4"))
    assert request.tokens == 1024


def test_a_file_is_read_without_running_anything():
    graph = read_graph(json.dumps(GPT2).encode(), name="mine")
    assert (graph.name, graph.front_end, graph.operations[0].output) == ("mine", "config", (1, 1024))


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        ({"model_type": "t5"}, UnsupportedGraphError, "known of"),
        ({"model_type": ["llama"]}, UnsupportedGraphError, "known of"),
        ({"text_config": {}}, UnsupportedGraphError, "several parts"),
        ({"num_hidden_layers": None}, MalformedGraphError, "num_hidden_layers is None"),
        ({"num_hidden_layers": True}, MalformedGraphError, "num_hidden_layers is True"),
        ({"hidden_size": -1}, MalformedGraphError, "hidden_size is -1"),
        ({"head_dim": "128"}, MalformedGraphError, "head_dim is '128'"),
        ({"hidden_size": 10**15}, MalformedGraphError, "from 1 to 2147483647"),
        ({"num_attention_heads": 7, "num_key_value_heads": 7}, MalformedGraphError, "no multiple of 7 heads"),
        ({"num_key_value_heads": 3}, MalformedGraphError, "cannot share 3 heads"),
        ({"num_local_experts": 4, "num_experts_per_tok": 9}, MalformedGraphError, "9 of 4 experts"),
        ({"num_hidden_layers": 1_000_000}, GraphLimitError, "operations"),
        ({"vocab_size": (1 << 31) - 1, "hidden_size": 1 << 20}, GraphLimitError, "elements"),
    ],
)
def test_rubbish_is_refused_with_the_reason(change, error, said):
    with pytest.raises(error, match=said):
        from_config({**LLAMA, **change})


@pytest.mark.parametrize("options", [{"sequence_length": 0}, {"lora_rank": 0}])
def test_lengths_and_ranks_are_at_least_one(options):
    with pytest.raises(MalformedGraphError, match="at least 1"):
        from_config(LLAMA, **options)


def test_ranks_are_those_that_products_can_have():
    assert from_config(LLAMA, sequence_length=1, lora_rank=4096).frozen_count
    with pytest.raises(MalformedGraphError, match="4096 at most"):
        from_config(LLAMA, sequence_length=1, lora_rank=4097)
