"""``gpusonde plan``: what to rent for a training job."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpusonde.cli.connection import add_collector_options, client_security
from gpusonde.cli.errors import naming
from gpusonde.cli.files import check_writable
from gpusonde.cli.output import Output
from gpusonde.cli.parsing import Parser, Subparsers, UsageError, add_command, positive_number

if TYPE_CHECKING:
    from gpusonde.collector.client.query.planning import PlanningClient

_GROUP = re.compile(r"(?P<offer>.+)=(?P<machines>[0-9]{1,9})@(?P<batch_size>[0-9]{1,9})")
_EXIT_NO_PLAN = 1


def add_plan_parser(subparsers: Subparsers, common: Parser) -> None:
    """Declare ``gpusonde plan``."""
    parser = add_command(
        subparsers,
        common,
        "plan",
        "say what to rent for a training job",
        "Say what to rent for a training job, from a problem file (docs/planning.md). 'solve' finds the best plan, "
        "'pareto' lists the plans that no other one beats in both time and cost, 'estimate' says what a given plan "
        "takes and costs. Computed here, or by a collector with --collector.",
    )
    parser.add_argument("action", choices=["solve", "pareto", "estimate"], help="what is asked")
    parser.add_argument("problem", type=Path, metavar="PROBLEM", help="problem file: .toml, else JSON")
    parser.add_argument("--method", choices=["exact", "paper"], help="solve: exact (default), or the published search")
    parser.add_argument("--plan", type=Path, metavar="FILE", help="estimate: the plan, or the solution that has it")
    parser.add_argument(
        "--group",
        type=group,
        action="append",
        metavar="OFFER=N@BATCH",
        help="estimate: N machines of an offer with this batch per GPU; repeatable",
    )
    parser.add_argument(
        "--time-limit-s", type=positive_number, metavar="S", help="solve, pareto: longest search here (default: 30)"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="solve, estimate: also write the solution to a file")
    add_collector_options(parser, default=None, otherwise="computing here")


def group(text: str) -> dict[str, Any]:
    """Argument type: OFFER=MACHINES@BATCH."""
    match = _GROUP.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not OFFER=MACHINES@BATCH, for example g4dn.xlarge=4@32")
    return {"offer": match["offer"], "machines": int(match["machines"]), "batch_size": int(match["batch_size"])}


def run_plan(args: argparse.Namespace) -> int:
    """Answer and print."""
    from gpusonde.cli.planning_view import render_front, render_solution
    from gpusonde.optimizer.documents.schema import write_json

    _check_plan(args)
    if args.out is not None:
        check_writable(args.out)
    output = Output(as_json=args.json)
    problem = _problem(args)
    if args.action == "pareto":
        front = _pareto(args, problem)
        output.result(front, lambda screen: render_front(screen, front))
        return 0 if front["points"] else _EXIT_NO_PLAN
    plan = given_plan(args.plan, args.group) if args.action == "estimate" else None
    solution = _solve(args, problem) if plan is None else _estimate(args, problem, plan)
    if args.out is not None:
        write_json(args.out, solution)
    output.result(solution, lambda screen: render_solution(screen, solution))
    return 0 if solution["status"] in ("optimal", "feasible") else _EXIT_NO_PLAN


def _check_plan(args: argparse.Namespace) -> None:
    estimating = args.action == "estimate"
    if estimating and (args.plan is None) == (args.group is None):
        raise UsageError("estimate needs --plan FILE or --group OFFER=N@BATCH, one of them")
    if not estimating and (args.plan or args.group):
        raise UsageError("--plan and --group belong to estimate")
    if args.method and args.action != "solve":
        raise UsageError("--method belongs to solve")
    if args.time_limit_s and (estimating or args.collector):
        raise UsageError("--time-limit-s belongs to solve and pareto without --collector, which has its own limit")
    if args.out and args.action == "pareto":
        raise UsageError("--out belongs to solve and estimate; pareto prints its list with --json")


def _problem(args: argparse.Namespace) -> dict[str, Any]:
    from gpusonde.optimizer.documents.references import read_problem

    with naming(args.problem):
        return read_problem(args.problem)


def given_plan(path: Path | None, groups: list[dict[str, Any]] | None) -> dict[str, Any]:
    """Return the plan that a file or ``--group`` says; of a solution file its plan.

    Raises:
        gpusonde.optimizer.documents.schema.DocumentError: The file is neither.
    """
    from gpusonde.optimizer.documents.schema import DocumentError, check_format, read_document

    if path is None:
        return {"groups": groups}
    with naming(path):
        document = read_document(path)
        if str(document.get("format")).startswith("gpusonde.solution/"):
            check_format(document, "solution")
            found = document.get("plan")
            if not isinstance(found, dict):
                raise DocumentError("plan", "the solution has no plan; give a plan file or --group")
            return found
        check_format(document, "plan")
        return {key: value for key, value in document.items() if key != "format"}


def _solve(args: argparse.Namespace, problem: dict[str, Any]) -> dict[str, Any]:
    if args.collector is not None:
        with _client(args) as client:
            return client.solve(_checked_for_the_wire(args, problem), args.method or "exact")
    from gpusonde.optimizer.documents.watching import solve_problem

    with naming(args.problem):
        return solve_problem(_parsed(problem), args.method or "exact", time_limit_s=args.time_limit_s or 30.0)


def _estimate(args: argparse.Namespace, problem: dict[str, Any], plan: dict[str, Any]) -> dict[str, Any]:
    if args.collector is not None:
        with _client(args) as client:
            return client.estimate(_checked_for_the_wire(args, problem), plan)
    from gpusonde.optimizer.documents.problem import parse_plan
    from gpusonde.optimizer.documents.watching import estimate_plan

    with naming(args.problem):
        document = _parsed(problem)
        return estimate_plan(document, parse_plan(plan, document.problem, "plan"))


def _pareto(args: argparse.Namespace, problem: dict[str, Any]) -> dict[str, Any]:
    if args.collector is not None:
        with _client(args) as client:
            return client.pareto(_checked_for_the_wire(args, problem))
    from gpusonde.optimizer.documents.watching import pareto_plans

    with naming(args.problem):
        return pareto_plans(_parsed(problem), time_limit_s=args.time_limit_s or 30.0)


def _parsed(problem: dict[str, Any]) -> Any:
    from gpusonde.catalog import load_gpus, load_offers
    from gpusonde.optimizer.documents.problem import parse_problem

    gpus = load_gpus()
    return parse_problem(problem, gpus, load_offers(gpus=gpus))


def _checked_for_the_wire(args: argparse.Namespace, problem: dict[str, Any]) -> dict[str, Any]:
    """The problem itself: what a collector would refuse is found here, where the file can be named."""
    with naming(args.problem):
        _parsed(problem)
    return problem


def _client(args: argparse.Namespace) -> PlanningClient:
    from gpusonde.collector.client.query.planning import PlanningClient

    return PlanningClient(args.collector, security=client_security(args))
