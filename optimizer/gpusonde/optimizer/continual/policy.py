"""``Policy``: which plan to go on with, and why.

Deadlines are kept by a guard. On-demand machines are taken to be there, so the deadline can be kept as long as the
time left suffices for the fastest on-demand plan, launched slowly, to do all that is left. Spot machines are used,
and capacity is waited for, only while that holds; when it is about to fail, the job goes on demand while the spot
machines still work.

Time to spare can be spent on waiting for cheap capacity or on restarts after preemptions. Were restarts free, it would
be best to wait as long as one can and to take every spot machine after that, too: nothing there was is missed. So the
time that preemptions will need is set aside (``CandidateFinder.reserve_s``), the rest is waited, and a job on demand
that gets ahead by more than a stop and a start cost waits again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from gpusonde.formatting import dollars, duration
from gpusonde.optimizer.continual.candidates import CandidateFinder, PlanCandidate, WatchedJob, score
from gpusonde.optimizer.continual.options import ContinualOptions
from gpusonde.optimizer.continual.progress import Throughput
from gpusonde.optimizer.problem import Billing, Objective, Problem

# A running plan is left for a cheaper one only if it has this many times longer to go than the switch takes.
_LEAST_LEFT = 2.0


@dataclass(frozen=True)
class Fallback:
    """The on-demand plan that guards a deadline.

    Attributes:
        candidate: It, from now.
        slack_s: Time that can still pass before it must be started.
    """

    candidate: PlanCandidate
    slack_s: float


@dataclass(frozen=True)
class PolicyDecision:
    """What a policy says.

    Attributes:
        candidate: The plan to go on with; None for none.
        wait: With None: True when waiting for capacity is the best there is.
        why: The reasons.
        at_risk: The deadline or budget cannot be kept with confidence.
        fallback: What guards the deadline.
        again_s: When the ruling may change by itself.
    """

    candidate: PlanCandidate | None
    why: str
    wait: bool = False
    at_risk: bool = False
    fallback: Fallback | None = None
    again_s: float = math.inf


class Policy:
    """Judges states of one job.

    Args:
        problem: The whole job.
        options: Times and rules.
        finder: Finds plans.
    """

    def __init__(self, problem: Problem, options: ContinualOptions, finder: CandidateFinder) -> None:
        self._problem = problem
        self._options = options
        self._finder = finder
        self._has_spot = any(offer.billing is Billing.SPOT for offer in problem.offers)

    def replace_problem(self, problem: Problem) -> None:
        """Judge by the same job's offers as they are now."""
        self._problem = problem

    def fallback(self, at: WatchedJob, spot: PlanCandidate | None) -> Fallback | None:
        """Return what guards the deadline while ``spot`` runs (or nothing does); None when nothing can or need."""
        if self._problem.deadline_s is None or not self._options.guard:
            return None
        fastest = self._finder.best(at, on_demand_only=True, deadline=False, objective=Objective.TIME)
        if fastest is None:
            return None
        lost_s = 0.0 if spot is None else _lost_s(spot, fastest)
        options = self._options
        reserve_s = options.detect_s + options.release_s + options.review_s + lost_s
        return Fallback(fastest, self._problem.deadline_s - fastest.bound_s - reserve_s)

    def choose(self, at: WatchedJob, idle_since_s: float | None, expiry_s: float) -> PolicyDecision:
        """Say what to go on with when nothing runs.

        Args:
            at: Where the job stands.
            idle_since_s: Since when it has been waiting for capacity; None when it has not.
            expiry_s: When the next depleted offer can be asked again; infinite for never.
        """
        objective = self._problem.objective
        fallback = self.fallback(at, None)
        planned = self._finder.planned(at) if self._options.guard and idle_since_s is None else None
        if planned is not None:
            is_safe = not planned.spot or self._safe(planned, at, fallback)
            if (is_safe or self._finder.doubts_speeds) and not self._is_dearer(planned, at, fallback):
                # What nobody waited for or measured yet is asked no more than whoever planned it asked.
                why = f"{planned.plan} is the {_superlative(objective)}"
                return PolicyDecision(planned, why, fallback=fallback if is_safe else None)
        found = [
            self._finder.best(at),
            self._finder.best(at, ready_only=True) if at.ready else None,
            self._finder.best(at, on_demand_only=True) if self._has_spot else None,
            fallback.candidate if fallback is not None else None,
        ]
        safe = [candidate for candidate in found if candidate is not None and self._safe(candidate, at, fallback)]
        best = min(safe, key=lambda candidate: score(candidate, objective), default=None)
        if (best is None or not best.spot) and objective is Objective.COST and math.isfinite(expiry_s):
            until_s = self._waits_until(at, best, idle_since_s)
            if until_s > at.now_s:
                dearer = f" rather than pay {dollars(best.usd)} on demand" if best is not None else ""
                return PolicyDecision(
                    None,
                    f"no spot capacity at present; there is time to wait for it{dearer}",
                    wait=True,
                    fallback=fallback,
                    again_s=min(expiry_s, until_s),
                )
        if best is not None:
            why = f"{best.plan} is the {_superlative(objective)} that can be had now"
            return PolicyDecision(best, why, at_risk=self._is_at_risk(best, at, fallback), fallback=fallback)
        return self._best_effort(at, fallback, expiry_s)

    def review(
        self,
        stay: PlanCandidate,
        at: WatchedJob,
        throughput: Throughput | None,
        *,
        look: bool,
        expiry_s: float,
        unguarded: bool = False,
    ) -> PolicyDecision:
        """Say whether a running plan stays.

        Args:
            stay: The running plan from here on.
            at: Where the job stands.
            throughput: Of late.
            look: Search for something better although all is well.
            expiry_s: When the next depleted offer can be asked again.
            unguarded: Whether its spot machines were chosen although nothing guards them; they are not left for that.
        """
        problem = self._problem
        deadline_s = problem.deadline_s
        fallback = None
        if deadline_s is not None:
            fallback = self.fallback(at, stay if stay.spot else None)
            if unguarded and fallback is not None and fallback.slack_s <= 0:
                fallback = None
            if stay.spot and fallback is not None and fallback.slack_s <= 0:
                return self._leave_spot(at, fallback)
            certain = _optimistic_end_s(stay, at, throughput) > deadline_s
            last_moment = fallback is not None and not stay.spot and stay.end_s > deadline_s and fallback.slack_s <= 0
            if certain or last_moment:
                return self._rescue(stay, at, fallback, certain)
        if look and self._options.seek_better:
            better = self._better(stay, at, fallback)
            if better is not None:
                return better
        if deadline_s is not None and not stay.spot and problem.objective is Objective.COST and math.isfinite(expiry_s):
            until_s = self._waits_until(_without_machines(at), stay, None)
            if until_s > at.now_s + 2 * self._options.slow_restart_s:
                why = "no spot capacity at present; the job is ahead far enough to wait for it"
                return PolicyDecision(None, why, wait=True, fallback=fallback, again_s=min(expiry_s, until_s))
        again_s = math.inf if fallback is None or not stay.spot else at.now_s + max(0.0, fallback.slack_s)
        late = deadline_s is not None and stay.end_s > deadline_s
        dear = problem.budget_usd is not None and at.spent_usd + stay.usd > problem.budget_usd
        why = "all is well"
        if late:
            why = "behind, but not certainly: the fluctuation may pass"
        if dear:
            why = f"the job is expected to cost {dollars(at.spent_usd + stay.usd)}, above its budget"
        at_risk = late or self._is_at_risk(stay, at, fallback)
        return PolicyDecision(stay, why, at_risk=at_risk, fallback=fallback, again_s=min(again_s, expiry_s))

    def _leave_spot(self, at: WatchedJob, fallback: Fallback) -> PolicyDecision:
        cheapest = self._finder.best(at, on_demand_only=True)
        if cheapest is None or cheapest.bound_s > (self._problem.deadline_s or math.inf):
            cheapest = fallback.candidate
        why = (
            f"if the spot machines went now, {fallback.candidate.plan} would just keep the deadline: "
            "the job goes on demand while they still work"
        )
        return PolicyDecision(cheapest, why, fallback=fallback)

    def _rescue(self, stay: PlanCandidate, at: WatchedJob, fallback: Fallback | None, certain: bool) -> PolicyDecision:
        sure = "even at its optimistic rate" if certain else "at its mean rate, and later it could not be mended"
        late = f"{stay.plan} misses the deadline {sure}"
        found = self._finder.best(at, or_nearest=True)
        nearest = self._guarded(found, at, fallback)
        for other in (found, fallback.candidate if fallback is not None else None, nearest):
            if other is not None and other.plan != stay.plan and self._safe(other, at, fallback):
                return PolicyDecision(other, f"{late}; {other.plan} keeps it", fallback=fallback)
        if nearest is not None and nearest.plan != stay.plan and self._gain(stay.end_s, nearest.end_s, at.now_s):
            why = f"{late}; no plan keeps it with confidence, {nearest.plan} comes nearest"
            return PolicyDecision(nearest, why, at_risk=True, fallback=fallback)
        return PolicyDecision(stay, f"{late}; no plan would end much sooner", at_risk=True, fallback=fallback)

    def _better(self, stay: PlanCandidate, at: WatchedJob, fallback: Fallback | None) -> PolicyDecision | None:
        other = self._finder.best(at)
        if other is None or other.plan == stay.plan or not self._safe(other, at, fallback, stay=stay):
            return None
        if self._problem.objective is Objective.TIME:
            gains = self._gain(stay.end_s, other.end_s, at.now_s)
            than = f"{duration(other.end_s - at.now_s)} instead of {duration(stay.end_s - at.now_s)}"
        else:
            # Until the others are there the running plan does the work: with little left, nothing is saved.
            worthwhile = stay.run.running_s > _LEAST_LEFT * other.wait_s
            gains = worthwhile and other.usd * self._options.improvement < stay.usd
            than = f"{dollars(other.usd)} instead of {dollars(stay.usd)}"
        return PolicyDecision(other, f"{other.plan} does the rest for {than}", fallback=fallback) if gains else None

    def _best_effort(self, at: WatchedJob, fallback: Fallback | None, expiry_s: float) -> PolicyDecision:
        limits = "deadline" if self._problem.deadline_s is not None else "limits"
        nearest = self._guarded(self._finder.best(at, or_nearest=True), at, fallback)
        if nearest is None:
            within = " within the budget" if self._problem.budget_usd is not None else ""
            why = f"no plan can be had that does the job{within}"
            return PolicyDecision(None, why, at_risk=True, again_s=expiry_s)
        why = f"no plan keeps the {limits} with confidence; {nearest.plan} comes nearest"
        nearest = self._finder.as_planned(nearest, at) if self._options.guard else nearest
        return PolicyDecision(nearest, why, at_risk=True, fallback=fallback)

    def _guarded(
        self, nearest: PlanCandidate | None, at: WatchedJob, fallback: Fallback | None
    ) -> PlanCandidate | None:
        """Return it, or on-demand machines: spot machines that nothing guards would be left at the next review."""
        if nearest is None or not nearest.spot or fallback is None:
            return nearest
        return self._finder.best(at, on_demand_only=True, or_nearest=True) or fallback.candidate

    def _safe(
        self, candidate: PlanCandidate, at: WatchedJob, fallback: Fallback | None, stay: PlanCandidate | None = None
    ) -> bool:
        """Whether the deadline can be kept with a plan even if its spot machines go."""
        deadline_s = self._problem.deadline_s
        if deadline_s is None or not self._options.guard:
            return True
        if not candidate.spot:
            return candidate.bound_s <= deadline_s or (stay is not None and candidate.bound_s <= stay.bound_s)
        if fallback is None:
            return candidate.end_s <= deadline_s
        if stay is not None and not stay.spot:
            # What runs is known better than what ran before: the guard has to hold after the switch, too, or the spot
            # machines are left as soon as they work.
            fallback = self.fallback(_without_machines(at), None) or fallback
        # A switch and the switch back; until the machines are there nothing is gained, unless something else works.
        options = self._options
        wasted_s = 2 * (options.solve_s + options.restore_s + options.save_s)
        if stay is None and candidate.wait_s > options.launch_s:
            wasted_s += options.launch_slowest_s
        return fallback.slack_s > wasted_s + _lost_s(candidate, fallback.candidate)

    def _is_at_risk(self, candidate: PlanCandidate, at: WatchedJob, fallback: Fallback | None) -> bool:
        """Whether the budget is exceeded on average, or spot machines may end late and no other ones take over."""
        problem = self._problem
        if problem.budget_usd is not None and at.spent_usd + candidate.usd > problem.budget_usd:
            return True
        return (
            problem.deadline_s is not None
            and candidate.spot
            and fallback is None
            and candidate.kept_s > problem.deadline_s
        )

    def _is_dearer(self, spot: PlanCandidate, at: WatchedJob, fallback: Fallback | None) -> bool:
        """Whether the checkpoints that a deadline asks of spot machines cost more than these save."""
        if not spot.spot or self._problem.objective is Objective.TIME:
            return False
        sure = self._finder.best(at, on_demand_only=True)
        if sure is None or not self._safe(sure, at, fallback):
            return False
        return self._finder.evaluate(spot.plan, at).usd > sure.usd

    def _waits_until(self, at: WatchedJob, best: PlanCandidate | None, idle_since_s: float | None) -> float:
        """Return until when waiting for spot capacity beats going on without."""
        options = self._options
        if not self._has_spot or not options.guard:
            return -math.inf
        if self._problem.deadline_s is None:
            return (at.now_s if idle_since_s is None else idle_since_s) + options.patience_s
        cheapest = self._finder.best(at, on_demand_only=True, deadline=False, objective=Objective.COST)
        if cheapest is None or best is None:
            return -math.inf
        reserve_s = options.review_s + self._finder.reserve_s(cheapest, at)
        return self._problem.deadline_s - (cheapest.worst_s - at.now_s) - reserve_s

    def _gain(self, stay_end_s: float, other_end_s: float, now_s: float) -> bool:
        return (other_end_s - now_s) * self._options.improvement < stay_end_s - now_s


def _without_machines(at: WatchedJob) -> WatchedJob:
    """Return where the job would stand if its machines were gone."""
    return replace(at, running=None, held={}, ready={})


def _optimistic_end_s(stay: PlanCandidate, at: WatchedJob, throughput: Throughput | None) -> float:
    """Return the end that a running plan undercuts with little probability, as measured or else as estimated."""
    if throughput is None:
        return stay.optimistic_s
    return at.now_s + at.remaining / throughput.high if throughput.high > 0 else math.inf


def _lost_s(spot: PlanCandidate, fastest: PlanCandidate) -> float:
    """Return the seconds in which an on-demand plan does again what spot machines did since the last checkpoint."""
    work_s = min(spot.run.interval_s, spot.run.running_s)
    return work_s * fastest.step_s / spot.step_s if spot.step_s > 0 and math.isfinite(work_s) else 0.0


def _superlative(objective: Objective) -> str:
    return "fastest plan" if objective is Objective.TIME else "cheapest plan"
