import pytest

from gpusonde.predictor.workload import zoo
from gpusonde.predictor.workload.graph import Primitive


@pytest.mark.parametrize("name", zoo.names())
def test_a_network_is_one_graph_of_known_operations_from_input_to_output(name):
    graph = zoo.load(name)
    kinds = [each.primitive for each in graph.operations]
    assert (graph.name, graph.batch_size) == (name, 1)
    assert (kinds[0], kinds[-1]) == (Primitive.INPUT, Primitive.OUTPUT)
    assert Primitive.OTHER not in kinds
    assert all(graph.successors[position] for position in range(len(kinds) - 1))
    assert graph.sees_input[-1]
