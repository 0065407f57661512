"""Plans, frontiers of plans and recommendations, as tables and as pictures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpusonde import formatting
from gpusonde.cli.output import Screen

_HEADINGS = {
    "optimal": "the best plan",
    "feasible": "a plan that keeps every limit",
    "infeasible": "no plan keeps every limit",
    "unknown": "the search ended before it found a plan",
}

_JOBS_HEADINGS = {
    "optimal": "the best plans of all jobs",
    "feasible": "plans that keep every limit",
    "infeasible": "no plans keep every limit",
    "unknown": "the search ended before it found plans",
}

_ACTIONS = {
    "launch": "launch",
    "wait": "wait for",
    "run": "run",
    "keep": "keep",
    "idle": "wait for cheaper machines",
    "no_plan": "nothing that can be had does the job",
    "done": "the job is done",
}


def render_solution(screen: Screen, solution: Mapping[str, Any]) -> None:
    """Print a solution: the plan, what it takes, why, and what would change it."""
    heading = _HEADINGS[solution["status"]]
    given = solution["proof"]["method"] == "given"
    if given:
        heading = "the given plan" + ("" if solution["status"] == "feasible" else " breaks a limit")
    screen.heading(heading)
    if solution["plan"] is not None:
        _render_plan(screen, solution["plan"], solution["estimate"])
    screen.line(solution["why"])
    if not given:
        screen.line(solution["proof"]["words"])
    if solution["binding"]:
        screen.line(f"what binds: {', '.join(solution['binding'])}")
    for relaxation in solution["relaxations"]:
        screen.line(f"  {relaxation['words']}")
    nearest = solution["nearest"]
    if nearest is not None:
        screen.heading(f"the nearest plan: {nearest['words']}")
        _render_plan(screen, nearest["plan"], nearest["estimate"])
    render_notes(screen, solution["notes"])


def render_jobs(screen: Screen, found: Mapping[str, Any]) -> None:
    """Print the plans of several jobs, why these, and what would change them."""
    screen.heading(_JOBS_HEADINGS[found["status"]])
    if found["jobs"]:
        _render_jobs(screen, found["jobs"])
    screen.line(found["why"])
    screen.line(found["proof"]["words"])
    if found["binding"]:
        screen.line(f"what binds: {', '.join(found['binding'])}")
    for words in found["relaxations"]:
        screen.line(f"  {words}")
    if found["nearest_jobs"]:
        screen.heading("the nearest plans")
        _render_jobs(screen, found["nearest_jobs"])
    render_notes(screen, found["notes"])


def _render_jobs(screen: Screen, jobs: Sequence[Mapping[str, Any]]) -> None:
    columns = ("time", "time kept", "cost ($)", "$ per hour")
    rows = []
    for job in jobs:
        cost, _, per_hour = _prices(job["estimate"], formatting.money)
        rows.append((job["name"], *_times(job["estimate"]), cost, per_hour, plan_text(job["plan"])))
    screen.table(("job", *columns, "plan"), rows, numeric=columns, optional=("time kept", "$ per hour"))


def render_front(screen: Screen, front: Mapping[str, Any], picture: Path | None = None) -> None:
    """Print the plans between which one has to choose, and where their picture is."""
    points = front["points"]
    columns = ("time", "time kept", "cost ($)", "cost kept ($)", "$ per hour")
    if points:
        screen.table(
            (*columns, "plan"),
            [
                (*_times(found["estimate"]), *_prices(found["estimate"], formatting.money), plan_text(found["plan"]))
                for found in points
            ],
            numeric=columns,
            optional=("cost kept ($)", "time kept", "$ per hour"),
        )
    else:
        screen.line("no plan keeps every limit; 'gpusonde plan solve' says why")
    if not front["complete"]:
        screen.note("the search ran out of time: plans may be missing")
    render_notes(screen, front["notes"])
    if picture is not None:
        screen.line(f"picture: {picture}")


def draw_front(path: Path, problem: Mapping[str, Any], front: Mapping[str, Any]) -> None:
    """Write the picture of the plans between which one has to choose."""
    from gpusonde.cli.picture import PlanMark, draw_plans
    from gpusonde.optimizer.problem import Problem

    keys = ("time_s", "time_at_confidence_s", "cost_usd", "cost_at_confidence_usd")
    plans = [PlanMark(plan_text(each["plan"]), *(each["estimate"][key] for key in keys)) for each in front["points"]]
    what = formatting.count(len(plans), "plan")
    told = "no other plan beats one of them in both" + ("" if front["complete"] else " · the search ran out of time")
    kept = f"kept with {formatting.percent(problem.get('confidence', Problem.confidence), None)} confidence"
    draw_plans(path, plans, f"{problem.get('name') or 'the job'}: {what}, time against cost", told, kept)


def draw_watched(
    path: Path, problem: Mapping[str, Any], reports: Sequence[Mapping[str, Any]], watched: Sequence[Mapping[str, Any]]
) -> None:
    """Write the picture of a watch: machines as reported and as recommended, progress and cost."""
    import numpy as np

    from gpusonde.cli.picture import WatchMarks, draw_watch

    last = watched[-1]

    def counts(rows: Iterable[Mapping[str, Any]]) -> dict[str, int]:
        found: dict[str, int] = {}
        for row in rows:
            found[row["offer"]] = found.get(row["offer"], 0) + row["machines"]
        return found

    def groups(plan: Mapping[str, Any] | None) -> dict[str, int]:
        return counts(plan["groups"]) if plan else {}

    def stretches(states: Sequence[tuple[float, dict[str, int]]]) -> dict[str, list[tuple[int, float, float]]]:
        spans: dict[str, list[tuple[int, float, float]]] = {}
        ends_s = [time_s for time_s, _ in states[1:]] + [last["at_s"]]
        for (start_s, state), end_s in zip(states, ends_s, strict=True):
            for offer, machines in state.items():
                of_offer = spans.setdefault(offer, [])
                goes_on = bool(of_offer) and of_offer[-1][0] == machines and of_offer[-1][2] == start_s
                of_offer.append((machines, of_offer.pop()[1] if goes_on else start_s, end_s))
        return spans

    def events(key: str) -> list[tuple[str, float]]:
        return [(row["offer"], report["elapsed_s"]) for report in reports for row in report.get(key, ())]

    held = [(r["elapsed_s"], {**groups(r.get("plan")), **counts(r.get("machines", ()))}) for r in reports]
    marks = WatchMarks(
        held=stretches(held),
        wanted=stretches([(row["at_s"], groups(row["plan"])) for row in watched]),
        taken=events("preempted"),
        refused=events("refused"),
        times_s=np.array([row["at_s"] for row in watched]),
        done=np.array([row["completed_iterations"] for row in watched])
        / (last["completed_iterations"] + last["remaining_iterations"]),
        spent_usd=np.array([row["spent_usd"] for row in watched]),
        deadline_s=problem.get("deadline_s"),
        budget_usd=problem.get("budget_usd"),
    )
    share = formatting.percent(marks.done[-1])
    told = f"{share} done after {formatting.duration(last['at_s'])}, {formatting.dollars(last['spent_usd'])} spent"
    draw_watch(path, marks, str(problem.get("name") or "the job"), told)


def render_notes(screen: Screen, notes: Sequence[str]) -> None:
    """Print what was assumed."""
    for note in notes:
        screen.note(f"note: {note}")


def plan_text(plan: Mapping[str, Any] | None) -> str:
    """A plan in one line."""
    if plan is None:
        return "nothing"
    groups = " + ".join(f"{group['machines']} x {group['offer']} @ {group['batch_size']}" for group in plan["groups"])
    mode = _mode_text(plan)
    return f"{groups} ({mode})" if mode else groups


def _mode_text(plan: Mapping[str, Any]) -> str:
    """How a plan runs its iterations; empty for the plain way."""
    mode = plan["mode"]
    words = [f"{mode['accumulation_steps']} micro-batches"] if mode["accumulation_steps"] > 1 else []
    words += [mode["sharding"]] if mode["sharding"] != "none" else []
    return ", ".join([*words, *(["checkpointed"] if mode["checkpointing"] else [])])


def _render_plan(screen: Screen, plan: Mapping[str, Any], estimate: Mapping[str, Any]) -> None:
    mode = _mode_text(plan)
    columns = ("machines", "micro-batch per GPU" if plan["mode"]["accumulation_steps"] > 1 else "batch per GPU")
    screen.table(
        ("offer", *columns),
        [(group["offer"], str(group["machines"]), str(group["batch_size"])) for group in plan["groups"]],
        numeric=columns,
    )
    if mode:
        screen.line(f"every iteration: {mode}")
    time, kept = _times(estimate)
    cost, cost_kept, per_hour = _prices(estimate, formatting.dollars)
    if estimate["checkpoint_interval_s"] is not None:
        screen.line(
            f"{formatting.number(estimate['preemptions'])} preemptions are reckoned with, and a checkpoint after every"
            f" {formatting.duration(estimate['checkpoint_interval_s'])} of work"
        )
    elif estimate["preemptions"]:
        screen.line(f"{formatting.number(estimate['preemptions'])} preemptions are reckoned with, and no checkpoint")
    screen.line(
        f"takes {time} and costs {cost}; with the wanted confidence at most {kept} and {cost_kept}; {per_hour} per hour"
    )
    if estimate["data_usd"]:
        screen.line(
            f"{formatting.dollars(estimate['data_usd'])} of that is to copy and keep the data in another region"
        )
    # How single iterations scatter knows nothing of estimated speeds, and would read as the margin of the plan.
    screen.line(f"an iteration takes {formatting.seconds(estimate['step']['mean_s'])}")


def _times(estimate: Mapping[str, Any]) -> list[str]:
    return [formatting.duration(estimate[key]) for key in ("time_s", "time_at_confidence_s")]


def _prices(estimate: Mapping[str, Any], form: Callable[[float | None], str]) -> list[str]:
    return [form(estimate[key]) for key in ("cost_usd", "cost_at_confidence_usd", "usd_per_hour")]


def render_recommendation(screen: Screen, found: Mapping[str, Any]) -> None:
    """Print a recommendation: when, what to do, and what comes of it."""
    screen.heading(f"after {formatting.duration(found['at_s'])}: {_ACTIONS[found['kind']]} {_of_kind(found)}".rstrip())
    screen.line(found["why"])
    throughput, projection = found["throughput"], found["projection"]
    if throughput is not None:
        screen.line(
            f"{formatting.number(throughput['mean'])} iterations/s"
            f" ({formatting.interval(throughput['low'], throughput['high'])});"
            f" {formatting.number(found['remaining_iterations'])} left"
        )
    if projection is not None:
        end, low, high = (formatting.duration(projection[key]) for key in ("end_s", "low_s", "high_s"))
        screen.line(
            f"ends after {end} ({low} to {high}),"
            f" spent {formatting.dollars(found['spent_usd'])}, in all {formatting.dollars(found['expected_usd'])}"
        )
    for word in ("launch", "end"):
        if found[word]:
            machines = [f"{row['machines']} x {row['offer']}" for row in found[word]]
            screen.line(f"{word}: {', '.join(machines)}")
    if found["at_risk"]:
        screen.note("deadline or budget cannot be kept with confidence")
    before_s = found["fallback_before_s"]
    # One whose time has passed keeps nothing.
    if found["fallback"] is not None and (before_s is None or before_s > found["at_s"]):
        screen.line(
            f"if all spot machines go: {plan_text(found['fallback'])} keeps it until"
            f" {formatting.duration(found['fallback_before_s'])}"
        )


def _of_kind(found: Mapping[str, Any]) -> str:
    return plan_text(found["plan"]) if found["kind"] in ("launch", "wait", "run", "keep") else ""
