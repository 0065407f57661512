"""``gpusonde plan``: what to rent for a training job."""

from __future__ import annotations

import argparse
import contextlib
import math
import re
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpusonde import formatting
from gpusonde.cli.commands.detect import may_be, shown, unsettled
from gpusonde.cli.commands.predict import add_run_options, check_run, predict_run_of, run_id_of
from gpusonde.cli.connection import add_collector_options, client_security, connect
from gpusonde.cli.errors import check_writable, error_context
from gpusonde.cli.output import Output, make_screen
from gpusonde.cli.parsing import Parser, add_plot_option, duration_s, names, positive_integer, positive_number
from gpusonde.cli.plans_view import draw_front, render_front, render_jobs, render_solution
from gpusonde.errors import DocumentError, UsageError

if TYPE_CHECKING:
    from gpusonde.cli.measuring import Predictions, SourceRun
    from gpusonde.collector.client import PlanningClient
    from gpusonde.optimizer.documents.posing import JobTerms, PosedProblem
    from gpusonde.optimizer.documents.problem import ProblemDocument

_GROUP = re.compile(r"(?P<offer>.+)=(?P<machines>[0-9]{1,9})@(?P<batch_size>[0-9]{1,9})")
_EXIT_NO_PLAN = 1
# Terms of a job whose options are called otherwise.
_OPTIONS = {"deadline_s": "deadline", "budget_usd": "budget", "gpus": "targets"}
KEEPS_LIMITS = ("optimal", "feasible")


def add_plan_options(parser: Parser) -> None:
    """Declare ``gpusonde plan``."""
    parser.description = (
        "Say what to rent for a training job, from a problem file (docs/planning.md) or from one run and --epochs. "
        "'solve' finds the best plan, of several files the best plans under shared quotas, 'pareto' lists the plans "
        "that no other one beats in both time and cost, 'estimate' says what a given plan takes and costs, 'init' "
        "prints the problem of a run as a file to change. "
        "Computed here, or by a collector with --collector."
    )
    parser.add_argument("action", choices=["solve", "pareto", "estimate", "init"], help="what is asked")
    parser.add_argument(
        "problems",
        type=Path,
        nargs="*",
        metavar="PROBLEM",
        help="problem file: .toml, else JSON; - for either on stdin; solve: several for jobs that share machines",
    )
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
        "--time-limit-s", type=duration_s, metavar="TIME", help="solve, pareto: longest search here (default: 30)"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="solve, estimate: also write the solution to a file")
    add_plot_option(parser, "(pareto) the plans, cost over time,")
    parser.add_argument(
        "--emit",
        choices=["skypilot", "slurm", "aws-cli", "k8s-job"],
        help="solve, estimate: print a file that starts the plan, to be run by hand; the answer goes to stderr",
    )
    before = parser.options()
    add_terms_options(parser)
    add_run_options(parser, "a run, instead of PROBLEM (one of --trace, --runs, --run, --job, and --gpu-model)")
    parser.add_argument("--model", type=Path, metavar="FILE", help="model of 'gpusonde train', for the run")
    parser.set_defaults(of_run=[name for name in parser.options() if name not in before])
    add_collector_options(parser, default=None, otherwise="computing here")


def add_terms_options(parser: Parser) -> None:
    """Declare what ``terms_of`` makes of the arguments: what is wanted of a job that no problem file tells."""
    group = parser.add_argument_group("what is wanted of the run's job")
    group.add_argument("--epochs", type=positive_integer, metavar="N", help="epochs to train")
    group.add_argument("--deadline", type=duration_s, metavar="TIME", help="in which to end from now, such as 24h")
    group.add_argument(
        "--budget", type=positive_number, metavar="USD", help="most that it, or all jobs, may cost on average"
    )
    group.add_argument(
        "--objective", choices=["cost", "time"], help="what is to be small (default: cost, or what all files say)"
    )
    group.add_argument("--batch-size", type=positive_integer, metavar="N", help="batch per GPU of the run")
    group.add_argument(
        "--quota", type=positive_integer, metavar="N", help="machines of each kind you may rent (default: 8)"
    )
    group.add_argument("--providers", type=names, metavar="A,B", help="clouds to rent from (default: all)")
    group.add_argument("--targets", type=names, metavar="A,B", help="GPUs to rent (default: all)")


def terms_of(args: argparse.Namespace) -> JobTerms:
    """Return what is wanted of a job.

    Raises:
        UsageError: A number that is absurd, or a name that is nobody's.
    """
    from gpusonde.optimizer.documents.posing import JobTerms

    with _told_as_options():
        return JobTerms(
            epochs=args.epochs,
            deadline_s=args.deadline,
            budget_usd=args.budget,
            objective=args.objective or "cost",
            batch_size=args.batch_size,
            steps_per_epoch=args.steps_per_epoch,
            quota=args.quota,
            providers=args.providers or (),
            gpus=args.targets or (),
        )


@contextlib.contextmanager
def _told_as_options() -> Iterator[None]:
    """Name the options by which terms were given."""
    try:
        yield
    except DocumentError as error:
        option = _OPTIONS.get(error.field, error.field.replace("_", "-"))
        raise UsageError(f"--{option}: {error.problem}") from None


def group(text: str) -> dict[str, Any]:
    """Argument type: OFFER=MACHINES@BATCH."""
    match = _GROUP.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not OFFER=MACHINES@BATCH, for example g4dn.xlarge=4@32")
    return {"offer": match["offer"], "machines": int(match["machines"]), "batch_size": int(match["batch_size"])}


def run_plan(args: argparse.Namespace) -> int:
    """Answer and print."""
    from gpusonde.service.durable_files import write_json

    args.problem = args.problems[0] if args.problems else None
    _check_plan(args)
    check_writable(args.out, args.plot)
    output = Output(as_json=args.json)
    if len(args.problems) > 1:
        return _solve_several(args, output)
    posed = _posed(args, output) if args.problem is None else None
    if args.action == "init":
        assert posed is not None  # noqa: S101 - as _check_plan has it
        return _init(args, output, posed)
    problem = _problem(args) if posed is None else posed.document
    if args.action == "pareto":
        front = _pareto(args, problem)
        front["notes"] = [*([] if posed is None else posed.assumed), *front["notes"]]
        if args.plot is not None:
            draw_front(args.plot, problem, front)
        output.result(front, lambda screen: render_front(screen, front, args.plot))
        return 0 if front["points"] else _EXIT_NO_PLAN
    plan = given_plan(args.plan, args.group) if args.action == "estimate" else None
    solution = _solve(args, problem) if plan is None else _estimate(args, problem, plan)
    solution["notes"] = [*([] if posed is None else posed.notes_on(solution["plan"])), *solution["notes"]]
    if args.out is not None:
        write_json(args.out, solution)
    if args.emit:
        launch = ""
        # Without a plan stdout stays empty: what it is sent to is to be run.
        if solution["plan"] is not None:
            with error_context(args.problem):
                launch = _launch_file(args.emit, problem, solution)
        render_solution(make_screen(sys.stderr), solution)
        sys.stdout.write(launch)
    else:
        output.result(solution, lambda screen: render_solution(screen, solution))
    return 0 if solution["status"] in KEEPS_LIMITS else _EXIT_NO_PLAN


def _check_plan(args: argparse.Namespace) -> None:
    estimating = args.action == "estimate"
    of_run = [name for name in args.of_run if getattr(args, name) not in (None, [])]
    if len(args.problems) > 1:
        of_run = [name for name in of_run if name not in ("budget", "objective")]
        for name in ("method", "emit"):
            if getattr(args, name):
                raise UsageError(f"--{name} belongs to one problem file; several are solved together, exactly")
        if args.action != "solve":
            raise UsageError(f"{args.action} takes one problem file; solve takes several")
    if args.problem is not None and of_run:
        raise UsageError(
            f"--{of_run[0].replace('_', '-')} belongs to a run, not to a problem file, which has keys for it"
        )
    if args.problem is None:
        if not of_run:
            raise UsageError("give a PROBLEM file, or --trace TRACE (or another run) with --epochs N")
        check_run(args, used=("steps_per_epoch",))
        if args.epochs is None:
            raise UsageError("a run needs --epochs N, how many are to be trained")
    if args.action == "init" and args.problem is not None:
        raise UsageError("init writes a problem file from a run, --trace TRACE with --epochs N, and takes none")
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
    if args.plot and args.action != "pareto":
        raise UsageError("--plot belongs to pareto")
    if args.emit and (args.action in ("pareto", "init") or args.json):
        raise UsageError("--emit belongs to solve and estimate without --json: it prints a file")


def _posed(args: argparse.Namespace, output: Output) -> PosedProblem:
    """Pose the problem of the run that the arguments name, which ``args.problem`` is called by from then on."""
    from gpusonde.catalog import load_gpus
    from gpusonde.optimizer.documents.posing import PosedProblem
    from gpusonde.simulator.parallel import Placement

    terms = terms_of(args)
    args.problem = Path(
        shown(args.trace[0]) if args.trace else str(args.run or args.job or args.gpu_model or args.runs)
    )
    if args.run is not None or args.job is not None:
        with connect(args) as client:
            run_id = run_id_of(args, client)
        with _client(args) as planning:
            found = planning.pose(run_id, {**asdict(terms), "precision": args.precision})
        return PosedProblem(found.pop("problem"), **found)
    predictions, source = predict_run_of(args, output, [Placement(spec) for spec in load_gpus().specs])
    assert source is not None  # noqa: S101 - only of stored runs the collector alone knows it
    with error_context(args.problem), _told_as_options():
        posed = pose_source(args.problem.stem, predictions, source, terms, args.total_epochs)
    return replace(posed, assumed=[*predictions.notes, *posed.assumed])


def pose_source(
    name: str, predictions: Predictions, source: SourceRun, terms: JobTerms, total_epochs: int | None
) -> PosedProblem:
    """Pose the problem of a run that was measured here; arguments and errors as for ``PosedProblem.of_run``.

    ``total_epochs`` is what was told when its epochs were looked for.
    """
    from gpusonde.optimizer.documents.posing import PosedProblem
    from gpusonde.simulator.parallel import Placement

    here = source.here or Placement(source.measurement.gpu)
    found = source.detection
    if found is None:
        return PosedProblem.of_run(name, predictions.rows, source.measurement, here, terms)
    doubt = _doubt_of(found.role, found.period_s, unsettled(found, total_epochs))
    return PosedProblem.of_run(
        name, predictions.rows, source.measurement, here, terms, cycles=found.cycles, doubt=doubt
    )


def _doubt_of(role: str, period_s: float, total: str) -> str:
    """Say why what is told as epochs of a trace may be none, and what settles it; nothing of those that are."""
    if role == "epoch":
        return ""
    kind = "cycle" if role in ("unknown", "evaluation") else f"{role} cycle"
    taken = f"every {kind} of {formatting.seconds(period_s)} is taken for an epoch"
    return f"{taken}. It may be {may_be(role, period_s, total)}"


def _init(args: argparse.Namespace, output: Output, posed: PosedProblem) -> int:
    from gpusonde.service.durable_files import write_durably

    if args.out is None:
        output.result(posed.document, lambda screen: screen.line(posed.toml().rstrip()))
        return 0
    write_durably(args.out, posed.toml().encode())
    output.result(posed.document, lambda screen: screen.line(f"{args.out}: 'gpusonde plan solve {args.out}' takes it"))
    return 0


def _problem(args: argparse.Namespace) -> dict[str, Any]:
    from gpusonde.optimizer.documents.references import read_problem

    with error_context(args.problem):
        return read_problem(args.problem)


def given_plan(path: Path | None, groups: list[dict[str, Any]] | None) -> dict[str, Any]:
    """Return the plan that a file or ``--group`` says; of a solution file its plan.

    Raises:
        DocumentError: The file is neither.
    """
    from gpusonde.documents import check_format, read_document

    if path is None:
        return {"groups": groups}
    with error_context(path):
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

    with error_context(args.problem):
        return solve_problem(parsed(problem), args.method or "exact", time_limit_s=args.time_limit_s or 30.0)


def _solve_several(args: argparse.Namespace, output: Output) -> int:
    """Solve several problem files, whose jobs share machines and ``--budget``."""
    from gpusonde.optimizer.documents.references import read_problem
    from gpusonde.optimizer.documents.watching import solve_problems
    from gpusonde.optimizer.problem import Objective
    from gpusonde.service.durable_files import write_json

    read: dict[Path, dict[str, Any]] = {}
    documents: dict[Path, ProblemDocument] = {}
    for path in args.problems:
        with error_context(path):
            if path not in documents:
                read[path] = {"name": path.stem, **read_problem(path)}
                documents[path] = parsed(read[path])
    if args.collector is not None:
        with _client(args) as client:
            problems = [read[path] for path in args.problems]
            found = client.solve_several(problems, objective=args.objective, budget_usd=args.budget)
    else:
        with _told_as_options():
            found = solve_problems(
                [(documents[path].name, documents[path]) for path in args.problems],
                Objective(args.objective) if args.objective else None,
                budget_usd=args.budget,
                time_limit_s=args.time_limit_s or 30.0,
            )
    if args.out is not None:
        write_json(args.out, found)
    output.result(found, lambda screen: render_jobs(screen, found))
    return 0 if found["status"] in KEEPS_LIMITS else _EXIT_NO_PLAN


def _estimate(args: argparse.Namespace, problem: dict[str, Any], plan: dict[str, Any]) -> dict[str, Any]:
    if args.collector is not None:
        with _client(args) as client:
            return client.estimate(_checked_for_the_wire(args, problem), plan)
    from gpusonde.optimizer.documents.problem import parse_plan
    from gpusonde.optimizer.documents.watching import estimate_plan

    with error_context(args.problem):
        document = parsed(problem)
        return estimate_plan(document, parse_plan(plan, document.problem, "plan"))


def _pareto(args: argparse.Namespace, problem: dict[str, Any]) -> dict[str, Any]:
    if args.collector is not None:
        with _client(args) as client:
            return client.pareto(_checked_for_the_wire(args, problem))
    from gpusonde.optimizer.documents.watching import pareto_plans

    with error_context(args.problem):
        return pareto_plans(parsed(problem), time_limit_s=args.time_limit_s or 30.0)


def parsed(problem: dict[str, Any]) -> ProblemDocument:
    """Return the problem of a document whose files were read."""
    from gpusonde.catalog import load_gpus, load_offers
    from gpusonde.optimizer.documents.problem import parse_problem

    gpus = load_gpus()
    return parse_problem(problem, gpus, load_offers(gpus=gpus))


def _launch_file(launcher: str, problem: dict[str, Any], solution: dict[str, Any]) -> str:
    from gpusonde.optimizer.documents.problem import parse_plan
    from gpusonde.optimizer.launch_files import launch_file

    posed = parsed(problem).problem
    plan = parse_plan(solution["plan"], posed, "plan")
    # Documents have null for what is infinite.
    at_most_s = solution["estimate"]["time_at_confidence_s"]
    interval_s = solution["estimate"]["checkpoint_interval_s"]
    return launch_file(
        launcher,
        plan,
        posed.offers,
        name=problem.get("name") or "job",
        at_most_s=math.inf if at_most_s is None else at_most_s,
        checkpoint_interval_s=math.inf if interval_s is None else interval_s,
        warning="" if solution["status"] in KEEPS_LIMITS else f"the given plan breaks a limit: {solution['why']}",
    )


def _checked_for_the_wire(args: argparse.Namespace, problem: dict[str, Any]) -> dict[str, Any]:
    """The problem itself: what a collector would refuse is found here, where the file can be named."""
    with error_context(args.problem):
        parsed(problem)
    return problem


def _client(args: argparse.Namespace) -> PlanningClient:
    from gpusonde.collector.client import PlanningClient

    return PlanningClient(args.collector, security=client_security(args))
