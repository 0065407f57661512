"""Solutions and recommendations as a reader sees them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpusonde.cli import wording
from gpusonde.cli.output import Screen

_HEADINGS = {
    "optimal": "the best plan",
    "feasible": "a plan that keeps every limit",
    "infeasible": "no plan keeps every limit",
    "unknown": "the search ended before it found a plan",
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


def render_front(screen: Screen, front: Mapping[str, Any]) -> None:
    """Print the plans between which one has to choose."""
    points = front["points"]
    columns = ("time", "time kept", "cost", "cost kept", "$ per hour")
    if points:
        screen.table(
            (*columns, "plan"),
            [(*_figures(found["estimate"]), plan_text(found["plan"])) for found in points],
            numeric=columns,
            optional=("cost kept", "time kept"),
        )
    else:
        screen.line("no plan keeps every limit; 'gpusonde plan solve' says why")
    if not front["complete"]:
        screen.note("the search ran out of time: plans may be missing")
    render_notes(screen, front["notes"])


def render_notes(screen: Screen, notes: Sequence[str]) -> None:
    """Print what was assumed."""
    for note in notes:
        screen.note(f"note: {note}")


def plan_text(plan: Mapping[str, Any] | None) -> str:
    """A plan in one line."""
    if plan is None:
        return "nothing"
    return " + ".join(f"{group['machines']} x {group['offer']} @ {group['batch_size']}" for group in plan["groups"])


def hours(seconds: float | None) -> str:
    """A duration that may be minutes or weeks."""
    if seconds is None:
        return wording.ABSENT
    if seconds < 120:
        return f"{wording.number(seconds)} s"
    if seconds < 2 * 3600:
        return f"{wording.number(seconds / 60)} min"
    return f"{wording.number(seconds / 3600)} h"


def _render_plan(screen: Screen, plan: Mapping[str, Any], estimate: Mapping[str, Any]) -> None:
    columns = ("machines", "batch per GPU")
    screen.table(
        ("offer", *columns),
        [(group["offer"], str(group["machines"]), str(group["batch_size"])) for group in plan["groups"]],
        numeric=columns,
    )
    time, kept, cost, cost_kept, per_hour = _figures(estimate)
    step = estimate["step"]
    screen.line(
        f"takes {time} and costs {cost}; with the wanted confidence at most {kept} and {cost_kept}; {per_hour} per hour"
    )
    screen.line(
        f"an iteration takes {wording.seconds(step['mean_s'])}, 95 in 100 at most {wording.seconds(step['p95_s'])}"
    )


def _figures(estimate: Mapping[str, Any]) -> tuple[str, str, str, str, str]:
    return (
        hours(estimate["time_s"]),
        hours(estimate["time_at_confidence_s"]),
        wording.dollars(estimate["cost_usd"]),
        wording.dollars(estimate["cost_at_confidence_usd"]),
        wording.dollars(estimate["usd_per_hour"]),
    )


def is_news(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Whether a recommendation says something else than the one before it."""
    return any(before[key] != after[key] for key in ("kind", "plan", "launch", "end", "at_risk"))


def render_recommendation(screen: Screen, found: Mapping[str, Any]) -> None:
    """Print a recommendation: when, what to do, and what comes of it."""
    screen.heading(f"after {hours(found['at_s'])}: {_ACTIONS[found['kind']]} {_of_kind(found)}".rstrip())
    screen.line(found["why"])
    throughput, projection = found["throughput"], found["projection"]
    if throughput is not None:
        screen.line(
            f"{wording.number(throughput['mean'])} iterations/s"
            f" ({wording.interval(throughput['low'], throughput['high'])});"
            f" {wording.number(found['remaining_iterations'])} left"
        )
    if projection is not None:
        screen.line(
            f"ends after {hours(projection['end_s'])} ({hours(projection['low_s'])} to {hours(projection['high_s'])}),"
            f" spent {wording.dollars(found['spent_usd'])}, in all {wording.dollars(found['expected_usd'])}"
        )
    for word in ("launch", "end"):
        if found[word]:
            machines = [f"{row['machines']} x {row['offer']}" for row in found[word]]
            screen.line(f"{word}: {', '.join(machines)}")
    if found["at_risk"]:
        screen.note("deadline or budget cannot be kept with confidence")
    if found["fallback"] is not None:
        screen.line(
            f"if all spot machines go: {plan_text(found['fallback'])} keeps it until"
            f" {hours(found['fallback_before_s'])}"
        )


def _of_kind(found: Mapping[str, Any]) -> str:
    return plan_text(found["plan"]) if found["kind"] in ("launch", "wait", "run", "keep") else ""
