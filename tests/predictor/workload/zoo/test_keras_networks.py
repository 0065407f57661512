"""Keras networks: how the benchmarks build them, and that their graphs are what the package ships."""

from __future__ import annotations

import math
from importlib import resources

import keras_networks
import pytest
from make_zoo import keras_graphs

from gpusonde.errors import UnsupportedGraphError
from gpusonde.predictor.workload import zoo
from gpusonde.predictor.workload.graph import Primitive
from gpusonde.predictor.workload.graph.graph_json import dump_graph

# As the pages of Keras and its examples print them.
PUBLISHED = [
    ("ResNet50-applications", 224, 1000, 25_636_712),
    ("VGG16", 224, 1000, 138_357_544),
    ("VGG19", 224, 1000, 143_667_240),
    ("InceptionV3", 299, 1000, 23_851_784),
    ("InceptionResNetV2", 299, 1000, 55_873_736),
    ("MobileNetV2", 224, 1000, 3_538_984),
    ("Xception", 299, 1000, 22_910_480),
    # Keras counts 7 more, of the layer that rescales images.
    ("EfficientNetB0", 224, 1000, 5_330_571 - 7),
    ("CIFAR10_CNN", 32, 10, 1_250_858),
    ("LeNet5", 32, 10, 62_006),
]
# What PROFET measured: image size, classes.
MEASURED_SIZES = [(32, 10), (64, 100), (128, 100), (224, 1000), (256, 1000)]


@pytest.mark.parametrize(("name", "size", "classes", "count"), PUBLISHED)
def test_parameters_are_as_many_as_keras_says(name, size, classes, count):
    assert keras_networks.keras_parameter_count(keras_networks.build(name, size, classes)) == count


def test_grey_images_have_one_channel():
    graph = keras_networks.build("MNIST_CNN", 28, 10, channels=1)

    assert keras_networks.keras_parameter_count(graph) == 34_826
    assert graph.operations[0].output == (1, 1, 28, 28)


@pytest.mark.parametrize("name", keras_networks.names())
@pytest.mark.parametrize(("size", "classes"), MEASURED_SIZES)
def test_every_network_is_one_connected_graph_at_every_measured_size(name, size, classes):
    if name.startswith("Inception") and size < 75:
        with pytest.raises(UnsupportedGraphError, match="too small"):
            keras_networks.build(name, size, classes)
        return

    graph = keras_networks.build(name, size, classes)

    assert graph.batch_size == 1
    assert graph.front_end == "keras"
    assert [each.primitive for each in graph.operations].count(Primitive.INPUT) == 1
    assert graph.operations[-1].primitive is Primitive.OUTPUT
    assert graph.operations[-1].output == (1, classes)
    assert all(graph.sees_input)
    assert all(graph.successors[:-1])
    assert len({each.name for each in graph.operations}) == len(graph.operations)
    assert all(extent >= 1 for each in graph.operations for extent in each.output)


@pytest.mark.parametrize("name", keras_networks.names())
def test_what_is_read_was_written_but_for_padding(name):
    graph = keras_networks.build(name, 128, 100)

    for position, operation in enumerate(graph.operations):
        written = sorted(math.prod(graph.operations[writer].output) for writer in graph.predecessors[position])
        read = sorted(math.prod(shape) for shape in operation.inputs)
        assert written == read or (operation.source in ("keras.Conv2D", "keras.MaxPooling2D") and written <= read)


def test_depthwise_convolutions_have_a_group_per_channel():
    graph = keras_networks.build("MobileNetV2", 224, 1000)
    depthwise = [each for each in graph.operations if each.primitive is Primitive.DEPTHWISE_CONVOLUTION]

    assert len(depthwise) == 17
    assert all(each.groups == each.output[1] == each.weight[0] for each in depthwise)
    assert all(each.weight[1] == 1 for each in depthwise)


def test_preactivation_resnets_are_not_those_of_applications():
    ours, theirs = keras_networks.build("ResNet50", 224, 1000), keras_networks.build("ResNet50-applications", 224, 1000)

    assert ours.layer_count == theirs.layer_count
    assert ours.parameter_count != theirs.parameter_count


def test_a_shortcut_over_a_map_of_one_pixel_does_not_stride():
    graph = keras_networks.build("ResNet18", 32, 10)

    assert graph.operations[-1].output == (1, 10)


def test_the_shipped_graphs_are_those_that_are_built_byte_for_byte():
    folder = resources.files(zoo) / "keras"
    shipped = {file.name: file.read_text() for family in folder.iterdir() for file in family.iterdir()}
    assert shipped == {f"{name}.json": dump_graph(graph) + "\n" for name, graph in keras_graphs().items()}


def test_the_zoo_finds_them_by_name_and_size():
    sizes = zoo.keras_sizes()
    assert set(sizes) == set(keras_networks.names())
    assert sizes["LeNet5"] == (32, 64, 128, 224, 256)
    assert sizes["InceptionV3"] == (128, 224, 256)
    assert zoo.load_keras("LeNet5", 64).operations[0].output == (1, 3, 64, 64)
    for name in sizes:
        assert zoo.keras_family(name) == keras_networks.family(name)
    with pytest.raises(KeyError):
        zoo.load_keras("LeNet5", 100)


def test_keras_networks_are_no_architectures_of_their_own_among_the_known():
    assert not set(zoo.keras_sizes()) & set(zoo.names())
