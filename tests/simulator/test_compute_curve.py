"""Compute curves: fitted to few probes, never decreasing, calm about noise and clear about what is no curve."""

from __future__ import annotations

import numpy as np
import pytest

from gpusonde.errors import ProblemError
from gpusonde.simulator.compute import ComputeCurve, ComputeProbe, CurveOrigin, fit_compute_curve

BATCHES = np.array([1, 2, 4, 8, 16, 32, 64, 128, 256])
KINDS = ("default", "paper", "linear")


def bound_by_launches_then_by_throughput(batch):
    return np.maximum(0.02, 0.0005 * np.asarray(batch, dtype=float))


def probes_of(latency, batches):
    return [ComputeProbe(float(batch), float(latency(batch))) for batch in batches]


@pytest.mark.parametrize("kind", KINDS)
def test_four_probes_of_a_straight_line_give_that_line(kind):
    curve = fit_compute_curve(probes_of(lambda batch: 0.01 + 0.001 * batch, (1, 8, 32, 256)), kind)
    assert curve.predict(BATCHES).total_s == pytest.approx(0.01 + 0.001 * BATCHES, rel=1e-3)


def test_a_latency_that_bends_is_followed_better_than_by_a_line():
    probes = probes_of(bound_by_launches_then_by_throughput, (1, 8, 40, 256))
    held_out = np.array([2.0, 4.0, 16.0, 96.0, 160.0])
    true = bound_by_launches_then_by_throughput(held_out)

    def error(kind):
        return float(np.mean(np.abs(fit_compute_curve(probes, kind).predict(held_out).total_s / true - 1)))

    assert error("default") < 0.5 * error("linear")
    assert error("default") < 0.1


@pytest.mark.parametrize("kind", KINDS)
def test_no_curve_ever_falls_and_none_reaches_zero_however_the_probes_scatter(kind):
    random = np.random.default_rng(1)
    for _ in range(200):
        batches = np.sort(random.choice(np.arange(1, 600), size=random.integers(2, 8), replace=False))
        seconds = (0.01 + 0.0005 * batches) * np.exp(0.5 * random.standard_normal(batches.size))
        curve = fit_compute_curve([ComputeProbe(*each) for each in zip(batches, seconds, strict=True)], kind)
        total = curve.predict(np.geomspace(0.01, 1e5, 400)).total_s
        assert (total > 0).all()
        assert (np.diff(total) >= -1e-12 * total[1:]).all()


@pytest.mark.parametrize("place", range(6))
@pytest.mark.parametrize("factor", [0.7, 1.2, 1.5])
def test_one_probe_that_is_far_off_harms_no_more_than_it_harms_a_curve_through_all_probes(place, factor):
    batches = (4, 8, 16, 32, 64, 128)
    probes = probes_of(lambda batch: 0.01 + 0.001 * batch, batches)
    probes[place] = ComputeProbe(batches[place], factor * probes[place].total_s)
    asked = np.geomspace(4, 128, 50)

    def error(kind):
        total = fit_compute_curve(probes, kind).predict(asked).total_s
        return float(np.mean(np.abs(total / (0.01 + 0.001 * asked) - 1)))

    assert error("default") < 1.25 * error("paper") + 0.01


def test_several_probes_at_one_batch_size_count_as_their_median():
    outlier = [ComputeProbe(8, 0.02), ComputeProbe(8, 0.021), ComputeProbe(8, 0.5)]
    curve = fit_compute_curve([*outlier, ComputeProbe(16, 0.04)], "paper")
    assert curve.predict([8, 16]).total_s.tolist() == pytest.approx([0.021, 0.04])


def test_the_passes_and_their_spread_come_from_the_probes_where_those_say_them():
    probes = [ComputeProbe(8, 0.03, forward_s=0.012, spread=0.02), ComputeProbe(16, 0.06, forward_s=0.024, spread=0.04)]
    latency = fit_compute_curve(probes).predict(12)
    assert latency.forward_s[0] == pytest.approx(0.4 * latency.total_s[0])
    assert latency.spread[0] == pytest.approx(0.03)
    unknown = fit_compute_curve([ComputeProbe(8, 0.03), ComputeProbe(16, 0.06)]).predict(12)
    assert unknown.forward_s[0] == pytest.approx(unknown.backward_s[0] / 2)
    assert unknown.spread[0] > 0


def test_a_curve_is_less_certain_between_probes_and_far_less_beyond_them():
    curve = fit_compute_curve(probes_of(bound_by_launches_then_by_throughput, (4, 16, 64, 256)))
    at, between, beyond = curve.predict([16, 32, 2000]).uncertainty
    assert 0.005 < at < between < beyond
    assert beyond > 0.1


def test_nine_of_ten_curves_lie_within_their_range():
    random, inside = np.random.default_rng(3), []
    for _ in range(200):
        fixed, per_sample, power = random.uniform(0.005, 0.05), random.uniform(1e-4, 2e-3), random.uniform(1.2, 4)

        def latency(batch, fixed=fixed, per_sample=per_sample, power=power):
            """Bound by launches or by throughput, and something between both where they meet."""
            return (fixed**power + (per_sample * np.asarray(batch, dtype=float)) ** power) ** (1 / power)

        probes = [
            ComputeProbe(batch, float(latency(batch) * np.exp(0.03 * random.standard_normal())))
            for batch in (2, 11, 55, 300)
        ]
        asked = np.array([4.0, 25.0, 120.0])
        found = fit_compute_curve(probes).predict(asked)
        inside += list(np.abs(np.log(found.total_s / latency(asked))) <= 1.645 * found.uncertainty)
    assert 0.85 <= np.mean(inside) <= 1.0


def test_batch_sizes_outside_of_the_probes_are_marked():
    curve = fit_compute_curve([ComputeProbe(8, 0.03), ComputeProbe(16, 0.06)])
    assert curve.predict([4, 8, 12, 16, 17]).extrapolated.tolist() == [True, False, False, False, True]
    assert (curve.known_from, curve.known_to, curve.origin) == (8.0, 16.0, CurveOrigin.PROBES)


@pytest.mark.parametrize("kind", KINDS)
def test_a_curve_of_one_probe_is_refused_with_what_to_do(kind):
    for probes in ([], [ComputeProbe(8, 0.03)], [ComputeProbe(8, 0.03), ComputeProbe(8, 0.031)]):
        with pytest.raises(ProblemError, match=r"two batch sizes or more, got .; time another batch size"):
            fit_compute_curve(probes, kind)


@pytest.mark.parametrize(
    "probe",
    [
        ComputeProbe(0, 0.1),
        ComputeProbe(-4, 0.1),
        ComputeProbe(8, 0.0),
        ComputeProbe(8, float("nan")),
        ComputeProbe(float("inf"), 0.1),
        ComputeProbe(8, 0.1, forward_s=0.0),
        ComputeProbe(8, 0.1, forward_s=0.1),
        ComputeProbe(8, 0.1, spread=-0.1),
        ComputeProbe(8, 0.1, spread=float("nan")),
    ],
)
def test_a_probe_that_nothing_can_measure_is_refused(probe):
    with pytest.raises(ProblemError, match="ComputeProbe"):
        fit_compute_curve([probe, ComputeProbe(16, 0.2), ComputeProbe(32, 0.3)])


def test_an_unknown_kind_is_refused_with_those_that_exist():
    with pytest.raises(ProblemError, match="default, paper, linear"):
        fit_compute_curve(probes_of(lambda batch: 0.001 * batch, (1, 2)), "cubic")


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"batch_sizes": [8.0], "total_s": [0.1], "spread": [0.0]}, "two knots"),
        ({"batch_sizes": [8.0, 8.0]}, "increasing"),
        ({"total_s": [0.2, 0.1]}, "not decrease"),
        ({"total_s": [0.1, float("nan")]}, "total_s"),
        ({"spread": [-0.1, 0.1]}, "spread"),
        ({"forward_share": 1.0}, "forward_share"),
        ({"largest_batch": 0}, "largest_batch"),
        ({"uncertainty": [0.1, -0.1]}, "uncertainty"),
        ({"uncertainty": [0.1, 0.1, 0.1]}, "uncertainty"),
    ],
)
def test_knots_that_are_no_curve_are_refused(changed, says):
    knots = {
        "batch_sizes": [8.0, 16.0], "total_s": [0.1, 0.2], "spread": [0.05, 0.05], "forward_share": 0.3,
        "origin": CurveOrigin.PROBES, "known_from": 8.0, "known_to": 16.0,
    }  # fmt: skip
    with pytest.raises(ValueError, match=says):
        ComputeCurve(**{**knots, **changed})
    with pytest.raises(ValueError, match="above zero"):
        ComputeCurve(**knots).predict([0.0])
