"""The seed's time line (Srifty, figure 8) in simulated time."""

from __future__ import annotations

import pytest
from srifty_figure_8 import play

from gpusonde.optimizer.continual import ContinualOptions, DecisionKind


def test_every_event_of_the_seeds_time_line_comes_within_a_second() -> None:
    played = play()
    events = played.events()
    assert [event.name for event in events if abs(event.happened_s - event.published_s) > 1] == []
    assert played.world.job.finished_s is not None
    assert played.world.job.finished_s < 500
    assert not played.world.cloud.machines(), "nothing is paid for after the end"


def test_the_plans_are_the_seeds_and_the_surviving_machine_is_kept() -> None:
    launches = [d for _, d in play().decisions if d.kind is DecisionKind.LAUNCH]
    first, second = (decision.recommendation for decision in launches)
    assert str(first.plan) == "2 x p3.8xl @ 128"
    assert str(second.plan) == "8 x g3.8xl @ 32 + 1 x p3.8xl @ 128"
    assert second.launch == (("g3.8xl", 8),)
    assert second.end == ()
    assert second.remaining_iterations == pytest.approx(200, abs=1)


def test_without_waiting_for_the_volume_the_same_job_ends_four_seconds_sooner() -> None:
    played = play(ContinualOptions(restore_s=0.0, save_s=0.0))
    assert played.world.job.finished_s == pytest.approx(415, abs=1)
    plans = [str(d.recommendation.plan) for _, d in played.decisions if d.kind is DecisionKind.LAUNCH]
    assert plans == ["2 x p3.8xl @ 128", "8 x g3.8xl @ 32 + 1 x p3.8xl @ 128"]


def test_the_seeds_rules_never_ask_for_a_depleted_offer_again() -> None:
    asked = [offer for at_s, d in play().decisions for offer, _ in d.recommendation.launch if at_s > 222]
    assert asked == ["g3.8xl"]
