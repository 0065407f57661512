"""``gpusonde plan`` says what to rent for a training job, ``gpusonde monitor`` whether a running one should go on."""

from __future__ import annotations

import argparse
import contextlib
import logging
import math
import re
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, TypedDict, cast

from gpusonde import formatting
from gpusonde.cli.commands.detect import may_be, shown, unsettled
from gpusonde.cli.commands.predict import add_run_options, check_run, predict_run_of, run_id_of
from gpusonde.cli.connection import add_collector_options, client_security, connect
from gpusonde.cli.errors import check_writable, error_context
from gpusonde.cli.output import JsonKey, Output, Screen, make_screen, to_json
from gpusonde.cli.parsing import Parser, add_plot_option, duration_s, names, positive_integer, positive_number
from gpusonde.errors import DocumentError, UsageError

if TYPE_CHECKING:
    from gpusonde.cli.measuring import Predictions, SourceRun
    from gpusonde.collector.client import PlanningClient
    from gpusonde.optimizer.documents.posing import JobTerms, PosedProblem
    from gpusonde.optimizer.documents.problem import ProblemDocument

_GROUP = re.compile(r"(?P<offer>.+)=(?P<machines>[0-9]{1,9})@(?P<batch_size>[0-9]{1,9})")
_LOG = logging.getLogger(__name__)
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
            _draw(args.plot, problem, front)
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
        for name in ("method", "emit", "collector"):
            if getattr(args, name):
                raise UsageError(f"--{name} belongs to one problem file; several are solved together here, exactly")
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
    if args.out is None:
        output.result(posed.document, lambda screen: screen.line(posed.toml().rstrip()))
        return 0
    args.out.write_text(posed.toml(), encoding="utf-8")
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

    documents: dict[Path, ProblemDocument] = {}
    for path in args.problems:
        with error_context(path):
            if path not in documents:
                documents[path] = parsed(read_problem(path))
    objectives = {document.problem.objective for document in documents.values()}
    if args.objective is None and len(objectives) > 1:
        raise UsageError("some files want least cost and some least time: say --objective cost or --objective time")
    found = solve_problems(
        [(documents[path].name or path.stem, documents[path]) for path in args.problems],
        Objective(args.objective) if args.objective else objectives.pop(),
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
    return launch_file(
        launcher,
        plan,
        posed.offers,
        name=problem.get("name") or "job",
        at_most_s=math.inf if at_most_s is None else at_most_s,
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


_STDIN = "-"
# On the job's clock, as a collector does by default.
_LOOK_INTERVAL_S = 10.0
_MOST_KEPT = 10_000
_PLAN = "gpusonde.optimizer.problem.Plan"
_MACHINES = "gpusonde.optimizer.documents.watching.MachineCount"


class RecommendationPayload(TypedDict):
    """What should be done with a running job."""

    kind: Annotated[
        str,
        JsonKey(
            "`launch` machines, `wait` for them, `run` the job on what is there, `keep` the plan, `idle` until there "
            "are cheaper machines, `no_plan` that can be had, `done`"
        ),
    ]
    at_s: Annotated[float, JsonKey("since the job's start")]
    plan: Annotated[dict[str, Any] | None, JsonKey("what should run, or runs", holds=_PLAN)]
    launch: Annotated[list[dict[str, Any]], JsonKey(holds=_MACHINES)]
    end: Annotated[list[dict[str, Any]], JsonKey(holds=_MACHINES)]
    projection: Annotated[
        dict[str, Any] | None,
        JsonKey(
            "the job's end on the plan, since its start",
            holds="gpusonde.optimizer.continual.progress.Projection",
        ),
    ]
    completed_iterations: float
    remaining_iterations: float
    throughput: Annotated[dict[str, Any] | None, JsonKey(holds="gpusonde.optimizer.continual.progress.Throughput")]
    spent_usd: float
    expected_usd: Annotated[float | None, JsonKey("when the job ends")]
    checkpoint_interval_s: Annotated[float | None, JsonKey("null when none are needed")]
    at_risk: Annotated[bool, JsonKey("deadline or budget cannot be kept with confidence")]
    fallback: Annotated[dict[str, Any] | None, JsonKey("on demand, if all spot machines go", holds=_PLAN)]
    fallback_before_s: Annotated[float | None, JsonKey("latest time to turn to it")]
    why: str


class MonitorPayload(TypedDict):
    """What ``gpusonde monitor`` prints at the end."""

    recommendations: Annotated[list[RecommendationPayload], JsonKey("those that say something new, the latest 10,000")]


def add_monitor_options(parser: Parser) -> None:
    """Declare ``gpusonde monitor``."""
    parser.description = (
        "Watch a running job and say when another plan is better (docs/planning.md), until it is done or its run has "
        "ended. Progress comes from the epochs of "
        "a run that a collector tracks (--run), or from reports (--progress): JSON Lines with elapsed_s and "
        "completed_iterations, or with elapsed_s and plan, preempted or refused when machines change."
    )
    parser.add_argument("problem", type=Path, metavar="PROBLEM", help="problem file of the whole job")
    parser.add_argument("--plan", type=Path, metavar="FILE", help="what runs: a plan, or the solution that has it")
    parser.add_argument(
        "--group", type=group, action="append", metavar="OFFER=N@BATCH", help="what runs, instead of --plan; repeatable"
    )
    parser.add_argument("--progress", metavar="FILE", help="reports, one JSON object per line; - for stdin")
    parser.add_argument("--run", metavar="ID", help="run of the collector ('gpusonde runs' lists them)")
    parser.add_argument(
        "--elapsed-s", type=duration_s, metavar="TIME", help="seconds since the job began (default: 0, or the run's)"
    )
    parser.add_argument("--spent-usd", type=positive_number, metavar="X", help="spent so far (default: 0)")
    parser.add_argument(
        "--completed-iterations",
        type=positive_number,
        metavar="N",
        help="done so far; with --run, before that run (default: 0)",
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="append every recommendation as a line of JSON")
    add_plot_option(parser, "at the end, machines, progress and cost over time,")
    add_collector_options(parser, default=None, otherwise="computing here")


def run_monitor(args: argparse.Namespace) -> int:
    """Watch and print."""
    from gpusonde.optimizer.documents.references import read_problem

    _check_monitor(args)
    check_writable(args.plot)
    output = Output(as_json=args.json)
    with error_context(args.problem):
        problem = read_problem(args.problem)
    start = _start(args)
    kept: list[dict[str, Any]] = []
    watched: deque[dict[str, Any]] = deque(maxlen=_MOST_KEPT)
    machines: deque[dict[str, Any]] = deque(maxlen=_MOST_KEPT)
    screen = output.screen()
    with _appended(args.out) as out:
        found = (
            _of_collector(args, problem, start, machines) if args.collector else _here(args, problem, start, machines)
        )

        def tell(recommendation: dict[str, Any]) -> None:
            del kept[: len(kept) + 1 - _MOST_KEPT]
            kept.append(recommendation)
            if not args.json:
                render_recommendation(screen, recommendation)
            if out is not None:
                out.write(to_json(recommendation) + "\n")
                out.flush()

        recommendation: dict[str, Any] | None = None
        for recommendation in found:
            if args.plot is not None:
                watched.append(recommendation)
            if not kept or is_news(kept[-1], recommendation):
                tell(recommendation)
        if args.run is not None and recommendation is not None and recommendation["why"] != kept[-1]["why"]:
            # The watch ends because the run has, which may be all that is new.
            tell(recommendation)
    if args.plot is not None:
        _draw_watch(args.plot, problem, [{"elapsed_s": 0.0, **start}, *machines], watched)
        if not args.json:
            screen.line(f"picture: {args.plot}")
    if args.json:
        output.result(cast(MonitorPayload, {"recommendations": kept}), lambda _: None)
    return 0


def _check_monitor(args: argparse.Namespace) -> None:
    if args.plan is not None and args.group is not None:
        raise UsageError("--plan and --group exclude each other")
    if args.run is not None and args.collector is None:
        raise UsageError("--run needs --collector HOST:PORT")
    if args.run is None and args.progress is None:
        raise UsageError("give --progress FILE, or --run ID with --collector HOST:PORT")
    if args.run is not None and args.progress is not None:
        raise UsageError("--run and --progress exclude each other: either tells how far the job is")


def _start(args: argparse.Namespace) -> dict[str, Any]:
    start: dict[str, Any] = {
        "elapsed_s": args.elapsed_s,
        "spent_usd": args.spent_usd,
        "completed_iterations": args.completed_iterations,
    }
    if args.plan is not None or args.group is not None:
        start["plan"] = given_plan(args.plan, args.group)
    return {key: value for key, value in start.items() if value is not None}


def _here(
    args: argparse.Namespace, problem: Mapping[str, Any], start: Mapping[str, Any], machines: deque[dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    from gpusonde.catalog import load_gpus, load_offers
    from gpusonde.optimizer.documents.problem import parse_problem
    from gpusonde.optimizer.documents.references import read_problem, reread_after_s
    from gpusonde.optimizer.documents.watching import start_watch, take_report

    gpus = load_gpus()
    with error_context(args.problem):
        watch = start_watch(parse_problem(problem, gpus, load_offers(gpus=gpus)), start)
        reread_s = reread_after_s(args.problem)
    looked_s = float(start.get("elapsed_s", 0.0))
    waiting_s = None
    read_s = time.monotonic()
    with _reports(args, machines) as reports:
        yield (found := watch.recommend(looked_s))
        for report in reports:
            if reread_s is not None and time.monotonic() >= read_s + reread_s:
                read_s = time.monotonic()
                try:
                    watch.follow(parse_problem(read_problem(args.problem), gpus, load_offers(gpus=gpus)))
                except (DocumentError, OSError) as error:
                    _LOG.warning("%s: the last prices stay: %s", args.problem, error)
            now_s = max(looked_s, take_report(watch, report) or 0.0)
            if now_s < looked_s + _LOOK_INTERVAL_S and "completed_iterations" in report:
                waiting_s = now_s
                continue
            looked_s, waiting_s = now_s, None
            yield (found := watch.recommend(now_s))
            if found["kind"] == "done":
                return
    if waiting_s is not None:
        yield watch.recommend(waiting_s)


def _of_collector(
    args: argparse.Namespace, problem: Mapping[str, Any], start: dict[str, Any], machines: deque[dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    from gpusonde.cli.commands.epochs import find_run
    from gpusonde.collector.client import PlanningClient

    if args.run is not None:
        with connect(args) as client:
            found = find_run(client, args.run)
        start["run_id"] = found.run_id
        start.setdefault("elapsed_s", max(0.0, time.time() - found.start_unix_nano / 1e9))
    with (
        PlanningClient(args.collector, security=client_security(args)) as planning,
        _reports(args, machines) as reports,
    ):
        yield from planning.watch(problem, start, reports)


@contextlib.contextmanager
def _reports(args: argparse.Namespace, machines: deque[dict[str, Any]]) -> Iterator[Iterable[dict[str, Any]]]:
    """Open the reports; those of machines are remembered for the picture as they go by."""
    from gpusonde.optimizer.documents.watching import read_reports

    def passed(reports: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        for report in reports:
            if "elapsed_s" in report and "completed_iterations" not in report:
                machines.append(report)
            yield report

    if args.progress is None:
        yield ()
    elif args.progress == _STDIN:
        yield passed(read_reports(sys.stdin, "stdin"))
    else:
        with open(args.progress, encoding="utf-8", errors="replace") as file:
            yield passed(read_reports(file, args.progress))


@contextlib.contextmanager
def _appended(path: Path | None) -> Iterator[IO[str] | None]:
    if path is None:
        yield None
        return
    with path.open("a", encoding="utf-8") as file:
        yield file


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


def _draw(path: Path, problem: Mapping[str, Any], front: Mapping[str, Any]) -> None:
    from gpusonde.cli.picture import PlanMark, draw_plans
    from gpusonde.optimizer.problem import Problem

    keys = ("time_s", "time_at_confidence_s", "cost_usd", "cost_at_confidence_usd")
    plans = [PlanMark(plan_text(each["plan"]), *(each["estimate"][key] for key in keys)) for each in front["points"]]
    what = formatting.count(len(plans), "plan")
    told = "no other plan beats one of them in both" + ("" if front["complete"] else " · the search ran out of time")
    kept = f"kept with {formatting.percent(problem.get('confidence', Problem.confidence), None)} confidence"
    draw_plans(path, plans, f"{problem.get('name') or 'the job'}: {what}, time against cost", told, kept)


def _draw_watch(
    path: Path, problem: Mapping[str, Any], reports: Sequence[Mapping[str, Any]], watched: Sequence[Mapping[str, Any]]
) -> None:
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
    step = estimate["step"]
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
    screen.line(
        f"an iteration takes {formatting.seconds(step['mean_s'])}, "
        f"95 in 100 at most {formatting.seconds(step['p95_s'])}"
    )


def _times(estimate: Mapping[str, Any]) -> list[str]:
    return [formatting.duration(estimate[key]) for key in ("time_s", "time_at_confidence_s")]


def _prices(estimate: Mapping[str, Any], form: Callable[[float | None], str]) -> list[str]:
    return [form(estimate[key]) for key in ("cost_usd", "cost_at_confidence_usd", "usd_per_hour")]


def is_news(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Whether a recommendation says something else than the one before it."""
    return any(before[key] != after[key] for key in ("kind", "plan", "launch", "end", "at_risk"))


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
    if found["fallback"] is not None:
        screen.line(
            f"if all spot machines go: {plan_text(found['fallback'])} keeps it until"
            f" {formatting.duration(found['fallback_before_s'])}"
        )


def _of_kind(found: Mapping[str, Any]) -> str:
    return plan_text(found["plan"]) if found["kind"] in ("launch", "wait", "run", "keep") else ""
