"""Answers to questions about a problem as documents, and ``JobWatch``, which answers as long as a job runs.

A watched job's machines are started and ended by somebody else, who reports them, and who reports progress or epochs
(``ReportKeys``); ``JobWatch`` recommends what to rent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from gpusonde.documents import ListOf, Number, Whole, parse, parse_json, to_plain
from gpusonde.errors import DocumentError, ProblemError
from gpusonde.formatting import count, dollars, duration, percent
from gpusonde.optimizer.continual.controller import Controller, Decision, DecisionKind
from gpusonde.optimizer.continual.fleet import Machine, Notice, NoticeKind, ReportedCloud
from gpusonde.optimizer.documents.problem import (
    PARETO_FORMAT,
    ProblemDocument,
    parse_plan,
    solution_document,
)
from gpusonde.optimizer.explain import NO_PLAIN_PLAN, useful_spare_modes
from gpusonde.optimizer.problem import MOST_MACHINES, MOST_OFFERS, Objective, OfferName, Plan, Problem
from gpusonde.optimizer.several_jobs import SharingJob, solve_jobs
from gpusonde.optimizer.solution import PlanEstimate, Proof, Solution, Status, check_plan, satisfies
from gpusonde.optimizer.solution import estimate_plan as estimate
from gpusonde.optimizer.solve import DEFAULT_TIME_LIMIT_S, pareto, solve
from gpusonde.optimizer.step_times import StepTimes

JOINT_FORMAT = "gpusonde.joint_solution/1"
Method = Literal["exact", "paper"]
METHODS: tuple[Method, ...] = ("exact", "paper")
# Times the largest batch that a curve was made from.
_FAR = 2.0


def solve_problem(
    document: ProblemDocument, method: Method = "exact", *, time_limit_s: float = DEFAULT_TIME_LIMIT_S
) -> dict[str, Any]:
    """Return the best plan, or why there is none.

    Args:
        document: The problem.
        method: How to search.
        time_limit_s: Of the search; explaining what it found gets as much again at most.

    Raises:
        ProblemError: The problem makes no sense.
    """
    found = solve(document.problem, document.step_times(), method=method, time_limit_s=time_limit_s)
    return _with_notes(found, document)


def solve_problems(
    documents: Sequence[tuple[str, ProblemDocument]],
    objective: Objective | None = None,
    *,
    budget_usd: float | None = None,
    time_limit_s: float = DEFAULT_TIME_LIMIT_S,
) -> dict[str, Any]:
    """Return the best plans of several jobs that share machines, or why there are none.

    Args:
        documents: Names and problems of the jobs; one problem may occur several times.
        objective: What is to be small of all together; None for what all problems have.
        budget_usd: Most that all may cost together.
        time_limit_s: Of the search; explaining what it found gets as much again at most.

    Raises:
        DocumentError: There is no objective that all problems have.
        ProblemError: The jobs are too many, or disagree about what they share.
    """
    objectives = {document.problem.objective for _, document in documents}
    if objective is None and len(objectives) > 1:
        raise DocumentError("objective", "some jobs want least cost and some least time: say cost or time")
    steps = {id(document): document.step_times() for _, document in documents}
    jobs: list[SharingJob] = []
    for name, document in documents:
        same = sum(other == name for other, _ in documents[: len(jobs)])
        jobs.append(SharingJob(f"{name} ({same + 1})" if same else name, document.problem, steps[id(document)]))
    wanted = objective or next(iter(objectives), Objective.COST)
    found = solve_jobs(jobs, objective=wanted, budget_usd=budget_usd, time_limit_s=time_limit_s)
    notes = dict.fromkeys(note for _, document in documents for note in document.notes)
    for (_, document), planned in zip(documents, found.jobs, strict=False):
        notes |= dict.fromkeys(_note_batches(document, (planned.plan,)))
    return {"format": JOINT_FORMAT, **to_plain(found), "notes": list(notes)}


def pareto_plans(document: ProblemDocument, *, time_limit_s: float = DEFAULT_TIME_LIMIT_S) -> dict[str, Any]:
    """Return the plans that no other one beats in both time and cost, the fastest first.

    Raises:
        ProblemError: The problem makes no sense.
    """
    front = pareto(document.problem, document.step_times(), time_limit_s=time_limit_s)
    notes = [*document.notes, *_note_batches(document, (point.plan for point in front.points))]
    if any(point.plan.mode not in document.problem.modes for point in front.points):
        notes.append(NO_PLAIN_PLAN)
    elif front.points and useful_spare_modes(document.problem):
        notes.append("plans of several micro-batches are left out; accumulation_steps takes them in")
    return {"format": PARETO_FORMAT, **to_plain(front), "notes": notes}


def estimate_plan(document: ProblemDocument, plan: Plan) -> dict[str, Any]:
    """Return what a given plan takes and costs; infeasible where it breaks a limit.

    Raises:
        DocumentError: The plan does not share out the global batch, or exceeds a quota or a memory.
    """
    problem = document.problem
    try:
        check_plan(problem, plan)
    except ProblemError as error:
        raise DocumentError("plan", str(error)) from None
    found = estimate(problem, plan, document.step_times())
    kept = satisfies(problem, found)
    solution = Solution(
        status=Status.FEASIBLE if kept else Status.INFEASIBLE,
        plan=plan,
        estimate=found,
        proof=Proof("given", False, None, None, "the plan was given; no other one was looked at"),
        why="; ".join(_judgement(problem, found)),
    )
    return _with_notes(solution, document)


def _judgement(problem: Problem, found: PlanEstimate) -> list[str]:
    words = []
    if problem.deadline_s is not None:
        is_kept = found.time_at_confidence_s <= problem.deadline_s
        words.append(
            f"with {percent(problem.confidence, None)} confidence it takes"
            f" {duration(found.time_at_confidence_s)},"
            f" the deadline of {duration(problem.deadline_s)} is {'kept' if is_kept else 'missed'}"
        )
    if problem.budget_usd is not None:
        is_kept = found.cost_usd <= problem.budget_usd
        words.append(
            f"it costs {dollars(found.cost_usd)}, the budget of {dollars(problem.budget_usd)} is"
            f" {'kept' if is_kept else 'exceeded'}"
        )
    return words or ["there is neither a deadline nor a budget"]


def _with_notes(solution: Solution, document: ProblemDocument) -> dict[str, Any]:
    plans = () if solution.plan is None else (solution.plan,)
    return {**solution_document(solution), "notes": [*document.notes, *_note_batches(document, plans)]}


def _note_batches(document: ProblemDocument, plans: Iterable[Plan]) -> list[str]:
    """Say which batches of plans are far beyond what their GPUs' curves were made from."""
    problem, most, unlimited = document.problem, dict[str, int](), set[str]()
    for group in (group for plan in plans for group in plan.groups):
        offer = problem.offer(group.offer)
        most[offer.device] = max(group.batch_size, most.get(offer.device, 0))
        if offer.largest_batch is None and problem.memory is None:
            unlimited.add(offer.device)
    found = []
    for device, batch in most.items():
        known = document.job.curves[device].known_to
        if batch > _FAR * known:
            fits, limit = (" and whether it fits", ", or give largest_batch") if device in unlimited else ("", "")
            found.append(
                f"a batch of {batch} on {device} is {batch / known:.2g} times the largest known one, {known:g}:"
                f" what its step takes{fits} is a guess; probe it{limit}"
            )
    return found


# Of older epochs only their number matters.
MOST_EPOCHS = 512
_SEARCH_S = 3.0
# Of an epoch that was still going on when its run ended the end is not told, and the first may be taken for a start.
_MOST_MISSED = 2.5


class JobWatch:
    """Follows one job. Times are seconds on the job's clock, which begins with the job.

    Args:
        document: The whole job, from its start.
        plan: What runs; None for nothing.
        now_s: What the job's clock shows.
        spent_usd: Spent up to now.
        completed_iterations: Done up to now; where epochs tell the progress, before the first of them.
    """

    def __init__(
        self,
        document: ProblemDocument,
        plan: Plan | None = None,
        *,
        now_s: float = 0.0,
        spent_usd: float = 0.0,
        completed_iterations: float = 0.0,
    ) -> None:
        self._per_epoch = document.iterations_per_epoch
        self._cloud = ReportedCloud()
        self._controller = Controller(document.problem, document.step_times(), self._cloud, _solve, document.options)
        self._controller.fleet.spent_usd = spent_usd
        self._before = completed_iterations
        self._ending = ""
        self._standing: dict[str, Any] | None = None
        self._machines: dict[str, Machine] = {}
        self._launched: Counter[str] = Counter()
        self.machines(plan, now_s)
        if completed_iterations > 0:
            self.progress(now_s, completed_iterations)

    @property
    def problem(self) -> Problem:
        """The whole job."""
        return self._controller.problem

    def progress(self, now_s: float, completed_iterations: float) -> bool:
        """Take what the job says of itself; False for what cannot be, such as a time that was reported already."""
        return self._controller.observe(now_s, completed_iterations)

    def epochs(self, ends_s: Sequence[float], older: int = 0) -> None:
        """Take the epochs that stand, in place of those taken before.

        Args:
            ends_s: When the latest ended.
            older: Epochs before these.

        Raises:
            DocumentError: The problem does not say how many iterations an epoch has.
        """
        if self._per_epoch is None:
            raise DocumentError(
                "samples_per_epoch", "is missing; without it epochs do not say how many iterations are done"
            )
        before = self._before + older * self._per_epoch
        self._controller.observe_epochs(ends_s[-MOST_EPOCHS:], self._per_epoch, before)

    def run_ended(self, ended_s: float) -> None:
        """Take note that the run is over whose epochs were taken; its machines are there until they are reported gone.

        Args:
            ended_s: When it ended.
        """
        controller = self._controller
        if self._per_epoch is None or controller.completed >= self.problem.iterations:
            return
        total = self.problem.iterations / self._per_epoch
        done = controller.completed / self._per_epoch
        self._ending = (
            f"the run ended after {duration(ended_s)} with {done:.0f} of {count(round(total), 'epoch')} seen; "
        )
        if total - done < _MOST_MISSED:
            self._ending += "the last may have been missed: if the job is done, end its machines; "
        self._standing = None
        controller.detach()

    def machines(
        self,
        plan: Plan | None,
        now_s: float,
        *,
        rented: Mapping[str, int] | None = None,
        preempted: Mapping[str, int] | None = None,
        refused: Mapping[str, int] | None = None,
    ) -> None:
        """Take what is there now, in place of what was there before.

        Args:
            plan: What the job runs on; None while it stands.
            now_s: Since when.
            rented: Machines that are there, by offer; None for those of the plan.
            preempted: Machines that were taken away, by offer; others that are gone were ended by their owner.
            refused: Machines that were ordered and could not be had, by offer.

        Raises:
            ProblemError: The plan does not share out the global batch, or breaks another rule of the problem.
        """
        if plan is not None:
            check_plan(self.problem, plan)
        fleet = self._controller.fleet
        fleet.update(now_s)
        self._standing = None
        self._ending = ""
        wanted = {group.offer: group.machines for group in plan.groups} if plan else {}
        for offer, machines in (rented or {}).items():
            wanted[offer] = max(machines, wanted.get(offer, 0))
        running: dict[str, Machine] = {}
        notices: list[Notice] = []
        for offer in {machine.offer for machine in self._machines.values()} | set(wanted):
            names = [name for name, machine in self._machines.items() if machine.offer == offer]
            lost = min((preempted or {}).get(offer, 0), len(names))
            notices += [Notice(NoticeKind.PREEMPTED, name, offer) for name in names[len(names) - lost :]]
            left = names[: len(names) - lost]
            kept = left[: wanted.get(offer, 0)]
            fleet.ended(left[len(kept) :])
            for _ in range(wanted.get(offer, 0) - len(kept)):
                self._launched[offer] += 1
                kept.append(f"{offer}/{self._launched[offer]}")
            running |= {name: Machine(name, offer, ready=True) for name in kept}
        for offer, machines in (refused or {}).items():
            names = [f"{offer}/refused-{number}" for number in range(min(machines, 1000))]
            self._controller.ordered(offer, names, now_s)
            notices += [Notice(NoticeKind.REFUSED, name, offer) for name in names]
        self._machines = running
        self._cloud.report(running.values(), notices)
        if plan is None:
            self._controller.detach()
        elif plan != self._controller.running:
            self._controller.attach(plan, self._for_plan(plan))
            self._controller.window.clear()

    def follow(self, document: ProblemDocument) -> None:
        """Go on with the prices and quotas of the same problem read anew; what is no longer offered is sold out."""
        now = {offer.name: offer for offer in document.problem.offers}
        offers = [now.get(offer.name, replace(offer, quota=0)) for offer in self.problem.offers]
        if tuple(offers) != self.problem.offers:
            self._controller.replace_offers(offers)
            self._standing = None

    def recommend(self, now_s: float) -> dict[str, Any]:
        """Return what to do now, as plain values.

        Raises:
            ValueError: The time is not finite.
        """
        standing = self._standing
        if standing is not None and now_s < standing["at_s"] + self._controller.options.review_s:
            return self._still(standing, now_s)
        decision = self._controller.step(now_s)
        if self._ending and decision.kind is DecisionKind.LAUNCH and not decision.recommendation.launch:
            # All machines are there: what is to be done is to run the job on them.
            decision = self._controller.step(now_s)
            self._controller.detach()
        if standing is not None and decision.kind is DecisionKind.KEEP and not decision.solved:
            # The controller takes what it says once for done or refused; a person may need longer.
            return self._still(standing, now_s)
        found = self._document(decision)
        self._standing = found if self._ending or decision.kind is DecisionKind.LAUNCH else None
        return found

    def _still(self, standing: dict[str, Any], now_s: float) -> dict[str, Any]:
        """What was recommended before, with the progress and the cost of now."""
        fleet = self._controller.fleet
        fleet.update(now_s)
        return {**standing, **self._progress(), "spent_usd": fleet.spent_usd, "at_s": now_s}

    def _for_plan(self, plan: Plan) -> list[str]:
        """Machines that make up a plan."""
        names: list[str] = []
        for group in plan.groups:
            names += [name for name, machine in self._machines.items() if machine.offer == group.offer][
                : group.machines
            ]
        return names

    def _document(self, decision: Decision) -> dict[str, Any]:
        found = to_plain(decision.recommendation)
        for key in ("launch", "end"):
            found[key] = [{"offer": offer, "machines": machines} for offer, machines in found[key]]
        return {
            "kind": str(decision.kind),
            "at_s": decision.at_s,
            "plan": found.pop("plan"),
            **found,
            **self._progress(),
            "why": self._ending + decision.recommendation.why,
        }

    def _progress(self) -> dict[str, Any]:
        completed = self._controller.completed
        throughput = self._controller.window.throughput()
        return {
            "completed_iterations": completed,
            "remaining_iterations": self.problem.iterations - completed,
            "throughput": None if throughput is None else to_plain(throughput),
        }


def _solve(problem: Problem, steps: StepTimes) -> Solution:
    # Some searches make one recommendation, and the job waits for none of them.
    return solve(problem, steps, explain=False, time_limit_s=_SEARCH_S)


# A century.
_LATEST_S = 3.2e9
_Elapsed = Annotated[float, Number(least=0.0, most=_LATEST_S)]
_Iterations = Annotated[float, Number(least=0.0, most=2.0**53)]


@dataclass(frozen=True)
class MachineCount:
    """Machines of one offer.

    Attributes:
        offer: Name of the offer.
        machines: How many.
    """

    offer: OfferName
    machines: Annotated[int, Whole(most=MOST_MACHINES)]


_Machines = Annotated[tuple[MachineCount, ...], ListOf(MOST_OFFERS)]


@dataclass(frozen=True)
class WatchStartKeys:
    """What is known of a job when its watch begins; times are seconds on the job's clock, which begins with the job.

    Attributes:
        plan: What runs; nothing without.
        elapsed_s: What the job's clock shows.
        spent_usd: Spent up to now.
        completed_iterations: Done up to now; where epochs tell the progress, before the first of them.
    """

    plan: Plan | None = None
    elapsed_s: _Elapsed = 0.0
    spent_usd: Annotated[float, Number(least=0.0, most=1e12)] = 0.0
    completed_iterations: _Iterations = 0.0


@dataclass(frozen=True)
class ReportKeys:
    """The keys of a report on a watched job: of its progress, of its machines, or of its epochs.

    Attributes:
        elapsed_s: When, on the job's clock; of progress and machines.
        completed_iterations: Iterations done, a report of progress.
        plan: What the job runs on; none while it stands.
        machines: What is rented, where that is more than the plan.
        preempted: Machines that were taken away since the last report.
        refused: Machines that were ordered and could not be had.
        epoch_ends_s: When the latest epochs ended, a report of epochs.
        older_epochs: Epochs before these.
        run_ended_s: When the run of these epochs was over; left out while it goes on.

    Raises:
        DocumentError: Neither a time nor epochs.
    """

    elapsed_s: _Elapsed | None = None
    completed_iterations: _Iterations | None = None
    plan: Plan | None = None
    machines: _Machines = ()
    preempted: _Machines = ()
    refused: _Machines = ()
    # An epoch may have ended before the job's clock began, where that was not set exactly.
    epoch_ends_s: Annotated[tuple[float, ...], ListOf(MOST_EPOCHS, element=Number(above=-_LATEST_S))] | None = None
    older_epochs: Annotated[int, Whole(least=0, most=1 << 31)] = 0
    run_ended_s: Annotated[float, Number(above=-_LATEST_S)] | None = None

    def __post_init__(self) -> None:
        if self.elapsed_s is None and self.epoch_ends_s is None:
            raise DocumentError("elapsed_s", "is missing; give the seconds on the job's clock")


def start_watch(problem: ProblemDocument, values: Any, path: str = "start") -> JobWatch:
    """Return a watch as a document says, of which every key may be missing.

    Raises:
        DocumentError: A key is unknown or holds something that cannot be.
        ProblemError: The problem makes no sense.
    """
    keys = parse(WatchStartKeys, values, path)
    plan = None if keys.plan is None else parse_plan(values["plan"], problem.problem, f"{path}.plan")
    return JobWatch(
        problem,
        plan,
        now_s=keys.elapsed_s,
        spent_usd=keys.spent_usd,
        completed_iterations=keys.completed_iterations,
    )


def take_report(watch: JobWatch, values: Any, path: str = "") -> float | None:
    """Hand a report to a watch; return its time on the job's clock, None for one without.

    Raises:
        DocumentError: A key is unknown or holds something that cannot be.
    """
    keys = parse(ReportKeys, values, path)
    if keys.epoch_ends_s is not None or keys.elapsed_s is None:
        watch.epochs(keys.epoch_ends_s or (), keys.older_epochs)
        if keys.run_ended_s is not None:
            watch.run_ended(keys.run_ended_s)
        return None
    if keys.completed_iterations is not None:
        watch.progress(keys.elapsed_s, keys.completed_iterations)
        return keys.elapsed_s
    at = f"{path}.plan" if path else "plan"
    plan = None if keys.plan is None else parse_plan(values["plan"], watch.problem, at)
    counts = ({each.offer: each.machines for each in rows} for rows in (keys.machines, keys.preempted, keys.refused))
    rented, preempted, refused = counts
    try:
        watch.machines(plan, keys.elapsed_s, rented=rented, preempted=preempted, refused=refused)
    except ProblemError as error:
        raise DocumentError(at, f"{error}; while the job stands, report machines and no plan") from None
    return keys.elapsed_s


def read_reports(lines: Iterable[str], name: str) -> Iterator[dict[str, Any]]:
    """Yield the reports of a file, one JSON object per line; empty lines are left out.

    Args:
        lines: The lines.
        name: What the file is called in errors.

    Raises:
        DocumentError: A line is no report; the message says which.
    """
    for line_number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            yield _report(line)
        except DocumentError as error:
            raise DocumentError(error.field, error.problem, f"{name}:{line_number}") from None


def _report(line: str) -> dict[str, Any]:
    report = parse_json(line.strip().encode("utf-8", "surrogatepass"), is_line=True)
    Number(least=0.0, most=_LATEST_S).read(report.get("elapsed_s"), "elapsed_s")
    machines = ("plan", "machines", "preempted", "refused")
    if "completed_iterations" not in report and not set(machines) & set(report):
        raise DocumentError("completed_iterations", f"is missing; report it, or one of {', '.join(machines)}")
    return report
