"""The model that comes with the package."""

from __future__ import annotations

import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from gpusonde.catalog import Precision
from gpusonde.predictor.workload import zoo
from gpusonde.predictor.workload.engine import Cluster, Parallelism, WorkloadModel, WorkloadRequest
from gpusonde.predictor.workload.engine.measurements import read_measurements

TIMES = Path(__file__).resolve().parents[5] / "shared" / "data" / "workloads" / "training_times.csv"
DGX = "pytorch-1.x/dgx-a100"


@pytest.fixture(scope="module")
def shipped(catalog):
    return WorkloadModel.shipped(catalog=catalog)


def test_it_is_small_and_has_a_card():
    folder = files("gpusonde.predictor.workload.engine") / "shipped"
    assert len(folder.joinpath("workload_model.safetensors").read_bytes()) < 3 << 20
    assert "Limits" in folder.joinpath("MODEL_CARD.md").read_text(encoding="utf-8")


def test_predicting_imports_no_fitting_library():
    code = (
        "import sys; from gpusonde.predictor.workload.engine import WorkloadModel; WorkloadModel.shipped();"
        "print(sorted({'catboost', 'sklearn', 'scipy', 'pandas', 'torch'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_faster_gpus_take_less_time_and_larger_batches_more(shipped):
    graph = zoo.load("resnet50")
    k80, t4, v100 = (
        shipped.predict([WorkloadRequest(graph, 64, Cluster(gpu, environment="tf2.5-keras/profet"))])[0].seconds
        for gpu in ("K80", "T4", "V100-SXM2-16GB")
    )
    assert k80 > 1.5 * t4 > 2 * v100
    batches = [
        shipped.predict([WorkloadRequest(graph, batch, Cluster("T4"))])[0].seconds for batch in (16, 32, 64, 128)
    ]
    assert batches == sorted(batches)
    assert 1.5 < batches[3] / batches[2] < 2.1


def test_no_step_is_shorter_than_that_of_a_smaller_batch_where_launches_bind(shipped):
    cluster = Cluster("A100-SXM4-40GB", precision=Precision.MIXED)
    requests = [WorkloadRequest(zoo.load("efficientnet_b3"), 2**power, cluster) for power in range(8)]
    seconds = [each.seconds for each in shipped.predict(requests)]
    assert seconds == pytest.approx(sorted(seconds), rel=1e-12)
    assert seconds[3] < 1.05 * seconds[0]


@pytest.mark.parametrize(
    ("gpu", "precision", "lowest", "highest"),
    # What such cards are known to do with ResNet-50: 250 to 420 images per second and card on V100 in fp32, 100 to 150
    # on T4; 1,200 to 3,000 on H100 in mixed precision.
    [("T4", "fp32", 100, 160), ("V100-SXM2-16GB", "fp32", 230, 450), ("H100-SXM5-80GB", "fp16", 1000, 3200)],
)
def test_resnet50_trains_as_fast_as_it_is_known_to(shipped, gpu, precision, lowest, highest):
    request = WorkloadRequest(zoo.load("resnet50"), 64, Cluster(gpu, precision=Precision(precision)))
    answer = shipped.predict([request])[0]
    assert lowest < 64 / answer.seconds < highest
    assert not answer.out_of_distribution


def test_half_precision_that_comes_out_slower_says_why(shipped):
    requests = [
        WorkloadRequest(zoo.load(name), 64, Cluster(gpu, precision=precision))
        for name, gpu in (("vgg11", "K80"), ("resnet50", "V100-SXM2-16GB"))
        for precision in (Precision.FP16, Precision.FP32)
    ]
    slower, single, faster, other_single = shipped.predict(requests)
    assert slower.seconds > single.seconds
    assert any("half precision comes out" in each for each in slower.reasons)
    assert faster.seconds < other_single.seconds
    assert not any("half precision comes out" in each for each in (*faster.reasons, *single.reasons))


@pytest.mark.parametrize("gpu", ["T4", "V100-SXM2-16GB", "A100-SXM4-80GB", "H100-SXM5-80GB"])
def test_pure_half_precision_is_at_least_as_fast_as_mixed_where_neither_was_measured(shipped, gpu):
    clusters = [
        [Cluster(gpu, precision=precision, channels_last=innermost) for precision in (Precision.FP16, Precision.MIXED)]
        for innermost in (False, True)
    ]
    for name, batch in (("resnet50", 256), ("mobilenet_v3_large", 64), ("vit_b_16", 32), ("densenet121", 8)):
        for each in clusters:
            half, mixed = shipped.predict([WorkloadRequest(zoo.load(name), batch, cluster) for cluster in each])
            assert half.seconds <= mixed.seconds * (1 + 1e-9)


def test_pure_half_precision_is_answered_as_measured_where_it_was(shipped):
    cluster = Cluster("A100-SXM4-40GB", precision=Precision.FP16, environment=DGX)
    (found,) = shipped.predict([WorkloadRequest(zoo.load("resnet50"), 12, cluster)])
    assert not any("as mixed precision" in each for each in found.reasons)


def test_tiny_networks_have_a_floor(shipped):
    tiny = zoo.load_keras("LeNet5", 32)
    answer = shipped.predict([WorkloadRequest(tiny, 16, Cluster("V100-SXM2-16GB", environment="tf2.5-keras/profet"))])[
        0
    ]
    assert 1e-3 < answer.seconds < 1e-2


def test_every_network_of_the_zoo_gets_an_answer_and_known_kinds_no_flag(shipped):
    names = zoo.names()
    cluster = Cluster("A100-SXM4-40GB", 2, 1, Precision.FP32, Parallelism.DATA_PARALLEL, DGX)
    answers = dict(
        zip(names, shipped.predict([WorkloadRequest(zoo.load(name), 12, cluster) for name in names]), strict=True)
    )
    assert all(0.005 < each.seconds < 5 for each in answers.values())
    flagged = {name for name, each in answers.items() if each.out_of_distribution}
    assert not {"swin_t", "convnext_tiny", "transformer_encoder"} & flagged
    assert not {"mobilenet_v2", "wide_resnet50_2", "vgg16_bn", "densenet169", "resnet50"} & flagged


@pytest.mark.shared_data
@pytest.mark.skipif(not TIMES.exists(), reason=f"needs {TIMES.name} in ../shared/data/workloads")
def test_it_knows_the_measurements_it_was_fitted_on(shipped, catalog):
    rows = read_measurements(TIMES, catalog, licences=("MIT",)).measurements
    assert shipped.state.rows == 3522 > len(rows)
    truth = np.array([each.seconds for each in rows])
    answers = shipped.predict([each.request for each in rows])
    errors = np.abs(np.array([each.seconds for each in answers]) / truth - 1)
    assert errors.mean() < 0.035
    assert np.median(errors) < 0.02


def test_what_nothing_was_measured_in_and_what_a_gpu_has_no_unit_for_is_said(shipped):
    graph = zoo.load("resnet50")

    def reasons(gpu, precision):
        return " ".join(shipped.predict([WorkloadRequest(graph, 32, Cluster(gpu, precision=precision))])[0].reasons)

    assert "T4 has no unit for bf16" in reasons("T4", Precision.BF16)
    assert "nothing was measured in bf16" in reasons("A100-SXM4-40GB", Precision.BF16)
    assert "no unit" not in reasons("A100-SXM4-40GB", Precision.BF16)
    assert "measured in" not in reasons("A100-SXM4-40GB", Precision.TF32)


@pytest.mark.parametrize(
    ("gpu", "precision", "flagged"),
    [
        ("H100-SXM5-80GB", Precision.FP8, True),
        ("A100-SXM4-40GB", Precision.FP8, False),
        ("A100-SXM4-40GB", Precision.BF16, False),
        ("T4", Precision.BF16, True),
    ],
)
def test_products_at_a_rate_that_nothing_was_measured_at_are_flagged_and_wider(shipped, gpu, precision, flagged):
    network = zoo.load("resnet50")
    found, mixed = shipped.predict(
        [WorkloadRequest(network, 32, Cluster(gpu, precision=each)) for each in (precision, Precision.MIXED)]
    )
    assert found.out_of_distribution == flagged
    assert (found.high_s / found.seconds > 1.05 * mixed.high_s / mixed.seconds) == flagged
    assert any("no products were measured" in each for each in found.reasons) == flagged


def test_matrix_products_in_fp32_do_not_use_tf32(shipped):
    network = zoo.load("vit_l_16")
    fp32, tf32 = (
        shipped.predict([WorkloadRequest(network, 16, Cluster("A100-SXM4-40GB", precision=precision))])[0].seconds
        for precision in (Precision.FP32, Precision.TF32)
    )
    assert fp32 > 2 * tf32
