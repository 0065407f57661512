"""The seed's case studies 1-7: whether our searches choose what it chose from the seconds that it measured."""

from __future__ import annotations

from baseline_apm import cheapest_first, fastest_first
from srifty_cases import SPEED_ORDER, Case, cases

from gpusonde.optimizer.solve import solve

_TEXT = (
    "Case studies 1-7 of the seed (`srifty_cases`), its measured seconds as step times. `paper`, `exact` and brute "
    "force agree in all of them. Its own slips are no targets: case 4's Oracle-BO sums to 256 samples instead of "
    "1,024, case 6's CGF to 2,560 instead of 2,176, and case 6's FGF costs half of what it says."
)


def case_lines() -> list[str]:
    """Lines of the section."""
    compared = [_compare(case) for case in cases()]
    off = [f"{what}: {wrong}" for what, wrong, _ in compared if wrong]
    nearest = [f"{what}: {said}" for what, _, said in compared if said]
    same = f"{len(compared) - len(off)} of {len(compared)} are as in the text by our search, CGF and FGF"
    text = f"{_TEXT} {same}{'; off: ' if off else ''}{'; '.join(off)}. Without a plan: {'; '.join(nearest)}."
    return ["### The seed's case studies", "", text, ""]


def _compare(case: Case) -> tuple[str, str, str]:
    """Name a case, what differs from the seed's text, and what is nearest where there is no plan."""
    solution = solve(case.problem, case.steps)
    wrong = []
    if solution.plan != case.chosen_by("Srifty"):
        wrong.append(f"we choose {solution.plan}")
    if cheapest_first(case.problem) != case.chosen_by("CGF"):
        wrong.append("CGF")
    if fastest_first(case.problem, SPEED_ORDER) != case.chosen_by("FGF"):
        wrong.append("FGF")
    said = ""
    if solution.nearest is not None:
        nearest = solution.nearest.estimate
        said = f"nearest {solution.nearest.plan} ({nearest.time_s:.0f} s, {nearest.cost_usd:.2f} USD)"
    return f"case {case.number} ({case.network})", ", ".join(wrong), said
