"""The committed graphs against what torchvision publishes of its networks."""

import pytest

from gpusonde.predictor.workload import zoo
from gpusonde.predictor.workload.graph import Primitive
from gpusonde.predictor.workload.graph.cost import count_graph_cost

# Name -> trainable numbers, billions of multiply-adds at 224 x 224 (torchvision's model pages); None where the page
# gives them for larger images or, for inception_v3, without its auxiliary head.
PUBLISHED = {
    "alexnet": (61_100_840, 0.714),
    "convnext_base": (88_591_464, 15.355),
    "convnext_large": (197_767_336, 34.361),
    "convnext_small": (50_223_688, 8.684),
    "convnext_tiny": (28_589_128, 4.456),
    "densenet121": (7_978_856, 2.834),
    "densenet161": (28_681_000, 7.728),
    "densenet169": (14_149_480, 3.36),
    "densenet201": (20_013_928, 4.291),
    "efficientnet_b0": (5_288_548, 0.386),
    "efficientnet_b1": (7_794_184, None),
    "efficientnet_b2": (9_109_994, None),
    "efficientnet_b3": (12_233_232, None),
    "efficientnet_b4": (19_341_616, None),
    "efficientnet_b5": (30_389_784, None),
    "efficientnet_b6": (43_040_704, None),
    "efficientnet_b7": (66_347_960, None),
    "efficientnet_v2_l": (118_515_272, None),
    "efficientnet_v2_m": (54_139_356, None),
    "efficientnet_v2_s": (21_458_488, None),
    "inception_v3": (27_161_264, None),
    "maxvit_t": (30_919_624, 5.558),
    "mnasnet0_5": (2_218_512, 0.104),
    "mnasnet0_75": (3_170_208, 0.215),
    "mnasnet1_0": (4_383_312, 0.314),
    "mnasnet1_3": (6_282_256, 0.526),
    "mobilenet_v2": (3_504_872, 0.301),
    "mobilenet_v3_large": (5_483_032, 0.217),
    "mobilenet_v3_small": (2_542_856, 0.057),
    "regnet_x_16gf": (54_278_536, 15.941),
    "regnet_x_1_6gf": (9_190_136, 1.603),
    "regnet_x_32gf": (107_811_560, 31.736),
    "regnet_x_3_2gf": (15_296_552, 3.177),
    "regnet_x_400mf": (5_495_976, 0.414),
    "regnet_x_800mf": (7_259_656, 0.8),
    "regnet_x_8gf": (39_572_648, 7.995),
    "regnet_y_128gf": (644_812_894, 127.518),
    "regnet_y_16gf": (83_590_140, 15.912),
    "regnet_y_1_6gf": (11_202_430, 1.612),
    "regnet_y_32gf": (145_046_770, 32.28),
    "regnet_y_3_2gf": (19_436_338, 3.176),
    "regnet_y_400mf": (4_344_144, 0.402),
    "regnet_y_800mf": (6_432_512, 0.834),
    "regnet_y_8gf": (39_381_472, 8.473),
    "resnet101": (44_549_160, 7.801),
    "resnet152": (60_192_808, 11.514),
    "resnet18": (11_689_512, 1.814),
    "resnet34": (21_797_672, 3.664),
    "resnet50": (25_557_032, 4.089),
    "resnext101_32x8d": (88_791_336, 16.414),
    "resnext101_64x4d": (83_455_272, 15.46),
    "resnext50_32x4d": (25_028_904, 4.23),
    "shufflenet_v2_x0_5": (1_366_792, 0.04),
    "shufflenet_v2_x1_0": (2_278_604, 0.145),
    "shufflenet_v2_x1_5": (3_503_624, 0.296),
    "shufflenet_v2_x2_0": (7_393_996, 0.583),
    "squeezenet1_0": (1_248_424, 0.819),
    "squeezenet1_1": (1_235_496, 0.349),
    "swin_b": (87_768_224, 15.431),
    "swin_s": (49_606_258, 8.741),
    "swin_t": (28_288_354, 4.491),
    "swin_v2_b": (87_930_848, None),
    "swin_v2_s": (49_737_442, None),
    "swin_v2_t": (28_351_570, None),
    "vgg11": (132_863_336, 7.609),
    "vgg11_bn": (132_868_840, 7.609),
    "vgg13": (133_047_848, 11.308),
    "vgg13_bn": (133_053_736, 11.308),
    "vgg16": (138_357_544, 15.47),
    "vgg16_bn": (138_365_992, 15.47),
    "vgg19": (143_667_240, 19.632),
    "vgg19_bn": (143_678_248, 19.632),
    "vit_b_16": (86_567_656, 17.564),
    "vit_b_32": (88_224_232, 4.409),
    "vit_h_14": (632_045_800, 167.295),
    "vit_l_16": (304_326_632, 61.555),
    "vit_l_32": (306_535_400, 15.378),
    "wide_resnet101_2": (126_886_696, 22.753),
    "wide_resnet50_2": (68_883_240, 11.398),
}


def test_every_network_has_a_published_count_to_be_checked_with():
    assert set(zoo.names()) >= set(PUBLISHED)
    assert set(zoo.names()) - set(PUBLISHED) == {"googlenet", "inception_v3_224", "transformer_encoder"}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_network_has_the_published_number_of_parameters(name):
    assert zoo.load(name).parameter_count == PUBLISHED[name][0]


@pytest.mark.parametrize("name", [name for name, (_, gigaflops) in PUBLISHED.items() if gigaflops])
def test_a_network_costs_the_published_multiply_adds(name):
    found = count_graph_cost(zoo.load(name)).total.matrix_flops / 2e9
    assert found == pytest.approx(PUBLISHED[name][1], abs=0.0006)


@pytest.mark.parametrize(
    ("name", "parameters"),
    # GoogLeNet with its two auxiliary heads, Inception v3 without its one, twelve layers of BERT-base.
    [("googlenet", 13_004_888), ("inception_v3_224", 23_834_568), ("transformer_encoder", 85_054_464)],
)
def test_a_network_that_no_page_describes_has_the_parameters_of_its_design(name, parameters):
    assert zoo.load(name).parameter_count == parameters


@pytest.mark.parametrize("name", zoo.names())
def test_a_network_is_one_graph_of_known_operations_from_input_to_output(name):
    graph = zoo.load(name)
    kinds = [each.primitive for each in graph.operations]
    assert (graph.name, graph.batch_size) == (name, 1)
    assert (kinds[0], kinds[-1]) == (Primitive.INPUT, Primitive.OUTPUT)
    assert Primitive.OTHER not in kinds
    assert all(graph.successors[position] for position in range(len(kinds) - 1))
    assert graph.sees_input[-1]


def test_families_hold_the_variants_of_one_design():
    families = zoo.families()
    assert {families[name] for name in ("resnet18", "resnext50_32x4d", "wide_resnet50_2")} == {"resnet"}
    assert {families[name] for name in ("googlenet", "inception_v3")} == {"inception"}
    assert zoo.family("vgg16_bn") == zoo.family("vgg11") == "vgg"


def test_an_unknown_network_is_no_network():
    with pytest.raises(KeyError):
        zoo.load("../zoo")
