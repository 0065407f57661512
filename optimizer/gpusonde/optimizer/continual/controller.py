"""``Controller``: keeps a job on the machines that suit its deadline, budget and progress (Srifty, section 4.5).

It answers with a ``Decision`` for the runtime that carries it out, which holds a ``Recommendation`` for people.

Srifty takes a preemption as a sign that an offer is depleted and never chooses it again. Spot capacity comes back, so
here the exclusion expires.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple

from gpusonde.errors import ProblemError
from gpusonde.optimizer.continual.candidates import (
    CandidateFinder,
    GroupKind,
    PlanCandidate,
    Solver,
    WatchedJob,
    solve_exactly,
)
from gpusonde.optimizer.continual.fleet import Cloud, Fleet, Losses
from gpusonde.optimizer.continual.options import ContinualOptions
from gpusonde.optimizer.continual.policy import Policy, PolicyDecision
from gpusonde.optimizer.continual.progress import ProgressWindow, Projection, Throughput, project
from gpusonde.optimizer.preemptions import PreemptionRates
from gpusonde.optimizer.problem import Billing, MachineOffer, Plan, Problem
from gpusonde.optimizer.step_times import StepTimes


class DecisionKind(str, Enum):
    """What is to be done now."""

    LAUNCH = "launch"  # order machines; what runs goes on meanwhile
    WAIT = "wait"  # for machines that boot, or for a volume
    RUN = "run"  # every machine is there: start the job on the plan
    KEEP = "keep"  # the running plan stays
    IDLE = "idle"  # nothing runs, and waiting for cheaper capacity is the best there is
    NO_PLAN = "no_plan"  # nothing that can be had does the job
    DONE = "done"  # every iteration is done

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Recommendation:
    """What to rent from now on, and what comes of it. Times count on the job's clock.

    Attributes:
        plan: The plan to run, or that runs; None when there is none.
        launch: Machines to launch now, by offer.
        end: Machines to end now, by offer.
        projection: When the job will end on the plan; None without a plan.
        remaining_iterations: Iterations that are left.
        spent_usd: Spent so far.
        expected_usd: Spent when the job ends, in the mean; None without a plan.
        checkpoint_interval_s: Seconds of work between two checkpoints; infinite when none are needed.
        at_risk: True when deadline or budget cannot be kept with confidence.
        fallback: The on-demand plan that keeps the deadline if all spot machines go; None when not needed or none does.
        fallback_before_s: Latest time at which spot machines can still be left for it; None likewise.
        why: The reasons, for people.
    """

    plan: Plan | None
    launch: tuple[tuple[str, int], ...]
    end: tuple[tuple[str, int], ...]
    projection: Projection | None
    remaining_iterations: float
    spent_usd: float
    expected_usd: float | None
    checkpoint_interval_s: float
    at_risk: bool
    fallback: Plan | None
    fallback_before_s: float | None
    why: str


@dataclass(frozen=True)
class Decision:
    """One step's outcome.

    Attributes:
        kind: What is to be done.
        at_s: When it was decided, on the job's clock.
        recommendation: The same for people.
        machines: With ``RUN``: machines to start the job on.
        terminate: Machines to end.
        next_step_s: When to look again at the latest.
        solved: True when plans were searched for, which takes time.
    """

    kind: DecisionKind
    at_s: float
    recommendation: Recommendation
    machines: tuple[str, ...] = ()
    terminate: tuple[str, ...] = ()
    next_step_s: float = 0.0
    solved: bool = False


# Iterations that take this many times longer than estimated are taken as a fault of the job, not of the estimates.
_LARGEST_SLOWDOWN = 10.0
_FEWEST_INTERVALS = 3
_MOST_MEASURED = 64
# Progress of more than this many times all iterations is a fault; a little more is another way to count.
_MOST_PROGRESS = 1.01
# A job that has not made progress after this many times the time to restore it (or a window) stands still.
_LONGEST_RESTORES = 4.0


class _Target(NamedTuple):
    """What is being launched."""

    candidate: PlanCandidate
    ruling: PolicyDecision

    @property
    def is_unguarded(self) -> bool:
        """Whether it has spot machines that nothing guards."""
        return self.candidate.spot and self.ruling.fallback is None


class Controller:
    """Decides, step by step, on which machines a job goes on.

    A step asks the cloud what there is and what happened, compares progress with deadline and budget, searches for
    plans when there is a reason to, and answers with a :class:`Decision`; it changes nothing outside. Memory and work
    of a step are bounded. What comes in may be wrong: a clock that goes back counts as standing still,
    progress that cannot be and news of unknown machines are left out.

    Args:
        problem: The whole job; deadline and budget count from zero of the job's clock.
        steps: How long iterations take.
        cloud: Where machines are.
        solver: Finds the best plan of a problem; None for the exact search with five seconds at most.
        options: Times and rules.
        rates: Preemptions of the offers; pass one object to several controllers to let them learn from each other.
    """

    def __init__(
        self,
        problem: Problem,
        steps: StepTimes,
        cloud: Cloud,
        solver: Solver | None = None,
        options: ContinualOptions | None = None,
        rates: PreemptionRates | None = None,
    ) -> None:
        self.problem = problem
        self.options = options or ContinualOptions()
        rates = rates or PreemptionRates()
        self.fleet = Fleet(cloud, problem.offers, rates)
        self.window = ProgressWindow(self.options.window_s)
        self._finder = CandidateFinder(problem, steps, self.options, rates, solver or solve_exactly)
        self._policy = Policy(problem, self.options, self._finder)
        self._steps = steps
        self._depleted_until_s: dict[str, float] = {}
        self._completed = 0.0
        self._slowdown = 1.0
        self._saving = 1.0
        self._interval_s: float | None = None
        self._measured_s: dict[tuple[GroupKind, ...], float] = {}
        self._now_s = -math.inf
        self._running: tuple[Plan, frozenset[str]] | None = None
        self._is_unguarded = False
        self._target: _Target | None = None
        self._idle_since_s: float | None = None
        self._look_s = -math.inf
        self._restoring: tuple[float, float] | None = None
        self._unreleased: dict[str, float] = {}

    @property
    def running(self) -> Plan | None:
        """The plan the job runs on, as far as is known."""
        return self._running[0] if self._running else None

    @property
    def completed(self) -> float:
        """Iterations done, as far as is known; a change of machines leaves them."""
        return self._completed

    @property
    def searches(self) -> int:
        """How often a plan was searched for."""
        return self._finder.solved

    def observe(self, time_s: float, completed: float) -> bool:
        """Take the iterations completed at a time on the job's clock; False when the observation cannot be."""
        if completed > _MOST_PROGRESS * self.problem.iterations:
            # Believing it would end the job.
            return False
        if self._restoring is not None and math.isfinite(completed):
            until_s, before = self._restoring
            if time_s < until_s and completed <= before:
                # The time until the first iteration says nothing of the rate.
                return True
            self._restoring = None
        taken = self.window.observe(time_s, min(completed, float(self.problem.iterations)))
        if taken:
            self._completed = self.window.completed
        return taken

    def observe_epochs(self, ends_s: Sequence[float], iterations_per_epoch: float, before: float = 0.0) -> None:
        """Take progress from detected epochs instead of reported iterations.

        What lies between two ends is not known and counts for nothing, so that a window holds three epochs at least,
        however long. The window is built afresh, since an epoch that is withdrawn changes every count after it.

        Args:
            ends_s: When the epochs that stand have ended; ends that are not finite are left out.
            iterations_per_epoch: Iterations of one epoch.
            before: Iterations before the first of these epochs.
        """
        self.window = ProgressWindow(self.options.window_s)
        finite = sorted(filter(math.isfinite, ends_s))
        for count, end_s in enumerate(finite, start=1):
            self.window.observe(end_s, before + count * iterations_per_epoch)
        self._completed = min(before + len(finite) * iterations_per_epoch, float(self.problem.iterations))

    def attach(self, plan: Plan, machines: Sequence[str]) -> None:
        """Take over a job that runs already, on machines that the cloud lists."""
        target = self._target
        self._is_unguarded = target is not None and target.candidate.plan == plan and target.is_unguarded
        self._running = (plan, frozenset(machines))
        # Whoever runs something else than what was decided has decided otherwise.
        self.fleet.kept(machines)
        self._target = self._idle_since_s = self._interval_s = None
        self._saving = 1.0

    def detach(self) -> None:
        """Take note that the job stands, by its owner's hand."""
        self._running = self._target = None
        self.window.clear()

    def ordered(self, offer: str, machines: Sequence[str], now_s: float) -> None:
        """Take note that the machines of a ``LAUNCH`` were ordered."""
        self.fleet.ordered(offer, machines, now_s)

    def replace_offers(self, offers: Sequence[MachineOffer]) -> None:
        """Go on with other prices, quotas or preemption rates of the offers; the next step looks for better plans.

        Raises:
            ProblemError: An offer is missing or new: how fast it is would not be known.
        """
        problem = replace(self.problem, offers=tuple(offers))
        if {offer.name for offer in offers} != {offer.name for offer in self.problem.offers}:
            raise ProblemError("the offers of a running job keep their names; one that is sold out gets a quota of 0")
        self.problem = problem
        self._finder.replace_problem(problem)
        self._policy.replace_problem(problem)
        self.fleet.replace_offers(problem.offers)
        self._look_s = -math.inf

    def refused(self, offer: str, now_s: float) -> None:
        """Take note that an order could not be given."""
        self._deplete([offer], now_s)

    def step(self, now_s: float) -> Decision:
        """Decide what to do now.

        Args:
            now_s: The job's clock.

        Raises:
            ValueError: The time is not finite.
        """
        now_s = self._time(now_s)
        losses = self.fleet.update(now_s)
        if self._completed >= self.problem.iterations:
            return self._done(now_s)
        self._take(losses, now_s)
        late = self.fleet.overdue(now_s, self.options.launch_timeout_s)
        self._deplete([self.fleet.machines[machine].offer for machine in late], now_s)
        self.fleet.ended(late)
        decision = self._decide(now_s, bool(losses.preempted or losses.refused or late))
        ending = tuple(dict.fromkeys((*self.fleet.still_there(), *late, *decision.terminate)))
        self.fleet.ended(decision.terminate)
        return replace(decision, terminate=ending)

    def _time(self, now_s: float) -> float:
        if not math.isfinite(now_s):
            raise ValueError(f"a clock shows finite seconds, not {now_s}")
        self._now_s = max(self._now_s, now_s)
        return self._now_s

    def _take(self, losses: Losses, now_s: float) -> None:
        self._deplete([*losses.preempted, *losses.refused], now_s)
        for machine in losses.lost:
            if self._running is not None and machine in self._running[1]:
                self._running = None
                self.window.clear()
                self._unreleased.update(dict.fromkeys(losses.lost, now_s + self.options.release_s))
        for machine in losses.released:
            self._unreleased.pop(machine, None)

    def _deplete(self, offers: Sequence[str], now_s: float) -> None:
        """Leave offers out for a while; news of one that is left out already changes nothing."""
        for offer in offers:
            if self._depleted_until_s.get(offer, now_s) <= now_s:
                self._depleted_until_s[offer] = now_s + self.options.depletion_s

    def _next_expiry_s(self, now_s: float) -> float:
        """Return when the next offer can be asked again; infinite when none is left out, or for ever."""
        return min((until_s for until_s in self._depleted_until_s.values() if until_s > now_s), default=math.inf)

    def _decide(self, now_s: float, news: bool) -> Decision:
        at = self._watched_job(now_s)
        if self._target is not None:
            plan = self._target.candidate.plan
            picked = self.fleet.pick(plan)
            if picked is not None:
                return self._run(plan, picked, at)
            if self._can_become(plan) and self._holds(self._target, at):
                why = f"waiting for the machines of {plan}"
                return self._decision(DecisionKind.WAIT, at, self._target.ruling, why)
            self._target = None
        if self._running is not None:
            return self._review(*self._running, at, news)
        if self.options.wait_for_release:
            self._unreleased = {m: until_s for m, until_s in self._unreleased.items() if until_s > now_s}
            if self._unreleased:
                until_s = max(self._unreleased.values())
                why = "waiting for the volume of a machine that was lost"
                return self._decision(DecisionKind.WAIT, at, None, why, next_step_s=until_s)
        return self._choose(at)

    def _choose(self, at: WatchedJob) -> Decision:
        before = self._finder.solved
        ruling = self._policy.choose(at, self._idle_since_s, self._next_expiry_s(at.now_s))
        solved = self._finder.solved > before
        if ruling.candidate is None:
            return self._idle(at, ruling, solved)
        return self._launch(at, ruling, ruling.candidate, solved)

    def _idle(self, at: WatchedJob, ruling: PolicyDecision, solved: bool = False) -> Decision:
        if self._running is not None:
            self._running = None
            self.window.clear()
        if ruling.wait and self._idle_since_s is None:
            self._idle_since_s = at.now_s
        kind = DecisionKind.IDLE if ruling.wait else DecisionKind.NO_PLAN
        # What is not needed to train is not paid for.
        return self._decision(kind, at, ruling, ruling.why, terminate=self.fleet.beyond(()), solved=solved)

    def _launch(self, at: WatchedJob, ruling: PolicyDecision, candidate: PlanCandidate, solved: bool) -> Decision:
        self._target = _Target(candidate, ruling)
        running = self._running[1] if self._running else frozenset()
        beyond = self.fleet.beyond(running, candidate.plan)
        return self._decision(DecisionKind.LAUNCH, at, ruling, ruling.why, terminate=beyond, launch=True, solved=solved)

    def _run(self, plan: Plan, machines: tuple[str, ...], at: WatchedJob) -> Decision:
        why = f"every machine of {plan} is there"
        aim = self._target.ruling if self._target else None
        self._is_unguarded = self._target is not None and self._target.is_unguarded
        self._running = (plan, frozenset(machines))
        self._target = self._idle_since_s = None
        self._unreleased.clear()
        self.window.clear()
        self._restoring = (
            at.now_s + max(_LONGEST_RESTORES * self.options.restore_s, self.options.window_s),
            self._completed,
        )
        self._look_s = at.now_s + self.options.resolve_s
        stay = self._finder.evaluate(plan, self._watched_job(at.now_s))
        self._interval_s = stay.run.interval_s
        self._saving = 1.0 + self.problem.save_s / self._interval_s
        ruling = PolicyDecision(
            stay, why, at_risk=aim is not None and aim.at_risk, fallback=aim.fallback if aim else None
        )
        beyond = self.fleet.beyond(machines)
        return self._decision(DecisionKind.RUN, at, ruling, why, terminate=beyond, machines=machines)

    def _review(self, plan: Plan, machines: frozenset[str], at: WatchedJob, news: bool) -> Decision:
        throughput = self._measured()
        stay = self._finder.evaluate(plan, at, stay=True)
        look = news or at.now_s >= self._look_s
        expiry_s = self._next_expiry_s(at.now_s)
        before = self._finder.solved
        unguarded = self._is_unguarded
        ruling = self._policy.review(stay, at, throughput, look=look, expiry_s=expiry_s, unguarded=unguarded)
        self._is_unguarded = unguarded and ruling.fallback is None
        if look:
            self._look_s = min(at.now_s + self.options.resolve_s, expiry_s)
        if ruling.candidate is None:
            return self._idle(at, ruling)
        if ruling.candidate.plan == plan:
            beyond = self.fleet.beyond(machines)
            solved = self._finder.solved > before
            return self._decision(DecisionKind.KEEP, at, ruling, ruling.why, terminate=beyond, solved=solved)
        return self._launch(at, ruling, ruling.candidate, True)

    def _done(self, now_s: float) -> Decision:
        self._running = self._target = None
        at = self._watched_job(now_s)
        beyond = (*self.fleet.still_there(), *self.fleet.beyond(()))
        decision = self._decision(DecisionKind.DONE, at, None, "every iteration is done", terminate=beyond)
        self.fleet.ended(beyond)
        return decision

    def _can_become(self, plan: Plan) -> bool:
        """Whether the machines that boot or run will make up a plan."""
        held = self.fleet.held()
        return all(held[group.offer] >= group.machines for group in plan.groups)

    def _holds(self, target: _Target, at: WatchedJob) -> bool:
        """Whether spot machines that boot may still be waited for, or something else must be launched by now."""
        if not target.candidate.spot or target.is_unguarded:
            return True
        runs = None if self.running is None else self._finder.evaluate(self.running, at, stay=True)
        # On-demand machines save nothing on the way, since they are not taken away: none of their work can be lost.
        fallback = self._policy.fallback(at, runs if runs is not None and runs.spot else None)
        return fallback is None or fallback.slack_s > 0

    def _measured(self) -> Throughput | None:
        """Return the window's throughput once it says something."""
        throughput = self.window.throughput()
        if throughput is None or throughput.intervals < _FEWEST_INTERVALS:
            return None
        if self.window.latest_s is None or self._now_s - self.window.latest_s > 2 * throughput.span_s:
            return None
        return throughput

    def _watched_job(self, now_s: float) -> WatchedJob:
        remaining = max(0.0, self.problem.iterations - self._completed)
        throughput = self._measured()
        if self.options.calibrate and self._running is not None and throughput is not None and throughput.certain:
            # Saving is counted apart, and machines on demand save nothing on the way.
            step_s = 1 / throughput.mean / self._saving
            estimated_s = self._steps.estimate(self._running[0]).mean_s
            self._slowdown = min(_LARGEST_SLOWDOWN, max(1.0, step_s / estimated_s))
            kind = self._finder.kind(self._running[0])
            if self._measured_s.pop(kind, None) is None:
                # What was doubtful may be certain now.
                self._look_s = now_s
            self._measured_s[kind] = step_s
            if len(self._measured_s) > _MOST_MEASURED:
                del self._measured_s[next(iter(self._measured_s))]
        return WatchedJob(
            now_s=now_s,
            remaining=remaining,
            spent_usd=self.fleet.spent_usd,
            held=self.fleet.held(),
            ready=self.fleet.ready(),
            depleted=[o.name for o in self.problem.offers if self._depleted_until_s.get(o.name, now_s) > now_s],
            slowdown=self._slowdown,
            running=self.running,
            measured_s=self._measured_s,
            interval_s=self._interval_s,
        )

    def _decision(
        self,
        kind: DecisionKind,
        at: WatchedJob,
        ruling: PolicyDecision | None,
        why: str,
        *,
        terminate: tuple[str, ...] = (),
        machines: tuple[str, ...] = (),
        launch: bool = False,
        solved: bool = False,
        next_step_s: float = math.inf,
    ) -> Decision:
        candidate = ruling.candidate if ruling else None
        # The policy reckons with it also where nothing can be taken away; nobody needs to know of it there.
        has_spot = any(offer.billing is Billing.SPOT for offer in self.problem.offers)
        fallback = ruling.fallback if ruling and has_spot else None
        # Where nothing runs or boots, nothing changes before an offer can be asked again.
        idle = kind in (DecisionKind.IDLE, DecisionKind.NO_PLAN)
        review_s = max(self.options.review_s, self.options.resolve_s) if idle else self.options.review_s
        again_s = min(next_step_s, at.now_s + review_s, ruling.again_s if ruling else math.inf)
        ending: dict[str, int] = {}
        for machine in terminate:
            if machine in self.fleet.machines:
                offer = self.fleet.machines[machine].offer
                ending[offer] = ending.get(offer, 0) + 1
        recommendation = Recommendation(
            plan=candidate.plan if candidate else None,
            launch=candidate.missing if candidate and launch else (),
            end=tuple(sorted(ending.items())),
            projection=self._projection(candidate, at) if candidate else None,
            remaining_iterations=at.remaining,
            spent_usd=at.spent_usd,
            expected_usd=at.spent_usd + candidate.usd if candidate else None,
            checkpoint_interval_s=candidate.run.interval_s if candidate else math.inf,
            at_risk=ruling.at_risk if ruling else False,
            fallback=fallback.candidate.plan if fallback else None,
            fallback_before_s=at.now_s + fallback.slack_s if fallback else None,
            why=why,
        )
        # A step that follows at once would only find the same.
        soonest_s = at.now_s + min(1.0, self.options.review_s)
        return Decision(kind, at.now_s, recommendation, machines, terminate, max(soonest_s, again_s), solved)

    def _projection(self, candidate: PlanCandidate, at: WatchedJob) -> Projection:
        throughput = self._measured()
        if candidate.plan == self.running and throughput is not None:
            return project(at.now_s, at.remaining, throughput)
        return Projection(candidate.end_s, candidate.optimistic_s, max(candidate.end_s, candidate.bound_s))
