"""``gpusonde tell``: what jobs do, in the comments of a real Slurm (where one is installed) and on pods."""

import http.client
import json
import os
import signal
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace

import numpy as np
import pytest
from support.collector_process import ask
from support.real_slurm import real_slurm
from support.running_collector import ThreadCollector
from support.trace_records import incoming
from support.tracked_store import TrackedStore
from support.wire_agent import batch, block, inventory, wait_until

from gpusonde.cli.commands import tell
from gpusonde.cli.main import main
from gpusonde.collector.storage.model import CycleRow, CycleTree, JobStateRow, RunRow, RunUpdate
from gpusonde.common.v1 import job_pb2
from gpusonde.errors import CollectorError, CommandError

SECOND = 1_000_000_000


def write_jobs(directory, *jobs, energy_j=None):
    """A collector's store with jobs: (id, scheduler, state, whether it is over); what the first one's GPU drew."""
    now = time.time_ns()
    subject = TrackedStore(directory)
    if energy_j is not None:
        metrics = ("power_watts", "energy_joules")
        said = [inventory(1, metrics, ("GPU-0",))]
        for number, (at, counter) in enumerate(((now - 3600 * SECOND, 5.0e6), (now - 2 * SECOND, 5.0e6 + energy_j)), 2):
            values = np.array([[300.0] * 5, [0.0] * 5])  # a counter as differences from its base
            said.append(batch(number, block(0, 5, values, metrics, start_ns=at, bases=(counter,))))
        subject.feed(incoming(said, "host-1"), 3)
    for i, (job_id, scheduler, state, ended) in enumerate(jobs):
        start = now - 3600 * SECOND
        run = RunRow(
            f"run-{i}", "host-1", f"GPU-{i}", job_id, scheduler, ended, "", start, now, 1, 1, 1, 2, 9, 0, period_s=60.0
        )
        cycle = CycleRow(60.0, 59.0, 61.0, 59, 0.9, "epoch", 0.9, None, (start, start + 60 * SECOND), True)
        states = [JobStateRow(start, "training", "works", 0.9)]
        if state != "training":
            states.append(JobStateRow(now - 900 * SECOND, state, 'all "wait" for\none', 0.9))
        subject.results.save([RunUpdate(run, None, CycleTree((cycle,), 0), states)], {})
    subject.store.close()


class ApiServer:
    """The API server of Kubernetes, as far as pods, their Events and Kueue's workloads (v1beta1) go."""

    def __init__(self):
        self.patches, self.events, self.down = [], {}, False
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_PATCH(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.patches.append((self.path, self.headers["Content-Type"], body))
                if "elsewhere" in self.path:
                    self.send_response(307)
                    self.send_header("Location", outer.address + "/taken")
                    self.end_headers()
                    return
                gone = "gone" in self.path or "v1beta2" in self.path
                self.answer(404 if gone else 200, {"message": 'pods "gone" not found'} if gone else POD)

            def do_GET(self):
                self.answer(200, POD)

            def do_POST(self):
                event = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                known = event["metadata"]["name"] in outer.events
                outer.events.setdefault(event["metadata"]["name"], event)
                self.answer(409 if known else 201, event)

            def answer(self, code, body):
                self.send_response(503 if outer.down else code)
                self.end_headers()
                self.wfile.write(json.dumps(body).encode())

            def log_message(self, *_):
                pass

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self):
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def api():
    server = ApiServer()
    yield server
    server.close()


POD = {"metadata": {"uid": "0a1b", "annotations": {"kueue.x-k8s.io/workload": "job-train-1234"}}}
KUBERNETES, SLURM = job_pb2.SCHEDULER_KUBERNETES, job_pb2.SCHEDULER_SLURM


def test_pods_are_annotated_with_what_their_job_does(tmp_path, api):
    jobs = [
        ("team/train-0", KUBERNETES, "hung", False),
        ("team/done", KUBERNETES, "training", True),
        ("7", SLURM, "idle", False),
    ]
    write_jobs(tmp_path / "data", *jobs)
    with ThreadCollector(tmp_path / "data") as collector:
        told = ask("tell", "kubernetes", "--api", api.address, "--collector", collector.target)["told"]
    patched = {path: body["metadata"]["annotations"] for path, _, body in api.patches}
    assert set(patched) == {"/api/v1/namespaces/team/pods/train-0", "/api/v1/namespaces/team/pods/done"}
    assert {kind for _, kind, _ in api.patches} == {"application/merge-patch+json"}
    hung = patched["/api/v1/namespaces/team/pods/train-0"]
    assert hung["gpusonde/state"] == "hung"
    assert "epochs of 60.0 s" in hung["gpusonde/summary"]
    assert "goodput 75 %" in hung["gpusonde/summary"]
    assert "59 epochs of 60.0 s" in patched["/api/v1/namespaces/team/pods/done"]["gpusonde/summary"]
    assert {each["job_id"] for each in told} == {"team/train-0", "team/done"}


def test_a_state_that_somebody_should_look_at_is_an_event_of_its_pod_told_once(tmp_path, api):
    write_jobs(tmp_path / "data", ("team/train-0", KUBERNETES, "hung", False), ("team/fine", KUBERNETES, "training", 0))
    with ThreadCollector(tmp_path / "data") as collector:
        for _ in range(2):
            # Two processes that know nothing of each other.
            ask("tell", "kubernetes", "--api", api.address, "--collector", collector.target)
    ((name, event),) = api.events.items()
    assert name.startswith("team/train-0.".removeprefix("team/"))
    assert (event["type"], event["reason"]) == ("Warning", "GpusondeHung")
    assert event["involvedObject"] == {
        "apiVersion": "v1",
        "kind": "Pod",
        "namespace": "team",
        "name": "train-0",
        "uid": "0a1b",
    }
    assert event["message"].startswith("gpusonde: hung since ")


def test_an_api_server_that_is_down_is_asked_again_and_then_gets_everything(tmp_path, api, capsys):
    write_jobs(tmp_path / "data", ("team/train-0", KUBERNETES, "hung", False))
    api.down = True
    with ThreadCollector(tmp_path / "data") as collector:
        arguments = ("tell", "kubernetes", "--api", api.address, "--collector", collector.target)
        (told,) = ask(*arguments, exit_code=1)["told"]
        assert "answers 503" in told["failure"]
        api.down = False
        (told,) = ask(*arguments)["told"]
    assert told["failure"] is None
    assert len(api.events) == 1


def test_a_scheduler_that_does_not_answer_is_not_waited_for_once_per_job(tmp_path, api, capsys):
    write_jobs(tmp_path / "data", *((f"team/train-{i}", KUBERNETES, "hung", False) for i in range(3)))
    api.close()
    with ThreadCollector(tmp_path / "data") as collector:
        (told,) = ask("tell", "kubernetes", "--api", api.address, "--collector", collector.target, exit_code=1)["told"]
    assert "does not answer" in told["failure"]
    assert "the other jobs are told once it answers" in capsys.readouterr().err


def test_kueue_gets_the_remaining_time_and_what_other_gpus_are_worth_on_the_workload_of_a_pod(tmp_path, api):
    # An earlier job of the same name tells how long it takes.
    write_jobs(tmp_path / "data", ("team/train-0", KUBERNETES, "training", False), ("7", SLURM, "idle", False))
    with ThreadCollector(tmp_path / "data") as collector:
        arguments = ("tell", "kueue", "--api", api.address, "--collector", collector.target)
        (told,) = ask(*arguments, "--gpus", "A100-SXM4-40GB")["told"]
    paths = [path for path, _, _ in api.patches]
    workloads = "/apis/kueue.x-k8s.io/{}/namespaces/team/workloads/job-train-1234"
    assert paths == [workloads.format("v1beta2"), workloads.format("v1beta1")]
    (text,) = api.patches[-1][2]["metadata"]["annotations"].values()
    assert text == told["text"]
    assert json.loads(text)["state"] == "training"


def test_kueue_is_told_how_long_a_job_takes_still_and_how_many_of_its_gpus_another_one_is_worth():
    def prediction(model, seconds, status):
        return SimpleNamespace(
            gpu_model=model,
            gpu_count=1,
            epoch_latency_s=seconds,
            epoch_latency_low_s=0.8 * seconds,
            epoch_latency_high_s=1.25 * seconds,
            status=status,
            reason="not NVIDIA" if status == "no" else "",
            extrapolated=status == "extrapolated",
            fits="no" if model == "P100" else "yes",
        )

    found = [prediction("H100", 50.0, "ok"), prediction("B200", 25.0, "extrapolated"), prediction("T4", 1.0, "no")]
    found.append(prediction("P100", 200.0, "ok"))
    now = time.time_ns()
    estimate = SimpleNamespace(
        end_unix_nano=now + 5432 * SECOND,
        end_low_unix_nano=now + 4900 * SECOND,
        end_high_unix_nano=now - SECOND,
        basis="earlier runs",
    )
    job = SimpleNamespace(
        job_id="team/train-0",
        scheduler="kubernetes",
        active=True,
        state="training",
        estimate=estimate,
        members=[SimpleNamespace(run_id="run-1", active=True)],
    )
    asked = []
    client = SimpleNamespace(
        predict_run=lambda *of: (
            asked.append(of)
            or SimpleNamespace(
                source_gpu_model="V100", source_gpu_count=1, source_epoch_latency_s=100.0, predictions=found
            )
        ),
    )
    kueue = tell._Kueue(tell._ApiServer("http://127.0.0.1:1"), client, ["H100", "B200", "T4"], {})
    for _ in range(2):
        told = json.loads(kueue.describe(job))
    assert told == {
        "state": "training",
        "remaining_s": 5400.0,
        "remaining_low_s": 4900.0,
        "remaining_high_s": 0.0,
        "basis": "earlier runs",
        "exchange_rates": {
            "H100": {"rate": 2.0, "low": 1.6, "high": 2.5, "extrapolated": False},
            "B200": {"rate": 4.0, "low": 3.2, "high": 5.0, "extrapolated": True},
        },
    }
    # Once known they stay, while the job goes on.
    assert asked == [("run-1", ["H100", "B200", "T4"])]
    assert kueue.describe(SimpleNamespace(**{**vars(job), "active": False})) == ""
    assert not kueue._rates


def test_pods_of_one_workload_are_told_together_and_not_each_over_the_other(api, capsys):
    def pod(name, state, remaining_s=None, active=True):
        now = time.time_ns()
        ends = (now + remaining_s * SECOND,) * 3 if remaining_s else ()
        estimate = SimpleNamespace(
            **dict(zip(("end_unix_nano", "end_low_unix_nano", "end_high_unix_nano"), ends, strict=True)), basis=name
        ) if ends else None  # fmt: skip
        return SimpleNamespace(
            job_id=f"team/{name}", scheduler="kubernetes", active=active, state=state, estimate=estimate, members=(),
            end_unix_nano=now,
        )  # fmt: skip

    known, arguments = {}, SimpleNamespace(scheduler="kueue", dry_run=False, json=True, every="30s")
    kueue = tell._Kueue(tell._ApiServer(api.address), None, [], known)

    def told(*pods):
        jobs = list(pods)
        tell._tell(SimpleNamespace(list_jobs=lambda **_: jobs), kueue, arguments, known)
        return json.loads(api.patches[-1][2]["metadata"]["annotations"]["gpusonde/estimate"])

    both = told(pod("a", "hung", 7000), pod("b", "training", 3000))
    assert (both["state"], both["basis"], both["pods"]) == ("hung", "a", 2)
    assert both["remaining_s"] == pytest.approx(7000, rel=0.02)
    # Nobody knows when the whole ends while the end of one is not known.
    assert told(pod("a", "hung", 7000), pod("b", "training")) == {"state": "hung", "pods": 2}
    # As b has not changed, it is told anew for the others' sake.
    alone = told(pod("a", "hung", 7000, active=False), pod("b", "training"))
    assert alone == {"state": "training"}
    alone = told(pod("b", "training", 1000))
    assert (alone["state"], alone["basis"], "pods" in alone) == ("training", "b", False)


def test_why_a_job_is_told_to_kueue_without_exchange_rates_is_said_once(capsys):
    def refuse(*_):
        raise CollectorError("FAILED_PRECONDITION", "run run-1 has no epochs", "ask again later")

    job = SimpleNamespace(
        job_id="team/train-0",
        active=True,
        state="training",
        estimate=None,
        members=[SimpleNamespace(run_id="run-1", active=True)],
    )
    kueue = tell._Kueue(tell._ApiServer("http://127.0.0.1:1"), SimpleNamespace(predict_run=refuse), ["H100"], {})
    assert [json.loads(kueue.describe(job)) for _ in range(2)] == [{"state": "training"}] * 2
    said = capsys.readouterr().err
    assert said.count("job team/train-0 is told without exchange rates: run run-1 has no epochs") == 1


def test_a_job_that_runs_for_long_is_told_and_so_is_its_end_however_many_others_came_since(capsys):
    def job(name, active, end_s=0):
        return SimpleNamespace(
            job_id=f"team/{name}", scheduler="kubernetes", active=active, state="training", estimate=None, members=(),
            end_unix_nano=time.time_ns() - end_s * SECOND,
        )  # fmt: skip

    def list_jobs(active_only=False, limit=None, estimates=False, job_id=""):
        asked.append((active_only, estimates))
        of_name = [each for each in [*newer, long] if job_id in ("", each.job_id) and (each.active or not active_only)]
        return of_name[: min(limit or 9, 9)]

    asked, newer, long, known = [], [job(f"a-{i}", i == 0, 900) for i in range(9)], job("long", True), {}
    told = SimpleNamespace(takes=lambda _: True, describe=lambda each: f"{each.job_id} {each.active}")
    arguments = SimpleNamespace(scheduler="kueue", dry_run=True, json=True, every="30s")
    client = SimpleNamespace(list_jobs=list_jobs)
    tell._tell(client, told, arguments, known)
    assert known == {"team/a-0": "team/a-0 True", "team/long": "team/long True"}
    assert asked == [(True, True), (False, False)]
    long = job("long", False, 10)
    tell._tell(client, told, arguments, known)
    assert known["team/long"] == "team/long False"
    long = job("long", False, 400)
    tell._tell(client, told, arguments, known)
    assert set(known) == {"team/a-0"}


def test_an_earlier_job_of_the_same_name_does_not_have_the_newest_one_told_again_and_again(capsys):
    def job(end_s, active):
        return SimpleNamespace(
            job_id="team/a", scheduler="kubernetes", active=active, state="training", estimate=None, members=(),
            end_unix_nano=time.time_ns() - end_s * SECOND,
        )  # fmt: skip

    jobs = [job(0, True), job(3600, False)]
    client = SimpleNamespace(list_jobs=lambda active_only=False, **_: jobs[: 1 if active_only else 2])
    kueue = tell._Kueue(tell._ApiServer("http://127.0.0.1:1"), client, [], {})
    arguments = SimpleNamespace(scheduler="kueue", dry_run=True, json=True, every="30s")
    known = {}
    for _ in range(2):
        tell._tell(client, kueue, arguments, known)
    assert capsys.readouterr().out.count("team/a") == 1


def test_a_pod_that_is_gone_is_a_failure_with_its_reason_and_the_others_are_told(tmp_path, api, capsys):
    write_jobs(tmp_path / "data", ("team/gone", KUBERNETES, "idle", False), ("team/here", KUBERNETES, "idle", False))
    with ThreadCollector(tmp_path / "data") as collector:
        told = ask("tell", "kubernetes", "--api", api.address, "--collector", collector.target, exit_code=1)["told"]
    failures = {each["job_id"]: each["failure"] for each in told}
    assert failures["team/here"] is None
    assert "answers 404" in failures["team/gone"]
    assert "job team/gone: the API server answers 404" in capsys.readouterr().err


def test_a_dry_run_and_names_that_are_no_pods_touch_nothing(tmp_path, api):
    write_jobs(
        tmp_path / "data", ("team/../secrets/x", KUBERNETES, "idle", False), ("team/pod", KUBERNETES, "idle", False)
    )
    with ThreadCollector(tmp_path / "data") as collector:
        told = ask("tell", "kubernetes", "--api", api.address, "--dry-run", "--collector", collector.target)["told"]
    assert [each["job_id"] for each in told] == ["team/pod"]
    assert api.patches == []


@pytest.mark.parametrize(
    "arguments",
    [
        ("kubernetes", "--api", "http://10.0.0.1:8080"),
        ("slurm", "--every", "soon"),
        ("slurm", "--every", "10ms"),
        ("slurm", "--gpus", "A100"),
        ("kueue", "--gpus", "A100,H1000"),
    ],
)
def test_what_cannot_be_meant_is_refused(arguments):
    ask("tell", *arguments, exit_code=2)


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    with real_slurm(tmp_path_factory.mktemp("slurm")) as run:
        yield run


@pytest.mark.needs_root
def test_a_real_slurm_has_its_jobs_bound_by_our_prolog_and_commented_by_us(slurm, tmp_path, monkeypatch):
    job = slurm("sbatch", "--parsable", "--gres=gpu:1", "-o", "/dev/null", "--wrap", "sleep 600").strip()
    jobs = slurm.folder / "jobs"
    bound = wait_until(lambda: [path for path in jobs.iterdir() if path.name.startswith("GPU-")], 120, "the prolog")
    assert [(path.name, path.read_text()) for path in bound] == [("GPU-00", f"{job}\n")]
    write_jobs(tmp_path / "data", (job, SLURM, "hung", False))
    monkeypatch.setenv("SLURM_CONF", str(slurm.folder / "slurm.conf"))
    with ThreadCollector(tmp_path / "data") as collector:
        (told,) = ask("tell", "slurm", "--collector", collector.target)["told"]
    assert told["failure"] is None
    comment = next(line for line in slurm("scontrol", "show", "job", job).splitlines() if "Comment=" in line)
    assert comment.strip().startswith("Comment=gpusonde: hung since ")
    assert "epochs of 60.0 s, goodput 75 %, all  wait  for one, training 75 % so far, hung 25 % so far" in comment
    slurm("scancel", job)
    wait_until(lambda: not [path for path in jobs.iterdir() if path.name.startswith("GPU-")], 120, "the epilog")
    # Slurm refuses to change it from now on, and keeps it.
    assert comment in slurm("scontrol", "show", "job", job)


def test_a_host_without_slurm_says_so_once_and_tells_nothing_that_was_not_told(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    write_jobs(tmp_path / "data", *((str(i), SLURM, "hung", False) for i in (1, 2, 3)))
    with ThreadCollector(tmp_path / "data") as collector:
        asked = ("--collector", collector.target)
        assert main(["tell", "slurm", *asked]) == 1
        out, err = capsys.readouterr()
        assert err.count("scontrol cannot be run: No such file or directory; the other jobs are told once") == 1
        assert out == ""
        assert main(["tell", "kubernetes", *asked]) == 0
        assert capsys.readouterr().out.startswith("nothing to tell kubernetes: no such job goes on at the collector")


def test_a_host_without_accounts_tells_the_jobs_that_go_on_all_the_same(tmp_path, monkeypatch):
    scontrol = tmp_path / "scontrol"
    scontrol.write_text("#!/bin/sh\n")
    scontrol.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    write_jobs(tmp_path / "data", *((str(i), SLURM, "hung", i == 9) for i in (9, 8, 7)))
    with ThreadCollector(tmp_path / "data") as collector:
        told = ask("tell", "slurm", "--collector", collector.target, exit_code=1)["told"]
    assert {each["job_id"]: each["failure"] for each in told} == {
        "9": "sacctmgr cannot be run: No such file or directory", "8": None, "7": None,
    }  # fmt: skip


def test_the_accounts_of_a_slurm_get_the_summary_of_a_job_that_is_over(tmp_path, monkeypatch):
    # A real slurmdbd wants a database; this one writes down how it is called.
    sacctmgr = tmp_path / "bin" / "sacctmgr"
    sacctmgr.parent.mkdir()
    sacctmgr.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {tmp_path}/called\n')
    sacctmgr.chmod(0o755)
    monkeypatch.setenv("PATH", f"{sacctmgr.parent}:{os.environ['PATH']}")
    write_jobs(tmp_path / "data", ("12", SLURM, "hung", True), energy_j=7.2e6)
    with ThreadCollector(tmp_path / "data") as collector:
        (told,) = ask("tell", "slurm", "--collector", collector.target)["told"]
    assert told["failure"] is None
    *called, comment = (tmp_path / "called").read_text().splitlines()
    assert called == ["-i", "modify", "job", "where", "jobid=12", "set"]
    assert comment.startswith("AdminComment=gpusonde: ended at ")
    assert comment.endswith(" after 1.00 h, 59 epochs of 60.0 s, goodput 75 %, training 75 %, hung 25 %, 2 kWh")


@pytest.mark.needs_root
def test_a_real_slurm_without_accounts_says_so(slurm, tmp_path, monkeypatch):
    write_jobs(tmp_path / "data", ("1", SLURM, "hung", True))
    monkeypatch.setenv("SLURM_CONF", str(slurm.folder / "slurm.conf"))
    with ThreadCollector(tmp_path / "data") as collector:
        (told,) = ask("tell", "slurm", "--collector", collector.target, exit_code=1)["told"]
    assert "sacctmgr ended with 1" in told["failure"]


@pytest.mark.needs_root
def test_a_slurm_that_does_not_answer_is_given_up_and_told_again(slurm, tmp_path, monkeypatch):
    job = slurm("sbatch", "--parsable", "-o", "/dev/null", "--wrap", "sleep 600").strip()
    write_jobs(tmp_path / "data", (job, SLURM, "hung", False))
    monkeypatch.setenv("SLURM_CONF", str(slurm.folder / "slurm.conf"))
    monkeypatch.setattr("gpusonde.cli.commands.tell._TIMEOUT_S", 1.0)
    controller = int((slurm.folder / "slurmctld.pid").read_text())
    with ThreadCollector(tmp_path / "data") as collector:
        os.kill(controller, signal.SIGSTOP)
        try:
            (told,) = ask("tell", "slurm", "--collector", collector.target, exit_code=1)["told"]
        finally:
            os.kill(controller, signal.SIGCONT)
        assert told["failure"] == "scontrol does not answer within 1 s"
        wait_until(lambda: slurm("squeue", "--noheader", check=False), 120, "Slurm to answer again")
        (told,) = ask("tell", "slurm", "--collector", collector.target)["told"]
    assert told["failure"] is None
    slurm("scancel", job)


@pytest.mark.needs_root
def test_a_job_that_slurm_does_not_know_is_a_failure_with_slurms_words(slurm, tmp_path, monkeypatch):
    write_jobs(tmp_path / "data", ("987654", SLURM, "hung", False))
    monkeypatch.setenv("SLURM_CONF", str(slurm.folder / "slurm.conf"))
    with ThreadCollector(tmp_path / "data") as collector:
        (told,) = ask("tell", "slurm", "--collector", collector.target, exit_code=1)["told"]
    assert "Invalid job id" in told["failure"]


def test_what_is_no_answer_of_an_api_server_is_told_in_words(api, monkeypatch):
    """Whatever listens there: a proxy that speaks something else must not end a loop of hours."""

    def garbage(*_args, **_more):
        raise http.client.BadStatusLine("SSH-2.0")

    monkeypatch.setattr(tell.urllib.request.OpenerDirector, "open", garbage)
    with pytest.raises(CommandError, match="does not answer"):
        tell._ApiServer(api.address).ask("GET", "/")


def test_an_api_server_that_sends_elsewhere_is_not_followed_with_the_token(api):
    with pytest.raises(CommandError, match="answers 307"):
        tell._ApiServer(api.address).annotate("/elsewhere", {})
    assert [path for path, *_ in api.patches] == ["/elsewhere"]
