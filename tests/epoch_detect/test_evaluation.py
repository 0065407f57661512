"""Scoring: what counts as an answer, an error and a false positive."""

import numpy as np
import pytest

from gpusonde.epoch_detect import Cycle, CycleRole, EpochDetection, Verdict
from gpusonde.epoch_detect.evaluation import (
    TrueLevel,
    Truth,
    evaluate,
    level_reliability,
    reliability,
    role_reliability,
    score,
    summarise,
)
from gpusonde.errors import DocumentError
from gpusonde.telemetry import Trace

TRACE = Trace(np.arange(3.0), {"dram_active": np.zeros(3)})


def _found(verdict: Verdict, period_s: float = float("nan"), confidence: float = 0.9) -> EpochDetection:
    return EpochDetection(verdict, "", period_s=period_s, confidence=confidence)


def test_epochs_and_short_cycles_are_answers_and_an_undeclared_positive_counts_in_full() -> None:
    truth = Truth((10.0,))
    scores = [
        score("a", _found(Verdict.EPOCHS, 10.9), truth),
        score("b", _found(Verdict.SHORT_CYCLE, 10.4), truth),
        score("c", _found(Verdict.NONE), truth),
        score("d", _found(Verdict.EPOCHS, 30.0), truth),
    ]
    summary = summarise(scores)
    assert [round(s.ape or 0, 6) for s in scores] == [0.09, 0.04, 1.0, 2.0]
    assert summary.declared == 0.75
    assert summary.mape == pytest.approx((0.09 + 0.04 + 1 + 2) / 4)
    assert summary.median_ape == pytest.approx(0.545)
    assert (summary.within_5pct, summary.within_10pct) == (0.25, 0.5)
    assert summary.mape_declared == pytest.approx((0.09 + 0.04 + 2) / 3)
    assert summary.false_positive_rate is None


def test_only_the_verdict_epochs_is_a_false_positive() -> None:
    verdicts = (Verdict.EPOCHS, Verdict.SHORT_CYCLE, Verdict.NONE, Verdict.NONE)
    summary = summarise(score("n", _found(v, 5.0), Truth(())) for v in verdicts)
    assert summary.false_positive_rate == 0.25
    assert (summary.mape, summary.declared, summary.positives) == (None, None, 0)


def test_an_error_of_just_five_or_ten_percent_is_within_it() -> None:
    summary = summarise(score("t", _found(Verdict.EPOCHS, p), Truth((10.0,))) for p in (9.0, 11.0, 9.5, 10.5, 11.01))
    assert (summary.within_5pct, summary.within_10pct) == (0.4, 0.8)


def test_silence_about_a_positive_is_an_error_of_100_percent_whatever_the_period_and_its_confidence() -> None:
    silent = score("t", _found(Verdict.NONE, 10.0, 0.99), Truth((10.0, 20.0)))
    assert (silent.ape, silent.period_s) == (1.0, None)
    summary = summarise([silent])
    assert (summary.mape, summary.median_ape, summary.within_10pct, summary.declared) == (1.0, 1.0, 0.0, 0.0)
    assert summary.mape_declared is None


@pytest.mark.parametrize("period_s", [float("nan"), float("inf"), 0.0, -3.0])
def test_a_verdict_without_a_period_is_no_answer(period_s: float) -> None:
    scored = score("t", _found(Verdict.EPOCHS, period_s), Truth((10.0,)))
    assert (scored.ape, scored.period_s) == (1.0, None)


def test_false_positives_do_not_touch_the_errors_and_positives_not_the_false_positives() -> None:
    summary = summarise(
        [score("p", _found(Verdict.EPOCHS, 10.0), Truth((10.0,))), score("n", _found(Verdict.EPOCHS, 3.0), Truth(()))]
    )
    assert (summary.traces, summary.positives, summary.negatives) == (2, 1, 1)
    assert (summary.mape, summary.false_positive_rate) == (0.0, 1.0)


def test_a_set_without_traces_has_no_figures() -> None:
    summary = summarise([])
    assert (summary.traces, summary.mape, summary.false_positive_rate, summary.boundary_recall) == (0, None, None, None)
    assert reliability([]) == ()


def test_the_nearest_of_several_regimes_counts() -> None:
    assert score("r", _found(Verdict.EPOCHS, 79.0), Truth((40.0, 80.0))).ape == pytest.approx(1 / 80)


def test_boundaries_are_scored_where_the_period_is_right() -> None:
    found = EpochDetection(
        Verdict.EPOCHS, "", period_s=10.0, epoch_starts_s=np.array([0.1, 10.0]), epoch_ends_s=np.array([10.0, 21.0])
    )
    scored = score("b", found, Truth((10.0,), (0.0, 10.0, 20.0)))
    assert scored.boundary_errors_s == pytest.approx((0.1, 0.0, 1.0))
    assert scored.boundaries_found == pytest.approx(2 / 3)
    assert score("b", found, Truth((20.0,), (0.0,))).boundary_errors_s == ()


def test_boundaries_are_found_to_within_a_twentieth_of_a_long_period_and_0_3_s_of_a_short_one() -> None:
    for period_s, off_s, share in ((100.0, 4.9, 1.0), (100.0, 5.1, 0.0), (2.0, 0.29, 1.0), (2.0, 0.31, 0.0)):
        starts = np.array([0.0, period_s])
        found = EpochDetection(Verdict.EPOCHS, "", period_s=period_s, epoch_starts_s=starts, epoch_ends_s=starts)
        assert score("b", found, Truth((period_s,), (off_s,))).boundaries_found == share


def test_recall_is_the_mean_over_traces_and_the_boundary_error_the_median_over_boundaries() -> None:
    starts = np.array([0.0, 10.0, 20.0])
    found = EpochDetection(Verdict.EPOCHS, "", period_s=10.0, epoch_starts_s=starts, epoch_ends_s=starts)
    summary = summarise(
        [score("a", found, Truth((10.0,), (0.0, 10.0, 20.0))), score("b", found, Truth((10.0,), (4.0,)))]
    )
    assert (summary.boundary_recall, summary.boundary_error_median_s) == (0.5, 0.0)


def test_a_right_period_without_boundaries_speaks_neither_for_nor_against_them() -> None:
    scored = score("p", _found(Verdict.EPOCHS, 10.0), Truth((10.0,), (0.0, 10.0)))
    assert (scored.boundary_errors_s, scored.boundaries_found) == ((), None)


def test_reliability_covers_every_confidence_and_leaves_out_a_detector_that_states_none() -> None:
    truth = Truth((10.0,))
    bins = reliability(score("t", _found(Verdict.EPOCHS, 10.0, c), truth) for c in (0.0, 0.3, 0.5, 1.0))
    assert [(b.low, b.high, b.answers) for b in bins] == [(0.0, 0.5, 1), (0.5, 0.7, 1), (0.98, 1.0, 1)]


def test_reliability_counts_the_share_of_right_answers_per_confidence_and_wrong_ones_on_negatives() -> None:
    right, wrong = Truth((10.0,)), Truth(())
    scores = [score(str(i), _found(Verdict.EPOCHS, 10.0, 0.96), right) for i in range(3)]
    scores.append(score("n", _found(Verdict.EPOCHS, 10.0, 0.96), wrong))
    scores.append(score("s", _found(Verdict.SHORT_CYCLE, 1.0, 0.96), wrong))
    (only,) = reliability(scores)
    assert (only.low, only.answers, only.right) == (0.95, 4, 0.75)


def test_a_set_is_scored_as_a_whole_and_by_shape() -> None:
    truth = {"a": Truth((10.0,), (), "round"), "b": Truth((5.0,), (), "square")}
    result = evaluate([("a", TRACE), ("b", TRACE)], truth, lambda _: _found(Verdict.EPOCHS, 10.0))
    assert result.overall.within_10pct == 0.5
    assert {k: v.within_10pct for k, v in result.by_shape.items()} == {"round": 1.0, "square": 0.0}
    with pytest.raises(DocumentError, match="c: no truth for this trace"):
        evaluate([("c", TRACE)], truth, lambda _: _found(Verdict.NONE))


def _cycle(
    period_s: float, confidence: float, role: CycleRole = CycleRole.UNKNOWN, role_confidence: float = 0.0
) -> Cycle:
    return Cycle(period_s, period_s, period_s, 9, np.empty(0), confidence, role, role_confidence)


def _tree(*cycles: Cycle, confidence: float = 0.9) -> EpochDetection:
    chosen = cycles[-1].period_s if cycles else float("nan")
    verdict = Verdict.EPOCHS if cycles else Verdict.NONE
    return EpochDetection(verdict, "", period_s=chosen, confidence=confidence, cycles=cycles)


NEST = Truth(
    (100.0,),
    levels=(
        TrueLevel((0.2,), (CycleRole.STEP,), visible=False),
        TrueLevel((25.0,), (CycleRole.EVALUATION,)),
        TrueLevel((100.0,), (CycleRole.EPOCH, CycleRole.CHECKPOINT)),
    ),
)


def test_the_truth_is_listed_where_a_level_told_with_a_tenth_or_more_is_near_it() -> None:
    told = score("a", _tree(_cycle(24.0, 0.9), _cycle(95.0, 0.1)), NEST)
    doubted = score("b", _tree(_cycle(24.0, 0.9), _cycle(95.0, 0.09)), NEST)
    summary = summarise([told, doubted])
    assert (told.listed, told.levels_listed) == (True, (True, True))
    assert (doubted.listed, doubted.levels_listed) == (False, (True, False))
    assert (summary.listed_within_10pct, summary.levels_listed, summary.levels_told) == (0.5, 0.75, 1.5)


def test_of_more_than_five_levels_the_likeliest_count() -> None:
    cycles = [_cycle(100.0 * 2**-i, 0.9 - 0.1 * i) for i in range(7)][::-1]
    scored = score("a", _tree(*cycles), NEST)
    assert [level.period_s for level in scored.levels] == [6.25, 12.5, 25.0, 50.0, 100.0]


def test_an_invisible_level_is_real_when_told_and_not_missed_when_not() -> None:
    scored = score("a", _tree(_cycle(0.2, 0.8), _cycle(7.0, 0.6)), NEST)
    assert [level.real for level in scored.levels] == [True, False]
    assert scored.levels_listed == (False, False)


def test_a_list_is_right_by_chance_where_it_holds_the_truth_of_another_trace() -> None:
    lists = _tree(_cycle(10.0, 0.9), _cycle(60.0, 0.9))
    scores = [score("a", lists, Truth((10.0,))), score("b", _tree(_cycle(3.0, 0.9)), Truth((61.0,)))]
    assert summarise(scores).listed_chance == 0.5
    assert summarise(scores[:1]).listed_chance is None


def test_a_near_truth_of_another_trace_is_no_chance() -> None:
    scores = [score("a", _tree(_cycle(10.0, 0.9)), Truth((p,))) for p in (10.0, 10.5)]
    assert summarise(scores).listed_chance is None


def test_a_detector_without_a_tree_tells_its_answer_as_the_only_level() -> None:
    scored = score("a", _found(Verdict.EPOCHS, 10.0, 0.0), Truth((10.0,)))
    assert (scored.listed, len(scored.levels)) == (True, 1)


def test_roles_are_judged_on_real_levels_and_any_of_several_true_names_is_right() -> None:
    scored = score(
        "a",
        _tree(
            _cycle(7.0, 0.5, CycleRole.STEP, 0.99),
            _cycle(25.0, 0.8, CycleRole.EPOCH, 0.75),
            _cycle(100.0, 0.8, CycleRole.CHECKPOINT, 0.6),
        ),
        NEST,
    )
    assert [level.role_right for level in scored.levels] == [None, False, True]
    summary = summarise([scored])
    assert (summary.roles_right, summary.roles_confidently_wrong) == (0.5, 0.5)
    assert [(b.low, b.answers, b.right) for b in role_reliability([scored])] == [(0.5, 1, 1.0), (0.7, 1, 0.0)]
    assert [(b.low, b.answers, b.right) for b in level_reliability([scored])] == [(0.5, 1, 0.0), (0.7, 2, 1.0)]


def test_unknown_is_no_wrong_name_and_right_for_what_has_none() -> None:
    shards = Truth((), levels=(TrueLevel((5.0,), (CycleRole.UNKNOWN,)),))
    right, silent = score("a", _tree(_cycle(5.0, 0.9)), shards), score("b", _tree(_cycle(25.0, 0.9)), NEST)
    assert summarise([right]).roles_right == 1.0
    assert (summarise([silent]).roles_right, summarise([silent]).roles_confidently_wrong) == (0.0, 0.0)
    assert role_reliability([right, silent]) == ()


def test_a_negative_with_a_level_called_epoch_counts() -> None:
    calls = [score("n", _tree(_cycle(5.0, 0.9, role, 0.9)), Truth(())) for role in (CycleRole.EPOCH, CycleRole.STEP)]
    assert summarise(calls).epoch_role_rate == 0.5


def test_confidently_wrong_are_answers_of_point_eight_or_more() -> None:
    answers = [score("a", _found(Verdict.EPOCHS, p, c), Truth((10.0,))) for p, c in ((20, 0.8), (20, 0.79), (10, 1.0))]
    assert summarise(answers).confidently_wrong == pytest.approx(1 / 3)


def test_levels_say_nothing_of_calibration_where_only_one_period_is_known() -> None:
    scored = score("a", _tree(_cycle(3.0, 0.9), _cycle(10.0, 0.9)), Truth((10.0,)))
    assert [level.real for level in scored.levels] == [None, True]
