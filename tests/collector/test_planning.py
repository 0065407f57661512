"""What to rent, asked of a real collector: plans, limits, roles, watches."""

import asyncio
import json
import math
import time
from dataclasses import fields, replace
from pathlib import Path

import grpc
import pytest
from google.protobuf.descriptor import FieldDescriptor
from support.certificates import Authority, tls_settings
from support.problem_documents import small_problem
from support.running_collector import ProcessCollector, ThreadCollector
from support.trace_records import incoming, trace_records
from support.tracked_store import TrackedStore
from support.wire_agent import wait_until

from gpusonde.catalog import load_gpus, load_offers
from gpusonde.collector.client import CollectorError, PlanningClient
from gpusonde.collector.messages import fill, to_document
from gpusonde.collector.planning.processes import RunProblems
from gpusonde.collector.planning.service import unless_draining
from gpusonde.collector.query.prediction import LatencyPredictor
from gpusonde.collector.storage.model import RunUpdate
from gpusonde.common.v1.job_pb2 import SCHEDULER_SLURM as SLURM
from gpusonde.documents import ListOf, Number, Object, OneOf, Switch, Text, Whole, keys_of
from gpusonde.errors import RequestError
from gpusonde.optimizer import (
    Nearest,
    ParetoFront,
    ParetoPoint,
    Plan,
    PlanEstimate,
    Proof,
    Relaxation,
    Solution,
    StepEstimate,
)
from gpusonde.optimizer.documents.problem import ProblemKeys, parse_plan, parse_problem
from gpusonde.optimizer.documents.watching import (
    ReportKeys,
    WatchStartKeys,
    estimate_plan,
    pareto_plans,
    solve_problem,
    solve_problems,
)
from gpusonde.optimizer.several_jobs import JobPlan, JointSolution
from gpusonde.planning.v1 import planning_pb2, planning_pb2_grpc
from gpusonde.predictor.crossgpu import LatencyModel
from gpusonde.service.tls import ClientSecurity
from gpusonde.telemetry import read_trace

# As long as a busy machine needs.
QUICK = {"planning__watch_interval": "100ms", "workers__time_limit": "5m"}
DEMO_TRACE = Path(__file__).parents[1] / "data" / "demo_trace.parquet"
PLAN = {"groups": [{"offer": "t4", "machines": 4, "batch_size": 64}]}


@pytest.fixture(scope="module")
def planner(tmp_path_factory):
    with ThreadCollector(tmp_path_factory.mktemp("planner") / "data", **QUICK) as running:
        yield running


@pytest.fixture
def client(planner):
    with PlanningClient(planner.target, timeout_s=120) as asking:
        yield asking


def refusal(ask):
    with pytest.raises(CollectorError) as error:
        ask()
    return error.value.code, error.value.details


def parsed(**changes):
    gpus = load_gpus()
    return parse_problem(small_problem(**changes), gpus, load_offers(gpus=gpus))


def test_a_message_holds_the_same_as_the_document():
    document = small_problem(batch_sizes=[8, 16])
    message = planning_pb2.Problem()
    fill(message, document)
    again = to_document(planning_pb2.Problem.FromString(message.SerializeToString()))
    assert {"format": "gpusonde.problem/1", **again} == document


# Fields that are no keys: what the collector itself needs, and the case of a report.
OWN_FIELDS = {"WatchStart": {"problem", "run_id"}, "ReportedMachines": set(), "ReportedProgress": set()}


def differences(descriptor, keys, *, is_part=False):
    """What of a message is not as the keys of its document say, objects below it included."""
    own = OWN_FIELDS.get(descriptor.name, set())
    fields = {field.name: field for field in descriptor.fields if field.name not in own}
    by_name = {key.name: key for key in keys_of(keys)}
    found = [f"{descriptor.name}.{name}: no such key" for name in fields.keys() - by_name.keys()]
    if not is_part:
        found += [f"{descriptor.name}: no field for {name}" for name in by_name.keys() - fields.keys()]
    for name in fields.keys() & by_name.keys():
        field, key = fields[name], by_name[name]
        check = key.check.element if isinstance(key.check, ListOf) else key.check
        if (field.label == field.LABEL_REPEATED) != isinstance(key.check, ListOf):
            found.append(f"{descriptor.name}.{name}: a list on one side")
        if isinstance(check, OneOf) and field.enum_type is not None:
            prefix = field.enum_type.values[0].name.removesuffix("UNSPECIFIED")
            words = {value.name.removeprefix(prefix).lower() for value in field.enum_type.values[1:]}
            found += [] if words == set(check.values) else [f"{descriptor.name}.{name}: other choices"]
        elif WIRE_TYPES[type(check)] != field.cpp_type and not (
            isinstance(check, Whole) and field.cpp_type == field.CPPTYPE_UINT64
        ):
            found.append(f"{descriptor.name}.{name}: another type")
        if key.kind is not None:
            found += differences(field.message_type, key.kind)
    return found


WIRE_TYPES = {
    Number: FieldDescriptor.CPPTYPE_DOUBLE,
    Whole: FieldDescriptor.CPPTYPE_UINT32,
    Text: FieldDescriptor.CPPTYPE_STRING,
    OneOf: FieldDescriptor.CPPTYPE_STRING,
    Switch: FieldDescriptor.CPPTYPE_BOOL,
    Object: FieldDescriptor.CPPTYPE_MESSAGE,
}


def test_every_key_of_a_document_has_a_field_of_its_kind_and_every_field_a_key():
    assert differences(planning_pb2.Problem.DESCRIPTOR, ProblemKeys) == []
    assert differences(planning_pb2.Plan.DESCRIPTOR, Plan) == []
    assert differences(planning_pb2.WatchStart.DESCRIPTOR, WatchStartKeys) == []
    assert differences(planning_pb2.ReportedProgress.DESCRIPTOR, ReportKeys, is_part=True) == []
    assert differences(planning_pb2.ReportedMachines.DESCRIPTOR, ReportKeys, is_part=True) == []


def test_every_field_of_an_answer_is_one_of_what_the_optimizer_answers():
    for message, answer in (
        (planning_pb2.Solution, Solution),
        (planning_pb2.PlanEstimate, PlanEstimate),
        (planning_pb2.StepEstimate, StepEstimate),
        (planning_pb2.Proof, Proof),
        (planning_pb2.Relaxation, Relaxation),
        (planning_pb2.Nearest, Nearest),
        (planning_pb2.JointSolution, JointSolution),
        (planning_pb2.JobPlan, JobPlan),
        (planning_pb2.ParetoPoint, ParetoPoint),
        (planning_pb2.ListParetoPlansResponse, ParetoFront),
    ):
        names = {field.name for field in message.DESCRIPTOR.fields} - {"notes"}
        assert names == {field.name for field in fields(answer)}, message.DESCRIPTOR.name


def test_the_collector_answers_what_is_computed_here(client):
    document = parsed()
    assert client.solve(small_problem()) == json.loads(json.dumps(solve_problem(document)))
    assert client.pareto(small_problem()) == json.loads(json.dumps(pareto_plans(document)))
    in_tokens = small_problem(iterations=None, tokens=256 * 2048 * 2e4, sequence_length=2048)
    assert client.solve(in_tokens) == client.solve(small_problem())
    here = estimate_plan(document, parse_plan(PLAN, document.problem, "plan"))
    assert client.estimate(small_problem(), PLAN) == json.loads(json.dumps(here))


def test_the_collector_solves_several_jobs_as_is_computed_here(client):
    """Equal problems are equal jobs."""
    other = small_problem(name="other", global_batch=128)
    small = parsed()
    here = solve_problems([("small", small), ("other", parsed(name="other", global_batch=128)), ("small", small)])
    found = client.solve_several([small_problem(), other, small_problem()])
    assert found == json.loads(json.dumps(here))
    assert [job["name"] for job in found["jobs"]] == ["small", "other", "small (2)"]
    assert client.solve_several([small_problem(name=None)])["jobs"][0]["name"] == "job 1"
    poor = client.solve_several([small_problem()] * 2, objective="time", budget_usd=1.0)
    assert (poor["status"], poor["jobs"], poor["cost_usd"]) == ("infeasible", [], None)
    assert "more than the budget of $1.00" in poor["why"]


@pytest.mark.parametrize(
    ("problems", "more", "says"),
    [
        ([], {}, "problems: give 1 to 64"),
        ([{}] * 65, {}, "problems: give 1 to 64 of them, not 65"),
        ([small_problem(), small_problem(offers=[])], {}, "problems[1].offers: is missing"),
        ([small_problem(), small_problem(objective="time")], {}, "objective: some jobs want least cost"),
        ([small_problem()], {"budget_usd": -1.0}, "budget_usd -1.0 must be above zero"),
        ([small_problem()], {"budget_usd": math.nan}, "budget_usd nan must be above zero"),
    ],
)
def test_several_jobs_that_cannot_be_are_refused_naming_the_key(client, problems, more, says):
    code, text = refusal(lambda: client.solve_several(problems, **more))
    assert code == "INVALID_ARGUMENT"
    assert says in text


def test_earlier_runs_of_the_same_job_on_other_gpus_are_found_and_calibrate_its_problem(tmp_path):
    subject = TrackedStore(tmp_path / "data")
    trace = read_trace(DEMO_TRACE).window(0, 130)
    subject.feed(incoming(trace_records(trace, gpu_uuid="GPU-now")), 200)
    for name in ("GPU-a", "GPU-b", "GPU-other"):
        known = trace_records(trace.window(0, 2), gpu_uuid=name, end=False)
        subject.store.samples.append(incoming(known, f"agent-{name}", name))
    (now,) = subject.results.runs(limit=9)

    def before(name, days, period_s, job="train", uuid="GPU-a"):
        at = now.start_unix_nano - days * 86_400 * 10**9
        return replace(
            now, run_id=name, agent_id="agent-GPU-a", gpu_uuid=uuid, job_id=job, scheduler=SLURM, period_s=period_s,
            start_unix_nano=at, end_unix_nano=at + 10**12,
        )  # fmt: skip

    rows = [
        replace(now, job_id="train", scheduler=SLURM),
        before("a", 3, now.period_s * 0.6),
        before("b", 3, now.period_s * 0.6, uuid="GPU-b"),
        before("no-epochs", 2, math.nan),
        before("another", 1, now.period_s * 0.3, job="serve", uuid="GPU-other"),
    ]
    rows[3] = replace(rows[3], verdict="none")
    subject.results.save([RunUpdate(row, None) for row in rows], {})
    gpus = load_gpus()
    predictor = LatencyPredictor(subject.store, gpus, LatencyModel.shipped, offers=load_offers(gpus=gpus))
    request = planning_pb2.PoseProblemRequest(
        run_id=now.run_id, epochs=90, providers=["aws"], gpus=["T4"], steps_per_epoch=100
    )
    posed = RunProblems(predictor, subject.results).pose(request)
    (curve,) = posed.problem.job.curves
    assert [(each.gpus, each.machines) for each in curve.iterations] == [(2, 1), (1, 1)]
    assert curve.iterations[0].seconds == pytest.approx(2 * 0.6 * now.period_s / 100, rel=1e-4)
    assert curve.iterations[1].seconds == pytest.approx(now.period_s / 100, rel=1e-4)
    assert any(
        note.startswith("other runs of the job tell what its iterations take on 2 x T4") for note in posed.assumed
    )
    subject.store.close()


def test_the_published_search_can_be_asked_for(client):
    assert client.solve(small_problem(), "paper")["proof"]["method"] == "paper"


def test_a_problem_without_a_plan_is_answered_with_the_nearest(client):
    found = client.solve(small_problem(deadline_s=60.0))
    assert (found["status"], found["plan"], found["estimate"]) == ("infeasible", None, None)
    assert found["nearest"]["plan"]["groups"]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"global_batch": 0}, "global_batch: must be a whole number"),
        ({"offers": []}, "offers: is missing"),
        ({"deadline_s": math.nan}, "deadline_s: must be a number"),
        ({"iterations": None}, "iterations: is missing"),
        ({"tokens": 10**9, "sequence_length": 2048}, "tokens: iterations is a total already"),
        ({"iterations": None, "tokens": 2**60, "sequence_length": 2048}, "tokens: must be a whole number from 1 to"),
        ({"deadline_s": -1.0}, "one in the past"),
        ({"job": {}}, "job.curves: is missing"),
    ],
)
def test_what_cannot_be_is_refused_naming_the_key(client, changes, says):
    code, text = refusal(lambda: client.solve(small_problem(**changes)))
    assert code == "INVALID_ARGUMENT"
    assert says in text


def test_unknown_enumerations_of_newer_clients_are_refused(planner):
    message = planning_pb2.SolveProblemRequest()
    fill(message, {"problem": small_problem()})
    message.problem.objective = 77
    several = planning_pb2.SolveProblemsRequest(objective=77)
    fill(several, {"problems": [small_problem()]})
    with grpc.insecure_channel(planner.target) as channel:
        stub = planning_pb2_grpc.PlanningServiceStub(channel)
        for ask, asked in ((stub.SolveProblem, message), (stub.SolveProblems, several)):
            with pytest.raises(grpc.RpcError) as error:
                ask(asked)
            assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert "objective" in error.value.details()


def large_problem():
    """Thirty kinds of machines, hundreds of each."""
    document = small_problem(global_batch=65_536, batch_sizes=[8, 12, 16, 20, 24, 32, 40, 48, 56, 64, 96, 128])
    document["offers"] = [
        {**document["offers"][i % 2], "name": f"offer-{i}", "quota": 500, "usd_per_hour": 0.5 + 0.013 * i}
        for i in range(30)
    ]
    return document


def test_an_answer_that_takes_too_long_is_given_up_and_the_next_question_is_answered(tmp_path):
    with (
        ThreadCollector(tmp_path / "data", workers__time_limit="1s") as running,
        PlanningClient(running.target) as client,
    ):
        code, text = refusal(lambda: client.solve_several([large_problem()] * 2))
        assert (code, "workers.time_limit" in text) == ("DEADLINE_EXCEEDED", True)
        code, text = refusal(lambda: client.solve(large_problem()))
        assert (code, "workers.time_limit" in text) == ("DEADLINE_EXCEEDED", True)
        # A second may be too short for any question on a busy machine.
        wait_until(lambda: succeeds(lambda: client.estimate(small_problem(), PLAN)), 200, "an answer")


def succeeds(ask):
    try:
        ask()
    except CollectorError:
        return False
    return True


def test_more_questions_than_may_wait_are_refused_at_once(tmp_path):
    with (
        ThreadCollector(tmp_path / "data", workers__max_waiting="1") as running,
        grpc.insecure_channel(running.target) as channel,
    ):
        stub = planning_pb2_grpc.PlanningServiceStub(channel)
        message = planning_pb2.SolveProblemRequest()
        fill(message, {"problem": small_problem()})
        calls = [stub.SolveProblem.future(message, timeout=120) for _ in range(6)]
        codes = [call.code() for call in calls]
        assert codes.count(grpc.StatusCode.OK) == 2
        assert codes.count(grpc.StatusCode.RESOURCE_EXHAUSTED) == 4
        assert "ask again in a moment" in next(call.details() for call in calls if call.code().value[0] == 8)
        assert stub.SolveProblem(message, timeout=120).solution.plan.groups


def test_a_caller_who_goes_away_leaves_nobody_computing(tmp_path):
    with (
        ThreadCollector(tmp_path / "data", workers__time_limit="20m") as running,
        PlanningClient(running.target, timeout_s=200) as client,
    ):
        with grpc.insecure_channel(running.target) as channel:
            message = planning_pb2.SolveProblemRequest()
            fill(message, {"problem": large_problem()})
            call = planning_pb2_grpc.PlanningServiceStub(channel).SolveProblem.future(message)
            time.sleep(0.2)
            call.cancel()
        # With the one process still busy this would wait for twenty minutes, or as long as the search takes.
        client.solve(small_problem())


def is_running(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_nobody_computes_for_a_collector_that_was_killed(tmp_path):
    with ProcessCollector(tmp_path / "data") as collector, PlanningClient(collector.target) as client:
        client.solve(small_problem())
        tasks = Path(f"/proc/{collector.pid}/task").iterdir()
        children = {pid for task in tasks for pid in (task / "children").read_text().split()}
        assert children
        collector.kill()
        wait_until(lambda: not any(map(is_running, children)), 120, "the end of the processes")


def test_requests_beyond_their_size_and_planning_that_is_off_are_refused(tmp_path):
    with (
        ThreadCollector(tmp_path / "a") as running,
        PlanningClient(running.target) as client,
    ):
        document = small_problem()
        document["offers"] = [{**document["offers"][0], "name": f"t4-{i}" + "x" * 25_000} for i in range(200)]
        code, text = refusal(lambda: client.solve(document))
        assert (code, "4194304 are taken" in text) == ("RESOURCE_EXHAUSTED", True)
        client.solve(small_problem())
    with ThreadCollector(tmp_path / "b", planning__processes="0") as running, PlanningClient(running.target) as client:
        code, text = refusal(lambda: client.solve(small_problem()))
        assert (code, "planning.processes" in text) == ("FAILED_PRECONDITION", True)


def test_readers_and_admins_may_ask_and_agents_may_not(tmp_path):
    authority = Authority(tmp_path / "authority")
    with ThreadCollector(tmp_path / "data", **tls_settings(authority)) as running:
        for role, may in (("reader", True), ("admin", True), ("agent", False)):
            certificate, key = authority.client(role, "someone")
            security = ClientSecurity(str(authority.ca), str(certificate), str(key))
            with PlanningClient(running.target, security=security) as client:
                if may:
                    assert client.estimate(small_problem(), PLAN)["status"] == "feasible"
                    continue
                assert refusal(lambda c=client: c.estimate(small_problem(), PLAN))[0] == "PERMISSION_DENIED"
                assert refusal(lambda c=client: list(c.watch(small_problem(), {})))[0] == "PERMISSION_DENIED"


def steady(until_s, iterations_per_s=4.2, step_s=60):
    return [{"elapsed_s": float(t), "completed_iterations": t * iterations_per_s} for t in range(0, until_s, step_s)]


def test_a_watched_job_is_followed_by_its_reports_to_its_end(client):
    found = list(client.watch(small_problem(), {"plan": PLAN}, steady(5400)))
    assert found[0]["kind"] == "keep"
    assert found[-1]["kind"] == "done"
    assert found[-1]["remaining_iterations"] == 0
    middle = found[len(found) // 2]
    assert middle["throughput"]["mean"] == pytest.approx(4.2, rel=0.01)
    assert middle["projection"]["end_s"] == pytest.approx(20_000 / 4.2, rel=0.05)


def test_a_preemption_leads_to_another_plan(client):
    reports = [
        *steady(1200),
        {
            "elapsed_s": 1205.0,
            "machines": [{"offer": "t4", "machines": 3}],
            "preempted": [{"offer": "t4", "machines": 1}],
        },
    ]
    last = list(client.watch(small_problem(), {"plan": PLAN}, reports))[-1]
    assert last["kind"] == "launch"
    assert last["launch"]
    # More t4 are not to be had just now.
    assert "t4" not in {row["offer"] for row in last["launch"]}


def test_what_was_done_before_the_watch_counts(client):
    start = {"plan": PLAN, "elapsed_s": 3600.0, "completed_iterations": 15_000.0, "spent_usd": 2.0}
    first, *_ = client.watch(small_problem(), start)
    assert (first["at_s"] >= 3600.0, first["remaining_iterations"], first["spent_usd"] >= 2.0) == (True, 5000.0, True)
    assert 3600.0 < first["projection"]["end_s"] < 3600.0 + 2 * 5000 * 0.24


def test_a_job_that_is_not_yet_started_is_told_what_to_launch(client):
    first = next(iter(client.watch(small_problem(), {})))
    assert first["kind"] == "launch"
    assert first["launch"] == [{"offer": "t4", "machines": 4}]


@pytest.mark.parametrize(
    ("start", "reports", "code", "says"),
    [
        ({"plan": {"groups": [{"offer": "k80", "machines": 1, "batch_size": 1}]}}, [], "INVALID_ARGUMENT", "k80"),
        ({"elapsed_s": math.nan}, [], "INVALID_ARGUMENT", "elapsed_s"),
        ({"run_id": "none"}, [], "NOT_FOUND", "gpusonde runs"),
        ({}, [{"elapsed_s": -1.0, "completed_iterations": 0.0}], "INVALID_ARGUMENT", "elapsed_s"),
        ({}, [{"elapsed_s": 1.0, "completed_iterations": math.inf}], "INVALID_ARGUMENT", "completed_iterations"),
        (
            {},
            [{"elapsed_s": 1.0, "plan": {"groups": [{"offer": "t4", "machines": 3, "batch_size": 64}]}}],
            "INVALID_ARGUMENT",
            "192 samples",
        ),
    ],
)
def test_watches_of_what_cannot_be_are_refused(client, start, reports, code, says):
    found, text = refusal(lambda: list(client.watch(small_problem(), start, reports)))
    assert found == code
    assert says in text


def test_a_watch_begins_with_its_start(planner):
    with grpc.insecure_channel(planner.target) as channel:
        stub = planning_pb2_grpc.PlanningServiceStub(channel)
        for requests in ([], [planning_pb2.WatchJobRequest(progress=planning_pb2.ReportedProgress())]):
            with pytest.raises(grpc.RpcError) as error:
                list(stub.WatchJob(iter(requests)))
            assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def endless(stop):
    while not stop:
        time.sleep(0.05)
        yield from ()


def test_more_watches_than_allowed_are_refused_until_one_ends(tmp_path):
    with (
        ThreadCollector(tmp_path / "data", planning__max_watches="1", **QUICK) as running,
        PlanningClient(running.target) as one,
        PlanningClient(running.target) as other,
    ):
        stop = []
        first = one.watch(small_problem(), {"plan": PLAN}, endless(stop))
        next(first)
        code, text = refusal(lambda: list(other.watch(small_problem(), {})))
        assert (code, "planning.max_watches" in text) == ("RESOURCE_EXHAUSTED", True)
        first.close()
        stop.append(True)
        wait_until(lambda: succeeds(lambda: list(other.watch(small_problem(), {}))), 120, "the end of the first watch")


def test_a_collector_that_stops_lets_an_answer_on_its_way_arrive_before_the_status():
    """gRPC refuses a status while an answer is written: the client was told of no reason then."""

    async def stopping():
        draining, sending, arrived, told = asyncio.Event(), asyncio.Lock(), asyncio.Event(), []

        async def watching():
            for number in range(9):
                async with sending:
                    await arrived.wait()
                    told.append(number)

        following = asyncio.ensure_future(unless_draining(draining, watching(), sending))
        await asyncio.sleep(0)
        draining.set()
        await asyncio.wait({following}, timeout=0.05)
        assert not following.done()
        arrived.set()
        with pytest.raises(RequestError, match="the collector stops"):
            await following
        return told

    told = asyncio.run(stopping())
    assert told
    assert len(told) < 9


def test_a_collector_that_stops_ends_its_watches(tmp_path):
    stop = []
    with ThreadCollector(tmp_path / "data", **QUICK) as running, PlanningClient(running.target) as client:
        watch = client.watch(small_problem(), {"plan": PLAN}, endless(stop))
        next(watch)
        running.stop()
        code, text = refusal(lambda: list(watch))
        stop.append(True)
    assert (code, "the collector stops" in text) == ("UNAVAILABLE", True)
