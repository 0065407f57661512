"""Scoring: what counts as an answer, an error and a false positive."""

from pathlib import Path

import numpy as np
import pytest

from gpusonde.epoch_detect import EpochDetection, Verdict
from gpusonde.epoch_detect.evaluation import Truth, TruthError, evaluate, read_truth, reliability, score, summarise
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
    with pytest.raises(TruthError, match="no truth for trace 'c'"):
        evaluate([("c", TRACE)], truth, lambda _: _found(Verdict.NONE))


def test_truth_files_are_read_and_bad_ones_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "truth.json"
    path.write_text('{"a": {"period_s": 2.5, "epoch_starts_s": [1, 2], "shape": "x"}, "n": {"period_s": null}}')
    assert read_truth(path) == {"a": Truth((2.5,), (1.0, 2.0), "x"), "n": Truth(())}
    for text, message in (("{", "not JSON"), ("[]", "an object of trace ids"), ('{"a": {}}', "trace 'a'")):
        path.write_text(text)
        with pytest.raises(TruthError, match=message):
            read_truth(path)
    with pytest.raises(TruthError, match="give the truth file"):
        read_truth(tmp_path / "missing.json")
