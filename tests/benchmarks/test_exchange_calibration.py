"""Calibration by measured iterations: batch sizes and placements that nobody measured."""

from __future__ import annotations

import numpy as np
import pytest
from exchange_calibration import ExchangeCalibration, MeasuredIteration, Overlap, even_trace
from support.communication_queue import simulate_communication

from gpusonde.errors import ProblemError
from gpusonde.simulator.communication import BandwidthSharing
from gpusonde.simulator.compute import ComputeProbe, fit_compute_curve
from gpusonde.simulator.gradients import GradientTrace, assumed_trace

TRACE = even_trace(4)
PLACEMENTS = [(2,), (4,), (1, 1), (2, 2), (4, 4), (2, 1), (4, 2), (1, 1, 1), (2, 2, 2), (4, 4, 4), (3, 3), (3, 1)]


def compute_s(batch):
    return 0.02 + 0.002 * np.asarray(batch, dtype=float)


def exchange_s(placement):
    """A ring over links that a machine's devices share."""
    world = sum(placement)
    return (0.02 if len(placement) == 1 else 0.08 + 0.02 * max(placement)) * 2 * (world - 1) / world


def iteration_s(placement, batch):
    latency = fit_compute_curve(PROBES, "linear").predict(batch)
    return float(Overlap(TRACE).iteration_s(latency, np.array([exchange_s(placement)]))[0])


PROBES = [ComputeProbe(batch, float(compute_s(batch))) for batch in (4, 16, 64, 256)]


def measured(placements=PLACEMENTS, batch=4.0, noise=0.0, seed=0):
    random = np.random.default_rng(seed)
    return [
        MeasuredIteration(each, batch, iteration_s(each, batch) * float(np.exp(noise * random.standard_normal())))
        for each in placements
    ]


@pytest.mark.parametrize("trace", [even_trace(1), TRACE, assumed_trace(1e8), GradientTrace([0.2, 0.9], [9.0, 1.0])])
def test_an_iteration_is_what_the_event_queue_makes_of_it(trace):
    latency = fit_compute_curve(PROBES).predict([8, 64])
    for exchange in (0.001, 0.05, 0.3, 4.0):
        found = Overlap(trace).iteration_s(latency, np.full(2, exchange))
        for place in range(2):
            ready = trace.ready_fractions * latency.backward_s[place]
            wire = np.full(ready.size, trace.total_bytes / exchange)
            end = simulate_communication(ready, trace.bucket_bytes, wire, BandwidthSharing(max_in_flight=1)).end_s
            expected = latency.forward_s[place] + max(latency.backward_s[place], end)
            assert found[place] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("trace", [even_trace(1), TRACE, assumed_trace(1e8)])
def test_the_exchange_behind_an_iteration_is_found_again(trace):
    latency = fit_compute_curve(PROBES).predict([8.0] * 5)
    exchange = np.array([0.0, 0.01, 0.05, 0.3, 4.0])
    again, leverage = Overlap(trace).exchange_s(latency, Overlap(trace).iteration_s(latency, exchange))
    assert again == pytest.approx(exchange, abs=1e-9)
    assert (leverage >= 1).all()


def test_other_batch_sizes_of_measured_placements_are_predicted():
    calibration = ExchangeCalibration(PROBES, measured(), [TRACE])
    for placement in PLACEMENTS:
        found = calibration.predict(placement, [16, 64, 200])
        assert found.measured
        assert not found.extrapolated.any()
        assert found.seconds == pytest.approx([iteration_s(placement, batch) for batch in (16, 64, 200)], rel=0.03)


def test_placements_that_nobody_measured_follow_from_those_that_were():
    known = [each for place, each in enumerate(PLACEMENTS) if place % 3 != 2]
    calibration = ExchangeCalibration(PROBES, measured(known), [TRACE])
    errors = []
    for placement in PLACEMENTS:
        found = calibration.predict(placement, [8.0])
        assert found.measured == (placement in known)
        errors.append(abs(found.seconds[0] / iteration_s(placement, 8.0) - 1))
    assert np.mean(errors) < 0.06


def test_noise_of_one_measurement_is_averaged_out_by_the_others():
    own, pooled = [], []
    for seed in range(10):
        rows = measured(noise=0.06, seed=seed)
        for kind, errors in (("paper", own), ("default", pooled)):
            calibration = ExchangeCalibration(PROBES, rows, [TRACE], kind)
            errors += [
                abs(calibration.predict(each, 8.0).seconds[0] / iteration_s(each, 8.0) - 1) for each in PLACEMENTS
            ]
    assert np.mean(pooled) < 0.9 * np.mean(own)


def test_one_measurement_far_off_spoils_its_own_placement_only():
    rows = measured()
    rows[3] = MeasuredIteration((2, 2), 4.0, 3 * rows[3].seconds)
    calibration = ExchangeCalibration(PROBES, rows, [TRACE])
    for placement in [*PLACEMENTS, (3, 3, 3)]:
        if placement != (2, 2):
            found = calibration.predict(placement, 16.0).seconds[0]
            assert found == pytest.approx(iteration_s(placement, 16.0), rel=0.15)
    assert calibration.predict((2, 2), 4.0).seconds[0] > 2 * iteration_s((2, 2), 4.0)


def test_a_placement_like_no_measured_one_is_less_certain():
    calibration = ExchangeCalibration(PROBES, measured([(2,), (1, 1), (2, 2), (2, 1)]), [TRACE])
    near, far = calibration.predict((2, 2), 4.0), calibration.predict((8,) * 8, 4.0)
    assert near.measured
    assert far.sd_s[0] / far.seconds[0] > 2 * near.sd_s[0] / near.seconds[0]


def test_a_machine_alone_is_not_taken_for_as_slow_as_a_network_when_only_that_was_measured():
    network_only = [each for each in PLACEMENTS if len(each) > 1]
    calibration = ExchangeCalibration(PROBES, measured(network_only), [TRACE])
    alone, across = calibration.predict((4,), 4.0), calibration.predict((2, 2), 4.0)
    assert alone.seconds[0] < 0.8 * across.seconds[0]
    assert abs(alone.seconds[0] - iteration_s((4,), 4.0)) < alone.sd_s[0]


def test_nine_of_ten_iterations_lie_within_their_range():
    inside = []
    for seed in range(8):
        calibration = ExchangeCalibration(PROBES, measured(noise=0.04, seed=seed), [TRACE])
        random = np.random.default_rng(100 + seed)
        for placement in PLACEMENTS:
            found = calibration.predict(placement, 16.0)
            true = iteration_s(placement, 16.0) * np.exp(0.04 * random.standard_normal())
            inside.append(abs(found.seconds[0] - true) <= 1.645 * found.sd_s[0])
    assert 0.85 <= np.mean(inside) <= 1.0


def test_iterations_shorter_than_the_curve_bring_it_down():
    slow_start = [ComputeProbe(4, 1.2 * PROBES[0].total_s), *PROBES[1:]]
    hidden = [MeasuredIteration(each, 4.0, float(compute_s(4))) for each in PLACEMENTS]
    default, paper = (
        ExchangeCalibration(slow_start, hidden, [TRACE], kind).predict((2,), 4.0).seconds[0]
        for kind in ("default", "paper")
    )
    assert default == pytest.approx(compute_s(4), rel=0.05)
    assert paper == pytest.approx(1.2 * compute_s(4), rel=0.01)


def test_a_device_that_was_slower_alone_is_quicker_beside_others_at_all_batch_sizes():
    slow = [ComputeProbe(each.batch_size, 1.15 * each.total_s) for each in PROBES]
    hidden = [MeasuredIteration(each, 4.0, float(compute_s(4))) for each in PLACEMENTS]
    calibration = ExchangeCalibration(slow, hidden, [TRACE])
    for batch in (4.0, 16.0, 64.0, 256.0):
        assert calibration.predict((2, 2), batch).seconds[0] == pytest.approx(compute_s(batch), rel=0.05)
        assert calibration.predict((1,), batch).seconds[0] == pytest.approx(1.15 * compute_s(batch), rel=0.02)


def test_one_placement_that_ran_too_quickly_does_not_bring_the_curve_down():
    rows = measured()
    rows[0] = MeasuredIteration(rows[0].placement, 4.0, 0.7 * float(compute_s(4)))
    found = ExchangeCalibration(PROBES, rows, [TRACE]).predict((4, 4), 200.0).seconds[0]
    assert found == pytest.approx(iteration_s((4, 4), 200.0), rel=0.03)


def test_ranges_widen_with_the_distance_from_the_batch_sizes_that_several_devices_were_measured_at():
    found = ExchangeCalibration(PROBES, measured(batch=16.0), [TRACE]).predict((2,), [2.0, 4.0, 16.0, 64.0, 256.0])
    share = found.sd_s / found.seconds
    assert share[0] > share[1] > share[2] < share[3] < share[4]


def test_several_batch_sizes_of_one_placement_count_together():
    rows = [row for batch in (4.0, 16.0, 64.0) for row in measured(batch=batch, noise=0.05, seed=int(batch))]
    found = ExchangeCalibration(PROBES, rows, [TRACE]).predict((4, 4), [4.0, 16.0, 64.0]).seconds
    assert found == pytest.approx([iteration_s((4, 4), batch) for batch in (4.0, 16.0, 64.0)], rel=0.08)


def test_the_order_of_machines_does_not_matter_and_one_device_exchanges_nothing():
    calibration = ExchangeCalibration(PROBES, measured(), [TRACE])
    assert calibration.predict((1, 2), 8.0).measured
    assert calibration.predict((1, 2), 8.0).seconds == calibration.predict((2, 1), 8.0).seconds
    assert calibration.predict((1,), 64.0).seconds[0] == pytest.approx(compute_s(64), rel=0.01)


@pytest.mark.parametrize("kind", ["default", "paper"])
def test_one_measured_placement_suffices_and_says_how_little_it_knows(kind):
    calibration = ExchangeCalibration(PROBES, measured([(2, 2)]), kind=kind)
    found = calibration.predict((2, 2), [4.0, 64.0])
    assert found.seconds[0] == pytest.approx(iteration_s((2, 2), 4.0), rel=0.05)
    assert np.isfinite(calibration.predict((8, 8), 4.0).seconds).all()


def test_without_gradients_several_ways_to_overlap_are_averaged():
    rows = [MeasuredIteration((2, 2), 4.0, 0.1)]
    assumed = ExchangeCalibration(PROBES, rows).predict((2, 2), 64.0).seconds[0]
    alone = [ExchangeCalibration(PROBES, rows, [even_trace(n)]).predict((2, 2), 64.0).seconds[0] for n in (2, 4, 8)]
    assert assumed == pytest.approx(np.mean(alone), rel=1e-9)


def test_measurements_that_calibrate_nothing_are_refused():
    for placement, batch, seconds, says in (
        ((1,), 4, 0.1, "one device"),
        ((), 4, 0.1, "one device or more"),
        ((2, 0), 4, 0.1, "one device or more"),
        ((2, 2), 0, 0.1, "batch_size"),
        ((2, 2), 4, float("nan"), "seconds"),
    ):
        with pytest.raises(ProblemError, match=says):
            MeasuredIteration(placement, batch, seconds)
    with pytest.raises(ProblemError, match="needs a measured iteration"):
        ExchangeCalibration(PROBES, [])
    with pytest.raises(ProblemError, match="default or paper"):
        ExchangeCalibration(PROBES, measured(), kind="other")
    with pytest.raises(ProblemError, match="trace"):
        ExchangeCalibration(PROBES, measured(), [])
    with pytest.raises(ProblemError, match="two batch sizes"):
        ExchangeCalibration(PROBES[:1], measured())
    with pytest.raises(ProblemError, match="one device or more"):
        ExchangeCalibration(PROBES, measured()).predict((), 4)


def test_what_larger_batches_take_beyond_the_exchange_is_carried_over_to_placements_that_nobody_measured():
    def busy(placement, batch):
        return iteration_s(placement, batch) * (batch / 4.0) ** 0.06

    known, unseen = [each for each in PLACEMENTS if each != (2, 2, 2)], (2, 2, 2)
    several = [MeasuredIteration(each, batch, busy(each, batch)) for each in known for batch in (4.0, 16.0, 128.0)]
    first = [row for row in several if row.batch_size == 4.0]
    corrected, uncorrected = (ExchangeCalibration(PROBES, rows, [TRACE]) for rows in (several, first))
    for placement in (unseen, (4, 4)):
        for batch in (64.0, 128.0):
            true = busy(placement, batch)
            found, before = corrected.predict(placement, batch), uncorrected.predict(placement, batch)
            assert abs(found.seconds[0] / true - 1) < 0.5 * abs(before.seconds[0] / true - 1)
            assert found.sd_s[0] / found.seconds[0] < before.sd_s[0] / before.seconds[0]


def test_one_larger_batch_far_off_does_not_correct_its_neighbours():
    several = [row for batch in (4.0, 16.0, 64.0) for row in measured(batch=batch)]
    several[-1] = MeasuredIteration(several[-1].placement, 64.0, 3 * several[-1].seconds)
    found = ExchangeCalibration(PROBES, several, [TRACE]).predict((3, 3), 64.0).seconds[0]
    assert found == pytest.approx(iteration_s((3, 3), 64.0), rel=0.06)
