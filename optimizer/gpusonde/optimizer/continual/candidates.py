"""Plans a job could go on with from where it is, and what each would take and cost."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from scipy.special import ndtri

from gpusonde.errors import ProblemError
from gpusonde.optimizer.continual.options import ContinualOptions
from gpusonde.optimizer.preemptions import ExpectedRun, PreemptionRates, checkpoint_interval_s, expected_run
from gpusonde.optimizer.problem import Billing, Group, MachineOffer, Objective, Plan, Problem
from gpusonde.optimizer.solution import PlanEstimate, Solution, quantile_s
from gpusonde.optimizer.solve import solve
from gpusonde.optimizer.step_times import StepTimes
from gpusonde.simulator.iteration import Sharding, StepMode

Solver = Callable[[Problem, StepTimes], Solution]
_HOUR_S = 3600.0
# Spot prices are raised by the time that preemptions cost; beyond this factor an offer is hopeless anyway.
_LARGEST_RISE = 4.0
_MOST_KNOWN = 256
_SEARCH_S = 5.0
# Standard deviation of the logarithm of a measured iteration: on one machine, on the same machines of several, and on
# others of their kind, whose network differs: the seed saw up to 1.15 times between allocations.
_LONE_SPREAD = 0.01
_MEASURED_SPREAD = 0.02
_MEASURED_BEFORE_SPREAD = 0.05
# Nothing mends what was waited away, so the speed of a job that nobody measured is reckoned with to three deviations.
_WORST_DEVIATIONS = 3.0
# The share of cases in which more preemptions come than time is set aside for.
_MORE_PREEMPTIONS = 0.05
# Of the time to spare, what may lie between two checkpoints: a preemption takes as much of it.
_UNSAVED_SHARE = 0.25

# What a group of machines is to the speed of a job, whoever lets them: device, devices, networks, machines, batch, and
# the fields of the mode.
GroupKind = tuple[str, int, str, str, int, int, tuple[int, str, bool]]


def solve_exactly(problem: Problem, steps: StepTimes) -> Solution:
    """Return the best plan by the exact search, without the explanations that nobody would read."""
    return solve(problem, steps, explain=False, time_limit_s=_SEARCH_S)


@dataclass(frozen=True)
class WatchedJob:
    """Where a job stands.

    Attributes:
        now_s: On the job's clock.
        remaining: Iterations that are left.
        spent_usd: Spent so far.
        held: Machines that boot or run, by offer.
        ready: Machines that run, by offer.
        depleted: Offers of which no further machine is to be had.
        slowdown: By how much iterations take longer than estimated, at least 1.
        running: The plan that runs; None when nothing does.
        measured_s: Measured iterations of what runs or ran, by ``CandidateFinder.kind``.
        interval_s: Between two checkpoints of what runs; None where that is not known.
    """

    now_s: float
    remaining: float
    spent_usd: float
    held: Mapping[str, int]
    ready: Mapping[str, int]
    depleted: Collection[str]
    slowdown: float = 1.0
    running: Plan | None = None
    measured_s: Mapping[tuple[GroupKind, ...], float] = field(default_factory=dict)
    interval_s: float | None = None


@dataclass(frozen=True)
class PlanCandidate:
    """A plan to go on with; times on the job's clock.

    Attributes:
        plan: The plan.
        missing: Machines to launch, by offer.
        spot: True when it has a spot machine.
        step_s: Mean iteration.
        wait_s: From now to its first iteration.
        run: What the work takes from then on, preemptions included.
        end_s: Mean end.
        bound_s: End that is kept with confidence if nothing is preempted and launches are slow.
        kept_s: End that is kept with confidence, preemptions counted.
        optimistic_s: End that is undercut with as little probability.
        worst_s: As ``bound_s``, to three deviations where nobody measured the plan.
        usd: Mean cost from now on.
    """

    plan: Plan
    missing: tuple[tuple[str, int], ...]
    spot: bool
    step_s: float
    wait_s: float
    run: ExpectedRun
    end_s: float
    bound_s: float
    kept_s: float
    optimistic_s: float
    worst_s: float
    usd: float


class CandidateFinder:
    """Finds plans for states of one job.

    Args:
        problem: The whole job: iterations, deadline and budget count from its start.
        steps: How long iterations take.
        options: Times and rules.
        rates: Preemptions of each offer.
        solver: Finds the best plan.
    """

    def __init__(
        self, problem: Problem, steps: StepTimes, options: ContinualOptions, rates: PreemptionRates, solver: Solver
    ) -> None:
        self.solved = 0
        self._problem = problem
        self._steps = steps
        self._options = options
        self._rates = rates
        self._solver = solver
        self._offers = {offer.name: offer for offer in problem.offers}
        self._known: dict[tuple[tuple[MachineOffer, ...], Objective], Plan | None] = {}
        self._first: tuple[Problem, Solution] | None = None
        self._deviations = float(ndtri(problem.confidence))

    def replace_problem(self, problem: Problem) -> None:
        """Search among the same job's offers as they are now."""
        self._problem = problem
        self._offers = {offer.name: offer for offer in problem.offers}
        self._known.clear()

    def is_spot(self, plan: Plan) -> bool:
        """Whether a plan has a spot machine."""
        return any(self._offers[group.offer].billing is Billing.SPOT for group in plan.groups)

    @property
    def doubts_speeds(self) -> bool:
        """Whether the step times know how far they may be off, so that a search asks for confidence itself."""
        return getattr(self._steps, "least_spread", 0.0) >= self._options.spread

    def kind(self, plan: Plan) -> tuple[GroupKind, ...]:
        """Return what a plan is to the speed of a job: spot machines are as fast as those on demand."""
        kinds = []
        mode = (plan.mode.accumulation_steps, plan.mode.sharding.value, plan.mode.checkpointing)
        for group in plan.groups:
            offer = self._offers[group.offer]
            kinds.append((
                offer.device, offer.devices, offer.fabric, offer.machine_fabric, group.machines, group.batch_size, mode,
            ))  # fmt: skip
        return tuple(sorted(kinds))

    def evaluate(self, plan: Plan, at: WatchedJob, *, stay: bool = False) -> PlanCandidate:
        """Return what going on with a plan would take and cost; ``stay`` when it is the one that runs."""
        options = self._options
        missing = [(g.offer, g.machines - at.held.get(g.offer, 0)) for g in plan.groups]
        boots = any(group.machines > at.ready.get(group.offer, 0) for group in plan.groups)
        estimate = self._steps.estimate(plan)
        step_s = estimate.mean_s * at.slowdown
        spread = options.spread
        if estimate.mean_s > 0:
            spread = max(spread, estimate.run_sd_s(max(1, math.ceil(at.remaining))) / estimate.mean_s / at.remaining)
        worst_deviations = max(self._deviations, _WORST_DEVIATIONS)
        measured_s = at.measured_s.get(self.kind(plan))
        if measured_s is not None:
            # What was measured is not uncertain the way an estimate is; on other machines it may still differ.
            step_s, worst_deviations = measured_s, self._deviations
            known = _MEASURED_SPREAD if plan == at.running else _MEASURED_BEFORE_SPREAD
            spread = min(spread, _LONE_SPREAD if plan.machines == 1 else known)
        wait_s = slow_wait_s = 0.0
        if not stay:
            # The first plan is made before the job's clock begins.
            solve_s = options.solve_s if at.now_s > 0 else 0.0
            wait_s = solve_s + options.restore_s + (options.launch_s if boots else 0.0)
            slow_wait_s = wait_s + (options.launch_slowest_s - options.launch_s if boots else 0.0)
            if at.running is not None:
                wait_s, slow_wait_s = wait_s + options.save_s, slow_wait_s + options.save_s
        work_s = at.remaining * step_s
        per_hour = sum(group.machines * self._per_hour(group.offer) for group in plan.groups)
        reach = math.exp(self._deviations * spread)
        bound_s = at.now_s + slow_wait_s + work_s * reach
        interval_s = at.interval_s if stay else self._interval_s(work_s, bound_s, per_hour)
        run = expected_run(work_s, per_hour, options.restart_s, options.save_s, interval_s)
        kept_s = run.seconds
        if 0 < run.seconds < math.inf:
            sd_s = math.hypot(spread * run.seconds, run.sd_s)
            kept_s = quantile_s(run.seconds, sd_s, self._problem.confidence, spread)
        usd_per_hour, once_usd = plan.usd_per_hour(self._problem.offers), 0.0
        if self._problem.data is not None:
            # Where machines are held, the data are.
            used = {self._offers[group.offer].region for group in plan.groups}
            there = {self._offers[name].region for name, machines in at.held.items() if machines}
            once_usd = self._problem.data.fees(used - there)[0]
            usd_per_hour += self._problem.data.fees(used)[1]
        return PlanCandidate(
            plan=plan,
            missing=tuple((offer, machines) for offer, machines in missing if machines > 0),
            spot=self.is_spot(plan),
            step_s=step_s,
            wait_s=wait_s,
            run=run,
            end_s=at.now_s + wait_s + run.seconds,
            bound_s=bound_s,
            kept_s=at.now_s + wait_s + kept_s,
            optimistic_s=at.now_s + wait_s + work_s / reach,
            worst_s=at.now_s + slow_wait_s + work_s * math.exp(worst_deviations * spread),
            usd=once_usd + usd_per_hour * (run.running_s + (0.0 if stay else options.restore_s)) / _HOUR_S,
        )

    def best(
        self,
        at: WatchedJob,
        *,
        on_demand_only: bool = False,
        deadline: bool = True,
        objective: Objective | None = None,
        ready_only: bool = False,
        or_nearest: bool = False,
    ) -> PlanCandidate | None:
        """Return the best plan that can be had, or None.

        Args:
            at: Where the job stands.
            on_demand_only: Leave spot offers out.
            deadline: Only plans that keep the deadline.
            objective: Another one than the job's.
            ready_only: Only machines that run already.
            or_nearest: Where none keeps the deadline with confidence, the plan that misses it least or ends first on
                average, whichever is sooner done with confidence.
        """
        objective = objective or self._problem.objective
        found, late = [], []
        for offers in self._group_offers(at, on_demand_only, ready_only):
            plan, nearest = self._find_among(offers, at, deadline, objective)
            found += [self.evaluate(plan, at)] if plan is not None else []
            found += self._measured(offers, at, deadline)
            late += [self.evaluate(nearest, at)] if nearest is not None else []
        if or_nearest and not found:
            fastest = self.best(at, on_demand_only=on_demand_only, deadline=False, objective=Objective.TIME)
            late = [candidate for candidate in late if self._is_affordable(candidate, at)]
            late += [fastest] if fastest is not None else []
            return min(late, key=lambda candidate: candidate.bound_s, default=None)
        return min(found, key=lambda candidate: score(candidate, objective), default=None)

    def planned(self, at: WatchedJob) -> PlanCandidate | None:
        """Return the plan, times and cost that ``solve`` names; None once anything has begun, or where no plan is."""
        found = self._solved(at)
        if found is None or found.plan is None or found.estimate is None:
            return None
        return self._as_estimated(self.evaluate(found.plan, at), found.estimate, at)

    def as_planned(self, candidate: PlanCandidate, at: WatchedJob) -> PlanCandidate:
        """Return a plan with the times and cost that ``solve`` names where it comes nearest, too."""
        found = self._solved(at)
        if found is None or found.nearest is None or found.nearest.plan != candidate.plan:
            return candidate
        return self._as_estimated(candidate, found.nearest.estimate, at)

    def _solved(self, at: WatchedJob) -> Solution | None:
        problem = self._problem
        if at.remaining < problem.iterations or at.held or at.depleted or at.spent_usd > 0:
            return None
        try:
            left_s = None if problem.deadline_s is None else problem.deadline_s - at.now_s
            asked = replace(problem, deadline_s=left_s)
        except ProblemError:
            return None
        if self._first is None or self._first[0] != asked:
            self.solved += 1
            self._first = asked, self._solver(asked, self._steps)
        return self._first[1]

    @staticmethod
    def _as_estimated(candidate: PlanCandidate, estimate: PlanEstimate, at: WatchedJob) -> PlanCandidate:
        kept_s = at.now_s + estimate.time_at_confidence_s
        return replace(
            candidate, end_s=at.now_s + estimate.time_s, bound_s=kept_s, kept_s=kept_s, usd=estimate.cost_usd
        )

    def reserve_s(self, candidate: PlanCandidate, at: WatchedJob) -> float:
        """Return the time to set aside for preemptions if spot machines do the work of an on-demand plan.

        So many come at most in 95 of 100 cases, given what was seen of the offers; each costs a slow restart, a save
        and half of the work between two checkpoints. One switch to spot machines stays possible besides.
        """
        spot = [offer for offer in self._problem.offers if offer.billing is Billing.SPOT]
        if not spot or not self._options.count_preemptions:
            return 0.0
        hours = candidate.plan.machines * at.remaining * candidate.step_s / _HOUR_S
        number = statistics.median(
            self._rates.most(offer.name, offer.preemptions_per_hour, hours, 1 - _MORE_PREEMPTIONS) for offer in spot
        )
        rate = statistics.median(self._per_hour(offer.name) for offer in spot)
        options = self._options
        lost_s = min(checkpoint_interval_s(options.save_s, rate), at.remaining * candidate.step_s) / 2
        return lost_s + options.restart_s + number * (options.slow_restart_s + options.save_s + lost_s)

    def _measured(self, offers: list[MachineOffer], at: WatchedJob, deadline: bool) -> Iterable[PlanCandidate]:
        """Yield plans of what was measured: it keeps deadlines that a mere estimate keeps too seldom to be found."""
        limit_s = self._problem.deadline_s
        if not deadline or limit_s is None:
            return
        for kinds in at.measured_s:
            if len(kinds) > 1:
                continue
            for offer in offers:
                *_, machines, batch_size, (steps, sharding, checkpointing) = kinds[0]
                mode = StepMode(steps, Sharding(sharding), checkpointing)
                plan = Plan((Group(offer.name, machines, batch_size),), mode)
                if offer.quota >= plan.machines and self.kind(plan) == kinds:
                    found = self.evaluate(plan, at)
                    if found.bound_s <= limit_s and self._is_affordable(found, at):
                        yield found

    def _is_affordable(self, candidate: PlanCandidate, at: WatchedJob) -> bool:
        budget_usd = self._problem.budget_usd
        return budget_usd is None or at.spent_usd + candidate.usd <= budget_usd

    def _group_offers(self, at: WatchedJob, on_demand_only: bool, ready_only: bool) -> Iterable[list[MachineOffer]]:
        """Yield sets of offers whose machines may work together, with what can be had of each."""
        pools: dict[tuple[str, str], list[MachineOffer]] = {}
        for offer in self._problem.offers:
            if on_demand_only and offer.billing is Billing.SPOT:
                continue
            held = at.ready.get(offer.name, 0) if ready_only else at.held.get(offer.name, 0)
            quota = min(offer.quota, held) if ready_only or offer.name in at.depleted else offer.quota
            if quota < 1:
                continue
            rise = 1.0
            per_hour = self._per_hour(offer.name)
            if per_hour > 0:
                run = expected_run(_HOUR_S, per_hour, self._options.restart_s, self._options.save_s)
                rise = min(_LARGEST_RISE, run.seconds / _HOUR_S)
            # The raised price counts the preemptions, and a guard keeps the deadline.
            raised = replace(offer, quota=quota, usd_per_hour=offer.usd_per_hour * rise, preemptions_per_hour=0.0)
            pools.setdefault(self._problem.pool(offer), []).append(raised)
        return pools.values()

    def _find_among(
        self, offers: list[MachineOffer], at: WatchedJob, deadline: bool, objective: Objective
    ) -> tuple[Plan | None, Plan | None]:
        """Return the best plan of some offers, and where there is none the one that breaks the limits least."""
        problem, options = self._problem, self._options
        deadline_s = budget_usd = None
        certain = at.slowdown
        if not self.doubts_speeds:
            certain *= math.exp(self._deviations * options.spread)
        # Machines that run need no launch; what does is found out by evaluating the plan.
        ready = all(at.ready.get(offer.name, 0) >= offer.quota for offer in offers)
        # Spot machines have a guard; on demand a deadline depends on the launch.
        guarded = not options.guard or any(offer.billing is Billing.SPOT for offer in offers)
        launch_s = options.launch_s if guarded else options.launch_slowest_s
        wait_s = options.solve_s + options.restore_s + (0.0 if ready else launch_s)
        if deadline and problem.deadline_s is not None:
            deadline_s = (problem.deadline_s - at.now_s - wait_s) / certain
            if deadline_s <= 0:
                return None, None
        if problem.budget_usd is not None:
            budget_usd = (problem.budget_usd - at.spent_usd) / at.slowdown
            if budget_usd <= 0:
                return None, None
        try:
            asked = replace(
                problem,
                iterations=max(1, math.ceil(at.remaining)),
                offers=tuple(offers),
                objective=objective,
                deadline_s=deadline_s,
                budget_usd=budget_usd,
                overhead_s=0.0,
            )
        except ProblemError:
            return None, None
        return self._solve(asked)

    def _solve(self, asked: Problem) -> tuple[Plan | None, Plan | None]:
        if asked.deadline_s is not None or asked.budget_usd is not None:
            self.solved += 1
            found = self._solver(asked, self._steps)
            nearest = found.nearest
            # One of another global batch is another job.
            is_same = nearest is not None and nearest.global_batch == asked.global_batch
            return found.plan, nearest.plan if nearest is not None and is_same else None
        # Without limits the number of iterations does not matter, so the answer is that of last time.
        key = (asked.offers, asked.objective)
        if key not in self._known:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self.solved += 1
            self._known[key] = self._solver(asked, self._steps).plan
        return self._known[key], None

    def _interval_s(self, work_s: float, bound_s: float, per_hour: float) -> float | None:
        """Return the time between checkpoints where the deadline asks for less than costs the least; else None.

        What a preemption takes is missing before the deadline, and so is what saving takes: no less than what makes
        their sum the smallest.
        """
        deadline_s, save_s = self._problem.deadline_s, self._options.save_s
        if deadline_s is None or not self._options.guard or not per_hour > 0:
            return None
        longest_s = max(math.sqrt(save_s * work_s), _UNSAVED_SHARE * (deadline_s - bound_s), save_s, 1.0)
        return longest_s if longest_s < checkpoint_interval_s(save_s, per_hour) else None

    def _per_hour(self, name: str) -> float:
        offer = self._offers[name]
        if not self._options.count_preemptions:
            return 0.0
        return self._rates.per_hour(name, offer.preemptions_per_hour) if offer.billing is Billing.SPOT else 0.0


def score(candidate: PlanCandidate, objective: Objective) -> float:
    """Return what is to be small: mean end or mean cost."""
    return candidate.end_s if objective is Objective.TIME else candidate.usd
