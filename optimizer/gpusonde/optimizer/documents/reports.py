"""What is reported of a watched job, as documents: progress, machines, epochs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from gpusonde.optimizer.documents.fields import DocumentError, Table, number
from gpusonde.optimizer.documents.files import parse_json
from gpusonde.optimizer.documents.problem import MOST_MACHINES, MOST_OFFERS, ProblemDocument, parse_plan
from gpusonde.optimizer.documents.watching import MOST_EPOCHS, JobWatch
from gpusonde.optimizer.problem import ProblemError

_PROGRESS_KEYS = ("elapsed_s", "completed_iterations")
_MACHINE_KEYS = ("plan", "machines", "preempted", "refused")
# A century.
_LATEST_S = 3.2e9
_MOST_ITERATIONS = 2.0**53


def start_watch(problem: ProblemDocument, values: Any, path: str = "start") -> JobWatch:
    """Return a watch as a document says, of which every key may be missing.

    Raises:
        DocumentError: A key is unknown or holds something that cannot be.
        ProblemError: The problem makes no sense.
    """
    table = Table(values, path, ("plan", "elapsed_s", "spent_usd", "completed_iterations"))
    plan = parse_plan(table.value("plan"), problem.problem, table.at("plan")) if "plan" in table else None
    return JobWatch(
        problem,
        plan,
        now_s=table.number("elapsed_s", 0.0, above=False, most=_LATEST_S),
        spent_usd=table.number("spent_usd", 0.0, above=False, most=1e12),
        completed_iterations=table.number("completed_iterations", 0.0, above=False, most=_MOST_ITERATIONS),
    )


def take_report(watch: JobWatch, values: Any, path: str = "") -> float | None:
    """Hand a report to a watch; return its time on the job's clock, None for one without.

    It is one of ``elapsed_s`` with ``completed_iterations``; ``elapsed_s`` with ``plan`` (none while the job stands),
    ``machines`` (what is rented, where that is more than the plan), ``preempted`` and ``refused``; and
    ``epoch_ends_s`` with ``older_epochs``.

    Raises:
        DocumentError: A key is unknown or holds something that cannot be.
    """
    table = Table(values, path, (*_PROGRESS_KEYS, *_MACHINE_KEYS, "epoch_ends_s", "older_epochs"))
    if "epoch_ends_s" in table:
        # An epoch may have ended before the job's clock began, where that was not set exactly.
        ends_s = table.numbers("epoch_ends_s", most=MOST_EPOCHS, least=-_LATEST_S)
        watch.epochs(ends_s, table.whole("older_epochs", 0, least=0, most=1 << 31))
        return None
    now_s = table.number("elapsed_s", above=False, most=_LATEST_S)
    if "completed_iterations" in table:
        watch.progress(now_s, table.number("completed_iterations", above=False, most=_MOST_ITERATIONS))
        return now_s
    plan = parse_plan(table.value("plan"), watch.problem, table.at("plan")) if "plan" in table else None
    try:
        watch.machines(
            plan,
            now_s,
            rented=_counts(table, "machines"),
            preempted=_counts(table, "preempted"),
            refused=_counts(table, "refused"),
        )
    except ProblemError as error:
        raise DocumentError(table.at("plan"), f"{error}; while the job stands, report machines and no plan") from None
    return now_s


def _counts(table: Table, key: str) -> Mapping[str, int]:
    found = {}
    for at, element in table.items(key, most=MOST_OFFERS):
        row = Table(element, at, ("offer", "machines"))
        found[row.text("offer", longest=256)] = row.whole("machines", most=MOST_MACHINES)
    return found


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
            raise DocumentError(error.field, f"{name}:{line_number}: {error}") from None


def _report(line: str) -> dict[str, Any]:
    report = parse_json(line.strip().encode("utf-8", "surrogatepass"), is_line=True)
    number(report.get("elapsed_s"), "elapsed_s", above=False, most=_LATEST_S)
    if "completed_iterations" not in report and not set(_MACHINE_KEYS) & set(report):
        raise DocumentError("completed_iterations", f"is missing; report it, or one of {', '.join(_MACHINE_KEYS)}")
    return report
