"""``ListJobs``: runs are jobs, over GPUs, hosts and time, with what they do and when they will be done."""

import json
from dataclasses import replace

import numpy as np
import pytest
from google.protobuf.duration_pb2 import Duration
from support.job_records import binding, gpu_traces, idle_outside, records_of
from support.running_collector import ThreadCollector
from support.trace_records import incoming
from support.tracked_store import TrackedStore

from gpusonde.cli.main import main
from gpusonde.collector.client import Client
from gpusonde.collector.query.jobs import JobView, get_job, gpus_of, list_jobs
from gpusonde.collector.query.runs import list_epochs, timestamp
from gpusonde.collector.storage.model import AlertRow, CycleRow, CycleTree, JobStateRow, RunRow, RunUpdate
from gpusonde.common.v1 import job_pb2
from gpusonde.errors import CollectorError, RequestError
from gpusonde.ingest.v1 import ingest_pb2
from gpusonde.query.v1 import query_pb2
from gpusonde.telemetry import Trace

SECOND = 1_000_000_000
START = 1_700_000_000 * SECOND


def run_of(name, start_s=0, end_s=600, job="4711", scheduler=job_pb2.SCHEDULER_SLURM, ended=False, agent="host-1"):
    return RunRow(
        run_id=name,
        agent_id=agent,
        gpu_uuid=f"GPU-{name}",
        job_id=job,
        scheduler=scheduler,
        ended=ended,
        end_reason="idle for 300 s" if ended else "",
        start_unix_nano=START + start_s * SECOND,
        end_unix_nano=START + end_s * SECOND,
        first_spool=1,
        first_sequence=1,
        last_spool=1,
        last_sequence=2,
        tick_count=100,
        missed_ticks=0,
    )


def state(start_s, name, confidence=0.9):
    return JobStateRow(START + start_s * SECOND, name, f"it is {name}", confidence)


def level(period_s, starts_s, role="epoch", count=None):
    starts = tuple(START + round(at * SECOND) for at in starts_s)
    count = len(starts) if count is None else count
    return CycleRow(period_s, period_s * 0.99, period_s * 1.01, count, 0.9, role, 0.8, None, starts)


@pytest.fixture
def subject(tmp_path):
    subject = TrackedStore(tmp_path / "data")
    yield subject
    subject.store.close()


def save(subject, *updates):
    subject.results.save([u if isinstance(u, RunUpdate) else RunUpdate(u, None) for u in updates], {})


def ask(subject, **request):
    return list_jobs(subject.store, query_pb2.ListJobsRequest(**request))


def names(jobs):
    return [[member.run_id for member in job.members] for job in jobs]


def test_runs_of_one_job_are_one_line_on_however_many_hosts_and_runs_without_one_a_line_each(subject):
    save(
        subject,
        run_of("a"),
        run_of("b", agent="host-2"),
        run_of("c", 50, job="", scheduler=0),
        run_of("d", 60, job="uid-1000", scheduler=job_pb2.SCHEDULER_USER),
        run_of("e", 70, scheduler=job_pb2.SCHEDULER_KUBERNETES),
    )
    jobs = ask(subject).jobs
    assert names(jobs) == [["e"], ["d"], ["c"], ["a", "b"]]
    assert [job.job_id for job in jobs] == ["4711", "d", "c", "4711"]
    assert [job.scheduler for job in jobs][:2] == [job_pb2.SCHEDULER_KUBERNETES, job_pb2.SCHEDULER_UNSPECIFIED]
    assert names(ask(subject, job_id="d").jobs) == [["d"]]
    # An id that a user has given himself is no job's: the runs under it have nothing to do with each other.
    assert names(ask(subject, job_id="nobody").jobs) == []


def test_a_job_that_was_requeued_is_one_and_a_name_used_again_hours_later_is_another(subject):
    save(
        subject,
        run_of("a", 0, 100, ended=True),
        run_of("b", 400, 500, ended=True),
        run_of("c", 9_000, 9_100, ended=True),
    )
    assert names(ask(subject).jobs) == [["c"], ["a", "b"]]


def test_jobs_come_in_pages_each_once_and_whole(subject):
    for i in range(7):
        save(subject, run_of(f"a{i}", 10 * i, 900, job=f"job-{i}"), run_of(f"b{i}", 5 + 25 * i, 900, job=f"job-{i}"))
    found, token = [], ""
    while True:
        page = ask(subject, page_size=2, page_token=token)
        found += [job.job_id for job in page.jobs]
        assert all(len(job.members) == 2 for job in page.jobs)
        token = page.next_page_token
        if not token:
            break
    assert found == [f"job-{i}" for i in reversed(range(7))]


def test_jobs_are_chosen_by_time_agent_and_state(subject):
    save(
        subject,
        RunUpdate(run_of("a", 0, 100, job="old", ended=True), None, states=[state(0, "training")]),
        RunUpdate(run_of("b", 500, 900, job="hung"), None, states=[state(500, "hung")]),
        RunUpdate(run_of("c", 600, 900, job="good", agent="host-2"), None, states=[state(600, "training")]),
    )

    def chosen(page_size=100, **request):
        found, token = [], ""
        while True:
            page = ask(subject, page_size=page_size, page_token=token, **request)
            found += [job.job_id for job in page.jobs]
            token = page.next_page_token
            if not token:
                return found

    for page_size in (1, 100):
        assert chosen(page_size, states=[query_pb2.JOB_STATE_HUNG, query_pb2.JOB_STATE_ENDED]) == ["hung", "old"]
        assert chosen(page_size, agent_id="host-2") == ["good"]
        assert chosen(page_size, host_name="host-nobody-knows") == []
        assert chosen(page_size, start_time=timestamp(START + 200 * SECOND)) == ["good", "hung"]
        assert chosen(page_size, end_time=timestamp(START + 550 * SECOND)) == ["hung", "old"]
    with pytest.raises(RequestError, match="comes before start_time"):
        ask(subject, start_time=timestamp(START), end_time=timestamp(START - SECOND))


def test_one_job_is_told_as_in_the_list_and_one_that_is_not_there_is_not_found(subject):
    save(subject, run_of("a"), run_of("b", agent="host-2"))
    (listed,) = ask(subject, job_id="4711").jobs
    assert get_job(subject.store, query_pb2.GetJobRequest(job_id="4711")).job == listed
    with pytest.raises(RequestError, match="no job 'nobody'") as caught:
        get_job(subject.store, query_pb2.GetJobRequest(job_id="nobody"))
    assert caught.value.status == "NOT_FOUND"


def test_a_job_is_in_the_state_of_most_of_its_gpus_and_hosts_that_do_otherwise_are_named(subject):
    save(
        subject,
        RunUpdate(run_of("a"), None, states=[state(0, "starting"), state(30, "training"), state(500, "hung")]),
        run_of("a2"),
        RunUpdate(run_of("b", agent="host-2"), None, states=[state(0, "training")]),
    )
    (job,) = ask(subject).jobs
    assert job.state == query_pb2.JOB_STATE_HUNG
    assert job.reason == "it is hung; host-2 is training"
    assert job.state_time.ToNanoseconds() == START + 500 * SECOND
    assert [(span.state, span.end_time.ToNanoseconds() - span.start_time.ToNanoseconds()) for span in job.history] == [
        (query_pb2.JOB_STATE_STARTING, 30 * SECOND),
        (query_pb2.JOB_STATE_TRAINING, 470 * SECOND),
    ]
    # Two GPUs trained for 470 of 600 s, one for all of them.
    assert job.goodput_ratio == pytest.approx((2 * 470 + 600) / 1800)
    assert job.gpu_time.seconds == 1800


def test_a_job_is_in_no_state_of_a_host_that_it_has_left(subject):
    left = RunUpdate(run_of("a", 0, 100, ended=True), None, states=[state(0, "training"), state(60, "hung")])
    save(subject, left, run_of("b", 0, 100, ended=True), run_of("c", 300, 600, agent="host-2"))
    (job,) = ask(subject).jobs
    assert (job.state, job.reason) == (query_pb2.JOB_STATE_UNKNOWN, "nothing is known of its state yet")
    save(subject, RunUpdate(run_of("c", 300, 600, agent="host-2"), None, states=[state(300, "training")]))
    (job,) = ask(subject).jobs
    assert (job.state, job.reason) == (query_pb2.JOB_STATE_TRAINING, "it is training")


def test_between_the_runs_of_a_requeued_job_nothing_worked(subject):
    again = replace(run_of("b", 400, 500), gpu_uuid="GPU-a")
    save(
        subject,
        RunUpdate(run_of("a", 0, 100, ended=True), None, states=[state(0, "training")]),
        RunUpdate(again, None, states=[state(400, "training"), state(450, "idle")]),
    )
    (job,) = ask(subject).jobs
    lengths = [(span.state, span.end_time.ToNanoseconds() - span.start_time.ToNanoseconds()) for span in job.history]
    assert lengths == [(query_pb2.JOB_STATE_TRAINING, 100 * SECOND), (query_pb2.JOB_STATE_TRAINING, 50 * SECOND)]
    assert job.goodput_ratio == pytest.approx(150 / 200)


def test_gpus_that_a_job_was_given_later_count_since_then(subject):
    states = [state(-5, "starting"), state(0, "idle"), state(500, "training")]
    save(subject, RunUpdate(run_of("a"), None, states=states), run_of("b", 20), run_of("c", 500))
    (job,) = ask(subject).jobs
    assert job.gpu_time.seconds == 2 * 605 + 100
    assert job.goodput_ratio == pytest.approx(300 / 1310)


def test_a_job_that_is_over_is_ended_and_one_of_which_nothing_is_known_is_unknown(subject):
    over = run_of("a", ended=True)
    save(subject, RunUpdate(over, None, states=[state(0, "training")]), run_of("b", 700, 800, job="other"))
    unknown, ended = ask(subject).jobs
    assert (ended.state, ended.reason, ended.active) == (query_pb2.JOB_STATE_ENDED, "idle for 300 s", False)
    assert ended.history[-1].end_time.ToNanoseconds() == over.end_unix_nano
    assert unknown.state == query_pb2.JOB_STATE_UNKNOWN
    assert not unknown.HasField("goodput_ratio")
    assert names(ask(subject, active_only=True).jobs) == [["b"]]
    for asked in ({"total_cycles": 9}, {"like_job_id": "other"}):
        (ended,) = ask(subject, job_id="4711", **asked).jobs
        assert ended.estimate_reason == "the job is over"


@pytest.fixture
def trained(subject):
    """A job with evaluations every 10 s inside of epochs of 60 s, of which the latest ten starts are kept."""
    tree = CycleTree(
        (level(10.0, range(500, 600, 10), "evaluation", 59), level(60.0, range(0, 601, 60), count=10)), level=1
    )
    save(subject, RunUpdate(run_of("a"), None, tree))
    return subject


def test_the_total_says_how_far_a_job_is_and_when_it_ends(trained):
    (job,) = ask(trained, job_id="4711").jobs
    assert job.level.role == query_pb2.CYCLE_ROLE_EPOCH
    assert not job.HasField("estimate")
    (job,) = ask(trained, job_id="4711", total_cycles=20).jobs
    assert job.progress_ratio == pytest.approx(0.5)
    assert (job.estimate.epochs_done, job.estimate.epochs_left) == (10, 10)
    assert job.estimate.end_time.ToNanoseconds() / 1e9 == pytest.approx(START / 1e9 + 1200, abs=1)
    assert job.estimate.end_time_lower.ToNanoseconds() < job.estimate.end_time.ToNanoseconds()


def test_the_total_may_be_that_of_another_level_and_counts_starts_that_are_not_kept(trained):
    request = {"job_id": "4711", "total_cycles": 118, "total_role": query_pb2.CYCLE_ROLE_EVALUATION}
    (job,) = ask(trained, **request).jobs
    assert job.progress_ratio == pytest.approx(0.5)
    assert (job.estimate.epochs_done, job.estimate.epochs_left) == (59, 59)
    assert job.estimate.end_time.ToNanoseconds() / 1e9 == pytest.approx(START / 1e9 + 590 + 590, abs=1)
    (job,) = ask(trained, **(request | {"total_role": query_pb2.CYCLE_ROLE_STEP})).jobs
    assert not job.HasField("estimate")
    assert job.estimate_reason == (
        "the metrics do not tell yet which of its cycles have that role; if its cycles of 60 s (epoch) are to be taken "
        "for it, say"
        " --total-cycles 118"
    )


def test_a_total_in_epochs_counts_no_cycles_that_are_not_known_to_be_epochs(subject):
    guessed = replace(level(60.0, range(0, 601, 60), count=10), role_confidence=0.4)
    save(subject, RunUpdate(run_of("a"), None, CycleTree((guessed,), 0), [state(0, "training")]))
    request = {"job_id": "4711", "total_cycles": 20}
    (job,) = ask(subject, **request, total_role=query_pb2.CYCLE_ROLE_EPOCH).jobs
    assert not job.HasField("estimate")
    assert job.estimate_reason.startswith("the metrics do not tell yet which of its cycles have that role")
    assert ask(subject, **request).jobs[0].estimate.epochs_left == 10


def test_totals_that_cannot_be_are_answered_in_words_and_totals_of_no_job_refused(trained):
    (job,) = ask(trained, job_id="4711", total_cycles=9).jobs
    assert not job.HasField("estimate")
    assert job.estimate_reason.startswith("10 cycles of that level (epoch 60 s each) are over, more than the 9 that")
    with pytest.raises(RequestError, match="name it in 'job_id'"):
        ask(trained, total_cycles=9)
    with pytest.raises(RequestError, match=r"'total_cycles': .* after the year 9999"):
        ask(trained, job_id="4711", total_cycles=(1 << 32) - 1)


def test_without_a_total_earlier_runs_of_the_same_name_tell_the_end(trained):
    (job,) = ask(trained, job_id="4711").jobs
    assert not job.HasField("estimate")
    assert job.estimate_reason == "no total was given, and no earlier run of the job is known"
    (job,) = ask(trained, job_id="4711", like_job_id="471").jobs
    assert job.estimate_reason.endswith("no run of a job '471' that was over before it began is known")
    for i in range(3):  # days before, each with 15 epochs of the same kind
        start_s = -100_000 * (i + 1)
        starts_s = range(start_s, start_s + 901, 60)
        tree = CycleTree((level(60.0, starts_s, count=15),), level=0)
        save(trained, RunUpdate(run_of(f"before-{i}", start_s, start_s + 920, ended=True), None, tree))
    (job,) = ask(trained, job_id="4711").jobs[:1]
    assert (job.estimate.epochs_done, job.estimate.epochs_left) == (10, 5)
    assert job.estimate.end_time.ToNanoseconds() / 1e9 == pytest.approx(START / 1e9 + 900, abs=1)
    assert job.estimate.basis.startswith("15 cycles, as 3 earlier runs of the job had")
    assert job.progress_ratio == pytest.approx(10 / 15)


def test_how_long_earlier_pods_of_a_template_took_tells_the_end_of_one_without_cycles(subject):
    kubernetes = job_pb2.SCHEDULER_KUBERNETES
    for i, (pod, length_s) in enumerate((("ml/train-x7k2p", 900), ("ml/train-bq4zt", 1000), ("ml/other-x7k2p", 5000))):
        run = run_of(f"before-{i}", -20_000 * (i + 1), -20_000 * (i + 1) + length_s, job=pod, scheduler=kubernetes)
        save(subject, replace(run, ended=True))
    save(subject, run_of("now", job="ml/train-9wlcd", scheduler=kubernetes))
    (job,) = ask(subject, job_id="ml/train-9wlcd").jobs
    assert job.estimate.end_time.ToNanoseconds() / 1e9 == pytest.approx(START / 1e9 + 949, abs=2)
    assert job.estimate.end_time_lower.ToNanoseconds() / 1e9 >= START / 1e9 + 600
    assert job.estimate.basis == "how long 2 earlier runs of it took: 949 s"
    (job,) = ask(subject, job_id="ml/train-9wlcd", like_job_id="ml/other-x7k2p").jobs
    assert job.estimate.end_time.ToNanoseconds() / 1e9 == pytest.approx(START / 1e9 + 5000, abs=2)
    save(subject, run_of("now", 0, 2000, job="ml/train-9wlcd", scheduler=kubernetes))
    (job,) = ask(subject, job_id="ml/train-9wlcd").jobs
    assert job.estimate_reason == "it has run for 2000 s, and no earlier run of it took longer than 1000 s"


def test_time_that_a_job_hung_is_added_to_its_end(trained):
    run = replace(run_of("a"), end_unix_nano=START + 1600 * SECOND)
    save(trained, RunUpdate(run, None, states=[state(0, "training"), state(600, "hung"), state(1500, "training")]))
    (job,) = ask(trained, job_id="4711", total_cycles=20).jobs
    assert job.estimate.end_time.ToNanoseconds() / 1e9 == pytest.approx(START / 1e9 + 1200 + 900, abs=1)


def test_a_client_gets_plain_values_and_refusals_by_name(tmp_path):
    with ThreadCollector(tmp_path / "data") as collector, Client(collector.target) as client:
        assert client.list_jobs() == []
        with pytest.raises(CollectorError, match="name it in 'job_id'"):
            client.list_jobs(total_cycles=3)
        with pytest.raises(ValueError, match="CYCLE_ROLE_NONSENSE"):
            client.list_jobs(job_id="x", total_cycles=3, total_role="nonsense")


def test_a_run_without_a_job_is_found_by_the_beginning_of_its_name_and_no_number_is_taken_for_one(tmp_path, capsys):
    subject = TrackedStore(tmp_path / "data")
    alone = [
        run_of(name, job="", scheduler=0) for name in ("20261123T101500-aa11", "20261123T111500-bb22", "4712-dd44")
    ]
    save(subject, *alone, run_of("20261124T090000-cc33"))
    subject.store.close()
    with ThreadCollector(tmp_path / "data") as collector:
        asked = {
            word: (main(["jobs", word, "--json", "--collector", collector.target]), json.loads(capsys.readouterr().out))
            for word in ("20261123T10", "20261123T", "20261124T", "4712", "4711")
        }
    code, found = asked["20261123T10"]
    assert (code, [job["job_id"] for job in found["jobs"]]) == (0, ["20261123T101500-aa11"])
    assert [job["job_id"] for job in asked["4711"][1]["jobs"]] == ["4711"]
    for refused in ("20261123T", "20261124T", "4712"):
        assert f"no job '{refused}'" in asked[refused][1]["error"]["message"]


def test_replacing_a_run_keeps_its_states(subject):
    run = run_of("a")
    save(subject, RunUpdate(run, None, states=[state(0, "training")]))
    save(subject, RunUpdate(replace(run, tick_count=200), None))
    (job,) = ask(subject).jobs
    assert job.state == query_pb2.JOB_STATE_TRAINING


def hold(subject, traces, *, job="4711", ticks=60):
    """Records of an agent whose scheduler gives GPUs to a job that does nothing with them."""
    records = records_of(traces, [binding(gpu, job) for gpu in traces], agent_id="host-1")[: ticks + 2]
    subject.feed(records, 10)


def idle_traces(count=2):
    return {gpu: idle_outside(trace, 0.0, 0.0) for gpu, trace in gpu_traces(count).items()}


def test_a_job_that_holds_gpus_and_has_never_used_them_is_idle_since_it_got_them(subject):
    hold(subject, idle_traces())
    now = START + 60 * SECOND
    (job,) = list_jobs(subject.store, query_pb2.ListJobsRequest(active_only=True), now).jobs
    assert (job.job_id, job.state, job.active) == ("4711", query_pb2.JOB_STATE_IDLE, True)
    assert job.reason == "none of its 2 GPUs has ever worked, and the scheduler still gives them to it"
    assert job.state_time.ToNanoseconds() == START
    assert [(member.run_id, member.gpu_uuid) for member in job.members] == [("", "GPU-0"), ("", "GPU-1")]
    # Jobs are listed by their runs; this one is found by its name, too.
    assert names(list_jobs(subject.store, query_pb2.ListJobsRequest(job_id="4711"), now).jobs) == [["", ""]]


def test_a_job_whose_runs_are_over_is_idle_while_its_scheduler_gives_it_the_gpus(subject):
    hold(subject, idle_traces())
    save(subject, run_of("a", 0, 20, ended=True))
    now = START + 60 * SECOND
    (job,) = list_jobs(subject.store, query_pb2.ListJobsRequest(active_only=True), now).jobs
    assert job.state == query_pb2.JOB_STATE_IDLE
    assert job.state_time.ToNanoseconds() == START + 20 * SECOND
    (job,) = list_jobs(subject.store, query_pb2.ListJobsRequest(), now).jobs
    assert job.active
    assert {member.run_id for member in job.members} == {"a", ""}
    save(subject, RunUpdate(run_of("a", 0, 20, ended=True), None, states=[state(0, "serving")]))
    (job,) = list_jobs(subject.store, query_pb2.ListJobsRequest(), now).jobs
    assert [span.state for span in job.history] == [query_pb2.JOB_STATE_SERVING]


def test_a_job_whose_gpus_its_scheduler_never_took_away_is_one_however_long_it_paused(subject):
    hold(subject, idle_traces())
    save(subject, run_of("a", 0, 20, ended=True), run_of("b", 4_000, 4_100, ended=True), run_of("c", 9_000, 9_100))
    now = START + 9_100 * SECOND
    for active_only in (True, False):
        (job,) = list_jobs(subject.store, query_pb2.ListJobsRequest(active_only=active_only), now).jobs
        assert {member.run_id for member in job.members} == {"a", "b", "c", ""}
        assert job.longest_pause.seconds == 4_900
        assert job.start_time.ToNanoseconds() == START


def test_a_job_that_was_requeued_is_one_and_does_what_its_new_hosts_do_while_it_holds_their_gpus(subject):
    hold(subject, idle_traces())
    before = run_of("a", -400, -200, ended=True, agent="host-0")
    save(
        subject,
        RunUpdate(before, None, states=[state(-400, "training"), state(-230, "hung")]),
        RunUpdate(replace(run_of("b", 5, 60), gpu_uuid="GPU-0"), None, states=[state(5, "training")]),
        RunUpdate(run_of("a2", -390, -200, ended=True, agent="host-0"), None),
    )
    now = START + 60 * SECOND
    for active_only in (True, False):
        (job,) = list_jobs(subject.store, query_pb2.ListJobsRequest(active_only=active_only), now).jobs
        assert [member.run_id for member in job.members] == ["a", "a2", "b", ""]
        assert (job.state, job.reason) == (query_pb2.JOB_STATE_TRAINING, "it is training")
        assert job.goodput_ratio == pytest.approx((2 * 170 + 55) / (2 * 200 + 55))
        # It has what it was given, whether that works or rests.
        assert gpus_of(job) == {("host-1", "GPU-0"), ("host-1", "GPU-1")}
        assert [member.active for member in job.members] == [False, False, True, True]
    ended = replace(run_of("b", 5, 60, ended=True), gpu_uuid="GPU-0")
    save(subject, RunUpdate(ended, None))
    (job,) = list_jobs(subject.store, query_pb2.ListJobsRequest(active_only=True), now).jobs
    assert gpus_of(job) == {("host-1", "GPU-0"), ("host-1", "GPU-1")}


def on(gpu, run):
    return replace(run, gpu_uuid=gpu)


def hours(job):
    return job.gpu_time.ToSeconds(), round(job.goodput_ratio * job.gpu_time.ToSeconds())


def test_a_gpu_that_a_job_has_left_counts_for_as_long_as_it_had_it_though_the_job_goes_on_beside_it(subject):
    rows = [state(0, "training"), state(200, "idle")]
    save(
        subject,
        RunUpdate(on("GPU-0", run_of("a", 0, 200, ended=True)), None, states=rows),
        RunUpdate(on("GPU-1", run_of("b", 300, 900)), None, states=[state(300, "training")]),
    )
    assert hours(ask(subject).jobs[0]) == (800, 800)
    # One that ended early is the job's until the job has left the host, or is put back into the queue.
    save(subject, on("GPU-2", run_of("c", 0, 100, ended=True)))
    assert hours(ask(subject).jobs[0]) == (1000, 1000)


@pytest.mark.parametrize(("taken_s", "expected"), [(0, (900, 800)), (205, (800, 800))])
def test_a_pause_counts_while_the_scheduler_gives_the_gpu_to_the_job_and_time_in_the_queue_does_not(
    subject, taken_s, expected
):
    end = START + taken_s * SECOND if taken_s else 0
    bound = [binding("GPU-0", "4711", end=end)]
    if taken_s:
        bound.append(binding("GPU-0", "4711"))
        bound[-1].start_time_unix_nano = START + 295 * SECOND
    told = ingest_pb2.Record(sequence=1, job_bindings=ingest_pb2.JobBindings(bindings=bound))
    subject.feed(incoming([told], "host-1"), 1)
    rows = [state(0, "training"), state(200, "idle")]
    save(
        subject,
        RunUpdate(on("GPU-0", run_of("a", 0, 200, ended=True)), None, states=rows),
        RunUpdate(on("GPU-0", run_of("b", 300, 900)), None, states=[state(300, "training")]),
    )
    assert hours(ask(subject).jobs[0]) == expected


def test_states_that_two_runs_of_a_host_tell_of_the_same_second_are_told_once(subject):
    save(
        subject,
        RunUpdate(run_of("a"), None, states=[state(0, "starting"), state(10, "training"), state(300, "idle")]),
        RunUpdate(run_of("b"), None, states=[state(0, "starting"), state(10, "training")]),
    )
    (job,) = ask(subject).jobs
    assert [span.state for span in job.history] == [query_pb2.JOB_STATE_STARTING, query_pb2.JOB_STATE_TRAINING]


def test_the_alerts_of_a_job_are_those_of_no_other_one_of_its_name(subject):
    alerts = [AlertRow(1, "4711", "idle", START + at * SECOND, 0, str(at), "host-1", False) for at in (20, 500, 9_050)]
    subject.results.save_alerts([replace(row, end_unix_nano=row.start_unix_nano + 40 * SECOND) for row in alerts])
    save(subject, run_of("a", 0, 100, ended=True), run_of("b", 400, 600, ended=True), run_of("c", 9_000, 9_100))
    told = [[each.reason for each in job.alerts] for job in ask(subject, job_id="4711").jobs]
    assert told == [["9050"], ["500", "20"]]


def test_a_gpu_is_in_use_where_the_configured_activity_says_so(subject):
    traces = gpu_traces(1)
    faint = {gpu: Trace(t.time_s, t.values | {"dram_active": np.full(len(t), 0.2)}) for gpu, t in traces.items()}
    subject.store.samples.append(records_of(faint, [binding("GPU-0", "4711")], agent_id="host-1")[:62])
    request = query_pb2.ListJobsRequest(active_only=True)
    for least, expected in ((0.05, query_pb2.JOB_STATE_UNKNOWN), (0.3, query_pb2.JOB_STATE_IDLE)):
        (job,) = list_jobs(subject.store, request, START + 61 * SECOND, JobView(least_activity=least)).jobs
        assert job.state == expected


def test_what_a_scheduler_gives_now_belongs_to_no_earlier_job_of_the_name_on_whatever_page(subject):
    hold(subject, idle_traces())
    save(subject, run_of("old", -9_000, -8_000, ended=True))
    now = START + 60 * SECOND
    # The one that has the GPUs has not worked yet.
    assert [job.active for job in list_jobs(subject.store, query_pb2.ListJobsRequest(), now).jobs] == [False]
    save(subject, run_of("new", 5, 20, ended=True), run_of("earlier", -8_500, 1, ended=True, job="5"))
    request = query_pb2.ListJobsRequest(page_size=1)
    pages = []
    while not pages or request.page_token:
        found = list_jobs(subject.store, request, now)
        request.page_token = found.next_page_token
        pages += [(job.job_id, job.active) for job in found.jobs]
    assert pages == [("4711", True), ("5", False), ("4711", False)]


def test_silence_of_an_agent_is_no_idleness_and_ends_its_jobs_after_a_day(subject):
    hold(subject, idle_traces())
    soon, later = START + 600 * SECOND, START + 2 * 86_400 * SECOND
    (job,) = list_jobs(subject.store, query_pb2.ListJobsRequest(active_only=True), soon).jobs
    assert job.state == query_pb2.JOB_STATE_UNKNOWN
    assert job.reason.startswith("nothing is heard of host-1; ")
    assert not list_jobs(subject.store, query_pb2.ListJobsRequest(active_only=True), later).jobs


def test_a_job_is_unknown_once_nothing_is_heard_of_its_agents_and_one_of_several_is_named(subject):
    save(
        subject,
        RunUpdate(run_of("a"), None, states=[state(0, "starting"), state(30, "training")]),
        RunUpdate(run_of("b", agent="host-2"), None, states=[state(0, "training")]),
    )

    def asked(after_s):
        now = START + (600 + after_s) * SECOND
        (job,) = list_jobs(subject.store, query_pb2.ListJobsRequest(active_only=True), now).jobs
        return job

    assert (asked(200).state, asked(200).reason) == (query_pb2.JOB_STATE_TRAINING, "it is training")
    job = asked(400)
    assert (job.state, job.confidence, job.active) == (query_pb2.JOB_STATE_UNKNOWN, 0.0, True)
    assert job.reason == "nothing is heard of host-1, host-2; before that: it is training"
    assert job.state_time.ToNanoseconds() == job.history[-1].end_time.ToNanoseconds() == START + 600 * SECOND
    assert [span.state for span in job.history] == [query_pb2.JOB_STATE_STARTING, query_pb2.JOB_STATE_TRAINING]
    # What is heard of is told of; a recording that is played with its own times, long ago, is heard, too.
    save(subject, run_of("a", 0, 950))
    assert (asked(400).state, asked(400).reason) == (
        query_pb2.JOB_STATE_TRAINING,
        "it is training; nothing is heard of host-2",
    )
    assert ask(subject).jobs[0].state == query_pb2.JOB_STATE_TRAINING


def test_a_job_one_of_whose_gpus_never_says_whether_it_is_in_use_is_not_said_to_be_idle(subject):
    dumb, quiet = idle_traces().items()
    unknown = Trace(dumb[1].time_s, dumb[1].values | {"dram_active": np.full(len(dumb[1]), np.nan)})
    hold(subject, {dumb[0]: unknown, quiet[0]: quiet[1]})
    now = START + 60 * SECOND
    (job,) = list_jobs(subject.store, query_pb2.ListJobsRequest(active_only=True), now).jobs
    assert (job.state, job.confidence) == (query_pb2.JOB_STATE_UNKNOWN, 0.0)
    assert job.reason.startswith("nothing tells whether GPU-0 is in use; none of its 2 GPUs has ever worked")


def test_a_job_whose_gpus_work_is_not_idle_before_its_runs_are_found(subject):
    traces = gpu_traces(2)
    records = records_of(traces, [binding(gpu, "4711") for gpu in traces], agent_id="host-1")[:62]
    # An agent that was away sends an hour at once; tracking comes to it later.
    subject.store.samples.append(records)
    for late_s in (61, 200):
        now = START + late_s * SECOND
        (job,) = list_jobs(subject.store, query_pb2.ListJobsRequest(active_only=True), now).jobs
        assert (job.state, job.confidence) == (query_pb2.JOB_STATE_UNKNOWN, 0.0)
        assert job.reason.startswith("GPU-0, GPU-1 work, and what was sent of them is not looked at yet; none of its")


def test_a_job_that_has_left_its_gpus_is_over(subject):
    hold(subject, idle_traces())
    bindings = [binding(gpu, "4711", end=START + 30 * SECOND) for gpu in idle_traces()]
    said = ingest_pb2.Record(sequence=63, job_bindings=ingest_pb2.JobBindings(bindings=bindings))
    subject.feed(incoming([said], "host-1"), 1)
    now = START + 60 * SECOND
    assert not list_jobs(subject.store, query_pb2.ListJobsRequest(active_only=True), now).jobs


def test_the_longest_pause_is_told_within_runs_and_between_them_however_long_ago(subject):
    busy = [state(400 + i, "training" if i % 2 else "evaluating") for i in range(150)]
    first = [state(0, "training"), state(100, "checkpointing"), state(130, "stalled"), state(160, "training"), *busy]
    save(
        subject,
        RunUpdate(run_of("a", 0, 600, ended=True), None, states=first),
        RunUpdate(run_of("b", 1000, 1100, ended=True), None, states=[state(1000, "training"), state(1080, "hung")]),
    )
    (job,) = ask(subject).jobs
    assert job.longest_pause.seconds == 400
    save(subject, RunUpdate(run_of("c", 0, 600, job="other", ended=True), None, states=first))
    (job,) = ask(subject, job_id="other").jobs
    assert job.longest_pause.seconds == 60
    save(subject, run_of("d", 0, 600, job="steady"))
    (job,) = ask(subject, job_id="steady").jobs
    assert not job.HasField("longest_pause")


def test_what_the_processes_of_a_job_did_is_told_for_the_window_that_was_asked_for(subject):
    traces = idle_traces()
    hold(subject, traces)
    group = ingest_pb2.ProcessGroupActivity(
        gpu_uuids=list(traces), processor_ms=[500] * 30, written_bytes=[3_000_000] * 30, read_bytes=[1_000_000] * 30
    )
    looks = [
        ingest_pb2.Record(
            sequence=100 + i,
            job_activity=ingest_pb2.JobActivity(
                start_time_unix_nano=START + 30 * i * SECOND, offsets_ms=[1000 * k for k in range(30)], groups=[group]
            ),
        )
        for i in range(2)
    ]
    subject.feed(incoming(looks, "host-1"), 2)
    now = START + 60 * SECOND
    request = query_pb2.ListJobsRequest(job_id="4711", active_only=True, process_window=Duration(seconds=60))
    (job,) = list_jobs(subject.store, request, now).jobs
    assert job.processes.seen.seconds == 60
    assert job.processes.processors == pytest.approx(0.5)
    assert job.processes.bytes_per_second == pytest.approx(4e6)
    (job,) = list_jobs(subject.store, query_pb2.ListJobsRequest(job_id="4711", active_only=True), now).jobs
    assert not job.HasField("processes")
    for wrong in ({"process_window": Duration(seconds=60)}, {"job_id": "4711", "process_window": Duration(seconds=-1)}):
        with pytest.raises(RequestError, match="process_window"):
            ask(subject, **wrong)


def test_of_a_job_of_which_half_gives_no_metrics_the_other_half_tells_the_state_and_that_is_said(subject):
    save(
        subject,
        RunUpdate(run_of("a"), None, states=[state(0, "training")]),
        run_of("b", agent="host-2"),
        RunUpdate(run_of("c", agent="host-3"), None, states=[state(0, "unknown")]),
        RunUpdate(run_of("d", agent="host-4"), None, states=[state(0, "training")]),
    )
    (job,) = ask(subject).jobs
    assert job.state == query_pb2.JOB_STATE_TRAINING
    assert job.reason == "it is training; host-3 is unknown; nothing is known of host-2"


def test_hosts_whose_clocks_are_seconds_apart_are_one_job_that_names_who_lags_behind(subject):
    # The clock of host-2 is 7 s ahead: its run begins and hangs later, though nothing does.
    starts = [20.0 * i for i in range(30)]
    cycles = [CycleTree((level(20.0, [at + ahead for at in starts]),), 0) for ahead in (0.0, 7.0)]
    rows = [[state(ahead, "training"), state(590 + ahead, "hung")] for ahead in (0, 7)]
    save(
        subject,
        RunUpdate(run_of("a"), None, cycles[0], rows[0]),
        RunUpdate(run_of("b", 7, 607, agent="host-2"), None, cycles[1], rows[1]),
    )
    (job,) = ask(subject, job_id="4711").jobs
    assert names([job]) == [["a", "b"]]
    assert (job.state, job.reason) == (query_pb2.JOB_STATE_HUNG, "it is hung")
    # From 590 s on one clock, 597 s on the other: the shares of the GPUs' time hold on each of them.
    assert job.goodput_ratio == pytest.approx(590 / 600)
    assert job.level.count == 30
    epochs = list_epochs(subject.results, query_pb2.ListEpochsRequest(run_id="a"))
    assert [(each.agent_id, each.kind, each.amount) for each in epochs.host_deviations] == [("host-2", "lag", 7.0)]


def test_hosts_whose_newest_ticks_are_seconds_apart_are_named_with_how_far(subject):
    ends = {"a": 600, "b": 604, "c": 616, "d": 585}
    save(
        subject,
        *(
            RunUpdate(run_of(name, 0, end_s, agent=f"host-{name}"), None, states=[state(0, "training")])
            for name, end_s in ends.items()
        ),
    )
    job = list_jobs(subject.store, query_pb2.ListJobsRequest(), START + 605 * SECOND).jobs[0]
    assert job.reason == (
        "it is training; "
        "the newest ticks of host-c are 12 s ahead of the others' (clock or backlog); "
        "the newest ticks of host-d are 19 s behind the others' (clock or backlog)"
    )


@pytest.mark.parametrize(
    ("ends", "told"),
    [
        ({"a": 604, "b": 574}, "host-b are 30 s behind the others' (clock or backlog)"),
        ({"a": 604, "b": 634}, "host-b are 30 s ahead of the others' (clock or backlog)"),
        (
            {name: 574 if name < "h" else 604 for name in "abcdefghijklmnop"},
            "host-d are 30 s behind the others' (clock or backlog); those of 3 more hosts likewise",
        ),
    ],
)
def test_of_two_hosts_the_one_that_is_not_on_the_collector_s_clock_is_named_and_of_many_a_few(subject, ends, told):
    save(
        subject,
        *(
            RunUpdate(run_of(name, 0, end_s, agent=f"host-{name}"), None, states=[state(0, "training")])
            for name, end_s in ends.items()
        ),
    )
    job = list_jobs(subject.store, query_pb2.ListJobsRequest(), START + 605 * SECOND).jobs[0]
    assert job.reason.endswith(told)
    assert job.reason.count("the newest ticks of") == min(sum(abs(end - 604) > 8 for end in ends.values()), 4)


def test_earlier_runs_that_are_too_unlike_or_just_as_long_tell_no_end_and_cost_no_answer(subject):
    save(
        subject,
        run_of("a", 0, 70, ended=True),
        run_of("b", 10_000, 900_000, ended=True),
        run_of("c", 2_000_000, 2_000_065),
    )
    (job, *_) = ask(subject, job_id="4711").jobs
    assert not job.HasField("estimate")
    assert job.estimate_reason.startswith("earlier runs of it took times that are too unlike: how long 2 earlier runs")
    save(subject, run_of("c", 2_000_000, 2_890_000))
    (job, *_) = ask(subject, job_id="4711").jobs
    assert "no earlier run of it took longer" in job.estimate_reason


def test_the_ends_of_all_jobs_are_told_at_once_where_they_are_asked_for(subject):
    for i in range(2):
        save(
            subject, run_of(f"old{i}", 0, 70, ended=True, job=f"job-{i}"), run_of(f"r{i}", 5_000, 5_020, job=f"job-{i}")
        )
    assert [job.HasField("estimate") for job in ask(subject, active_only=True).jobs] == [False, False]
    named = [ask(subject, job_id=f"job-{i}").jobs[0].estimate for i in (1, 0)]
    told = [job.estimate for job in ask(subject, active_only=True, estimates=True).jobs]
    assert told == named
    assert all(each.HasField("end_time") for each in told)


def looks_of(gpus, first_s, last_s, holders=None, processor_ms=0, bytes_known=True, agent="host-1"):
    """Looks at the processes of a job, a second apart, half a minute in a record."""
    for begin in range(first_s, last_s, 30):
        same = [0] * 30
        group = ingest_pb2.ProcessGroupActivity(
            gpu_uuids=gpus, processor_ms=[processor_ms] * 30, read_bytes=same,
            written_bytes=same if bytes_known else [], holders=holders,
        )  # fmt: skip
        activity = ingest_pb2.JobActivity(
            start_time_unix_nano=START + begin * SECOND, offsets_ms=[1000 * i for i in range(30)], groups=[group]
        )
        yield ingest_pb2.Record(sequence=1000 + begin, job_activity=activity)


def idle_answer(subject, looks, window_s=600, now_s=3600):
    records = list(looks)
    subject.feed(incoming(records, "host-1"), len(records))
    window = Duration(seconds=window_s)
    request = query_pb2.ListJobsRequest(job_id="4711", active_only=True, process_window=window)
    (job,) = list_jobs(subject.store, request, START + now_s * SECOND).jobs
    return job


def test_an_agent_that_no_longer_tells_what_processes_do_does_not_say_that_they_rest(subject):
    """It was switched off, or the processes left the GPUs of a host whose agent sees no others: nobody knows."""
    save(subject, run_of("a", 0, 3600))
    assert not idle_answer(subject, looks_of(["GPU-a"], 0, 600, processor_ms=900)).HasField("processes")
    assert not idle_answer(subject, looks_of(["GPU-a"], 600, 3480)).HasField("processes")
    assert idle_answer(subject, looks_of(["GPU-a"], 3480, 3600)).processes.seen.seconds == 600


def test_what_is_not_known_of_one_host_or_one_look_is_not_known_of_the_job(subject):
    save(subject, run_of("a", 0, 3600), run_of("b", 0, 3600, agent="host-2"))
    looks = [*looks_of(["GPU-a"], 3000, 3600)]
    assert not idle_answer(subject, looks).HasField("processes")
    save(subject, run_of("c", 0, 3600, job="alone"))
    half = [*looks_of(["GPU-c"], 3000, 3300, bytes_known=False), *looks_of(["GPU-c"], 3300, 3600)]
    subject.feed(incoming([*half], "host-1"), len(half))
    request = query_pb2.ListJobsRequest(job_id="alone", process_window=Duration(seconds=600))
    (job,) = list_jobs(subject.store, request, START + 3600 * SECOND).jobs
    assert (job.processes.processors, job.processes.HasField("bytes_per_second")) == (0.0, False)


@pytest.mark.parametrize(
    ("in_pause", "now", "longest_s"),
    [
        ({"holders": 1}, {"holders": 1}, 1200),
        # While its processes worked, the pause was no rest but for its ends, in which nothing was looked at.
        ({"holders": 1, "processor_ms": 900}, {"holders": 1}, 0),
        # Nobody is on the GPUs any more, as never before; or as before.
        ({"holders": 1}, {"holders": 0}, 0),
        ({"holders": 0}, {"holders": 0}, 1200),
        ({}, {"holders": 0}, 0),
        ({"holders": 1}, {}, 1200),
    ],
)
def test_a_pause_is_waited_for_again_as_far_as_as_much_of_the_job_rested_in_it(subject, in_pause, now, longest_s):
    states = [state(0, "training"), state(600, "idle"), state(1800, "training"), state(2400, "idle")]
    save(subject, RunUpdate(run_of("a", 0, 3600), None, states=states))
    looks = [*looks_of(["GPU-a"], 600, 1800, **in_pause), *looks_of(["GPU-a"], 2400, 3600, **now)]
    assert idle_answer(subject, looks).longest_pause.ToSeconds() == longest_s
    assert ask(subject, job_id="4711").jobs[0].longest_pause.ToSeconds() == 1200


@pytest.mark.parametrize("window_s", [30, 60, 90, 600])
def test_who_is_on_the_gpus_is_seen_in_windows_of_any_length(subject, window_s):
    save(subject, run_of("a", 0, 3600), run_of("b", 0, 3600, job="left"))
    looks = [*looks_of(["GPU-a"], 3000, 3600, holders=1), *looks_of(["GPU-b"], 2400, 2970, holders=1)]
    assert idle_answer(subject, looks, window_s).processes.on_gpus
    rest = [*looks_of(["GPU-b"], 2970, 3600, holders=0)]
    subject.feed(incoming(rest, "host-1"), len(rest))
    request = query_pb2.ListJobsRequest(job_id="left", process_window=Duration(seconds=window_s))
    (job,) = list_jobs(subject.store, request, START + 3600 * SECOND).jobs
    assert not job.processes.on_gpus
