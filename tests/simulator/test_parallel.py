"""Epochs on another number of GPUs: what a placement can be, and how computation and communication scale."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from gpusonde.catalog import load_gpus, load_offers
from gpusonde.errors import MeasurementError, UnknownGpuError
from gpusonde.predictor.crossgpu import LatencyModel, MetricDistribution, SourceMeasurement
from gpusonde.simulator.parallel import ParallelPredictor, Placement

GPUS = load_gpus()
V100, A100, T4 = (GPUS.get(name) for name in ("V100-SXM2-16GB", "A100-SXM4-40GB", "T4"))


@pytest.fixture(scope="module")
def model():
    return LatencyModel.shipped()


@pytest.fixture(scope="module")
def ask(model):
    several = ParallelPredictor(load_offers().all)

    def predict(source, here, *targets):
        return several.predict(model, source, here, targets)

    return predict


def epoch(metrics=()):
    return SourceMeasurement(
        V100, 100.0, {name: MetricDistribution.from_values([value]) for name, value in dict(metrics).items()}
    )


def width(answer):
    return answer.epoch_latency_high_s / answer.epoch_latency_low_s


def test_the_same_gpus_take_what_was_measured(ask):
    here = Placement(V100, 8)
    (same,) = ask(epoch(), here, here)
    assert same.epoch_latency_s == pytest.approx(100.0)
    assert same.method == "measured"
    assert same.gpu_count == 8
    assert 0 < same.communication_ratio < 1


def test_one_gpu_to_one_gpu_is_the_models_own_answer(ask, model):
    assert ask(epoch(), Placement(V100), Placement(A100)) == model.predict(epoch(), [A100])


def test_fewer_gpus_take_longer_and_wait_less_for_each_other(ask):
    eight, four, one = ask(epoch(), Placement(V100, 8), *(Placement(V100, count) for count in (8, 4, 1)))
    assert 100.0 < four.epoch_latency_s <= 200.0
    assert four.epoch_latency_s < one.epoch_latency_s <= 800.0
    assert one.communication_ratio == 0.0 < four.communication_ratio < eight.communication_ratio
    assert four.status == one.status == "extrapolated"
    assert "batch per GPU is taken to stay" in four.reason
    assert width(one) > width(eight)


def test_a_slower_link_takes_longer(ask):
    here = Placement(V100, 8)
    nvlink, pcie, hosts, slow = ask(
        epoch(), here, here, Placement(V100, 8, link="pcie"), Placement(V100, 8, 8, network_bytes_per_second=100e9 / 8),
        Placement(V100, 8, 8, network_bytes_per_second=10e9 / 8),
    )  # fmt: skip
    assert nvlink.epoch_latency_s < min(pcie.epoch_latency_s, hosts.epoch_latency_s) < slow.epoch_latency_s
    assert slow.communication_ratio > nvlink.communication_ratio


def test_what_links_carried_splits_the_epoch(ask):
    """A job that hardly talks scales as its computation; one that fills the link as the link."""
    here, target = Placement(V100, 8), Placement(V100, 8, 8, network_bytes_per_second=10e9 / 8)
    quiet, busy = (
        ask(epoch({f"nvlink_{way}_bytes_per_second": share * here.bus_bytes_per_second for way in ("tx", "rx")}), here,
            target)[0]
        for share in (0.001, 0.9)
    )  # fmt: skip
    assumed = ask(epoch(), here, target)[0]
    links = here.bus_bytes_per_second / target.bus_bytes_per_second
    assert quiet.epoch_latency_s == pytest.approx(100.0, rel=0.1)
    assert busy.epoch_latency_s == pytest.approx(90.0 * links, rel=0.2)
    assert "from NVLink rates" in quiet.method
    assert "communication assumed" in assumed.method
    assert width(quiet) < width(assumed)


def test_a_larger_batch_moves_fewer_gradients_per_sample(ask):
    here, target = Placement(V100, 8, batch_per_gpu=32), Placement(A100, 8, batch_per_gpu=64)
    same, larger = ask(epoch(), here, replace(target, batch_per_gpu=32), target)
    assert larger.epoch_latency_s < same.epoch_latency_s
    # Told for one side only it says nothing.
    assert ask(epoch(), replace(here, batch_per_gpu=0), target)[0].epoch_latency_s == same.epoch_latency_s


def test_a_gpu_without_a_number_means_as_many_as_the_run_has(ask):
    bare, note = Placement.parse("V100-SXM2-16GB", GPUS)
    (answer,) = ask(epoch(), Placement(V100, 16, 2), bare)
    assert (answer.gpu_count, answer.host_count, answer.epoch_latency_s) == (16, 2, pytest.approx(100.0))
    assert not note
    # So is their network; where the run's was told, its own GPUs were reckoned with another.
    run = Placement(V100, 16, 2, link="pcie", network_bytes_per_second=50e9)
    (same, other) = ask(epoch(), run, bare, Placement.parse("A100-SXM4-40GB", GPUS)[0])
    assert same.epoch_latency_s == pytest.approx(100.0)
    (told,) = ask(epoch(), run, Placement(A100, 16, 2, network_bytes_per_second=50e9))
    assert other.epoch_latency_s == told.epoch_latency_s
    assert Placement.parse("V100-SXM2-16GB@100gbit", GPUS)[0].as_many_as(run).network_bytes_per_second == 12.5e9


def test_a_machine_with_several_gpus_named_as_a_gpu_says_how_all_are_asked_for():
    one, note = Placement.parse("p4d.24xlarge", GPUS)
    assert (one, one.counted, note) == (
        Placement(A100), False, "a machine of 8 GPUs; 8xA100-SXM4-40GB takes all"
    )  # fmt: skip
    assert Placement.parse("g4dn.xlarge", GPUS)[1] == ""
    assert Placement.parse("8xp4d.24xlarge", GPUS)[1] == ""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("8xT4", Placement(T4, 8)),
        ("2x8xA100-SXM4-40GB@400gbit", Placement(A100, 16, 2, network_bytes_per_second=50e9)),
        ("2xV100-SXM2-16GB@pcie@batch32", Placement(V100, 2, link="pcie", batch_per_gpu=32)),
        # As the remarks of a prediction write it, and as people do.
        ("8 x T4", Placement(T4, 8)),
        ("2X8 × A100-SXM4-40GB @400gbit", Placement(A100, 16, 2, network_bytes_per_second=50e9)),
    ],
)
def test_placements_are_written_in_short(text, expected):
    assert Placement.parse(text, GPUS) == (expected, "")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0xT4", "1 to 100000"),
        ("-2xT4", "1 to 100000"),
        ("0x8xT4", "1 to 100000"),
        ("4xT4@nvlink", "has no NVLink"),
        ("4xT4@ethernet", "nvlink or pcie"),
        ("4xT4@batch1.2.3", "no number"),
        ("@pcie", "names no GPUs"),
        ("2x2x8xT4", "names no GPUs"),
        ("999999999xT4", "1 to 100000"),
        ("2x4xT4@0gbit", "above zero"),
        ("2x4xT4@0.000001gbit", "from 1000000 to"),
        ("4xT4@batch0", "above zero"),
        ("4xT4@batch1e9", "nvlink or pcie"),
        ("4xT4@batch9999999", "from 1 to"),
        ("4xT4@100gbit", "needs no network; write 2x4xT4@100gbit for two"),
        ("1x4xH100@pcie@400gbit", "write 2x4xH100@pcie@400gbit for two"),
        ("4xV100-SXM2-16GB@pcie@nvlink", "told twice"),
        ("8xA100-PCIe-40GB@nvlink", "bridges join 2"),
    ],
)
def test_what_is_no_placement_is_refused(text, words):
    with pytest.raises(MeasurementError, match=words):
        Placement.parse(text, GPUS)


def test_digits_without_end_name_no_gpu():
    with pytest.raises(UnknownGpuError):
        Placement.parse("9" * 5000 + "xT4", GPUS)


def test_pairs_of_cards_have_bridges_and_say_so(ask):
    card = GPUS.get("A100-PCIe-40GB")
    bridged, plain = ask(epoch(), Placement(V100, 2), Placement(card, 2, link="nvlink"), Placement(card, 2))
    assert bridged.epoch_latency_s < plain.epoch_latency_s
    assert "2 x A100-PCIe-40GB@nvlink:" in bridged.reason


def test_unlike_hosts_count_as_the_fullest_one(ask):
    assert Placement(T4, 7, 2).gpus_per_host == 4
    (answer,) = ask(epoch(), Placement(V100, 7, 2), Placement(T4, 7, 2))
    assert "7 x T4 on 2 hosts: as if 4 were in each" in answer.reason
    with pytest.raises(MeasurementError, match="cannot be on 9 hosts"):
        Placement(T4, 8, 9)


def test_a_batch_on_one_gpu_needs_no_exchange(ask, model):
    here = Placement(V100, batch_per_gpu=32)
    same, larger, smaller = ask(epoch(), here, *(Placement(T4, batch_per_gpu=each) for each in (32, 64, 16)))
    assert same == model.predict(epoch(), [T4])[0]
    assert larger.epoch_latency_s < same.epoch_latency_s < smaller.epoch_latency_s
    assert larger.communication_ratio == 0.0
    assert width(larger) > width(same)


@pytest.mark.parametrize(
    ("fits", "larger", "smaller"),
    [("yes", "unknown", "yes"), ("likely", "unknown", "likely"), ("no", "no", "unknown"), ("unknown",) * 3],
)
@pytest.mark.parametrize("count", [1, 2])
def test_memory_of_another_batch_is_told_as_far_as_it_follows(model, fits, larger, smaller, count):
    class Told:
        def predict(self, source, targets):
            return [replace(each, fits=fits) for each in model.predict(source, targets)]

    here, *targets = (Placement(V100, count, batch_per_gpu=batch) for batch in (32, 32, 64, 16))
    found = ParallelPredictor().predict(Told(), epoch(), here, targets)
    assert [each.fits for each in found] == [fits, larger, smaller]


def test_more_gpus_than_a_machine_holds_are_refused_and_the_others_answered(ask):
    too_many, other = ask(epoch(), Placement(V100, 8), Placement(T4, 64), Placement(T4, 64, 8))
    assert too_many.status == "unsupported_gpu"
    assert math.isnan(too_many.epoch_latency_s)
    assert "8x8xT4" in too_many.reason
    assert other.epoch_latency_s > 0
    seen, same = ask(epoch(), Placement(V100, 16), Placement(T4, 16), Placement(V100, 16))
    assert seen.epoch_latency_s > 0
    assert "taken to have 16 in one host" in seen.reason
    assert same.epoch_latency_s == pytest.approx(100.0)


def test_a_row_says_which_links_it_is_for(ask):
    targets = (Placement(V100, 8), Placement(V100, 8, link="pcie"), Placement(T4, 8, 2), Placement(T4, 8, 8))
    found = ask(epoch(), Placement(V100, 8), *targets, Placement(A100), Placement(T4, 64))
    assert [each.link for each in found] == ["nvlink", "pcie", "pcie", "", "", ""]
    assert [each.network_bytes_per_second for each in found] == [0.0, 0.0, 100e9 / 8, 100e9 / 8, 0.0, 0.0]


def test_a_slice_is_answered_by_its_share_and_is_one_at_a_time(ask):
    small, half = (Placement.parse(f"A100-SXM4-40GB MIG {profile}", GPUS)[0] for profile in ("1g.5gb", "3g.20gb"))
    whole, third, seventh = ask(epoch(), Placement(V100), Placement(A100), half, small)
    assert whole.epoch_latency_s < third.epoch_latency_s < seventh.epoch_latency_s
    assert third.status == "extrapolated"
    assert "not fitted on" in third.reason
    two, other = ask(epoch(), Placement(V100), Placement(small.gpu, 2), Placement(A100))
    assert (two.status, other.status) == ("unsupported_gpu", "extrapolated")
    assert "a process sees one MIG slice" in two.reason
    with pytest.raises(MeasurementError, match="one MIG slice"):
        ask(SourceMeasurement(small.gpu, 9.0), Placement(small.gpu, 2), Placement(A100))


def test_the_run_was_measured_on_the_gpu_that_it_had(ask):
    with pytest.raises(MeasurementError, match="not on T4"):
        ask(epoch(), Placement(T4, 8), Placement(V100, 8))
