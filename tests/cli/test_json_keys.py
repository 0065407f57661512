"""Commands print the objects that their payload classes, from which ``docs/cli.md`` is written, declare."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.epoch_traces import write_scored_traces
from support.fleet_store import write_fleet
from support.json_keys import mismatches
from support.problem_documents import small_problem
from support.spools import write_damaged_spool
from support.synthetic_runs import synthetic_runs, write_runs
from support.timed_networks import write_timed_networks
from support.trained_encoders import add_encoder, training_result
from support.training_times import KERAS, write_training_times
from support.workload_graphs import small_network

from gpusonde.cli.commands import catalog, daemons, detect, fleet, monitor, profile, record, spool, store, train
from gpusonde.cli.demo.run import bundled_trace
from gpusonde.cli.errors import ErrorPayload
from gpusonde.cli.evaluations import epochs, workload
from gpusonde.cli.main import main
from gpusonde.cli.measuring import PredictPayload
from gpusonde.cli.workload import answers, embed, fit, graph
from gpusonde.cli.workload import train as encoders
from gpusonde.optimizer import ParetoFront, Solution
from gpusonde.optimizer.several_jobs import JointSolution
from gpusonde.predictor.workload import zoo
from gpusonde.predictor.workload.graph import dump_graph
from gpusonde.service.durable_files import write_json
from gpusonde.simulator.allreduce import AllreduceMeasurement
from gpusonde.simulator.compute import ComputeProbe
from gpusonde.simulator.gradients import assumed_trace
from gpusonde.simulator.job_profile import JobProfile

TRACE = str(bundled_trace())
REPLAY = ("--set", "source.kind=replay", "--set", f"source.trace={TRACE}")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a runs table, training times, stores, a spool and scored traces."""
    folder = tmp_path_factory.mktemp("files")
    write_runs(folder / "runs.csv", synthetic_runs(models=2, batches=2))
    write_training_times(folder / "times.csv", (), KERAS[:4], image_sizes=(32,))
    write_damaged_spool(folder / "spool")
    write_scored_traces(folder)
    write_timed_networks(folder)
    (folder / "net.json").write_text(dump_graph(small_network()))
    write_json(folder / "problem.json", small_problem())
    # Of few machines: that two jobs have no plans takes long to prove.
    few = [offer | {"quota": 2} for offer in small_problem()["offers"]]
    write_json(folder / "few.json", small_problem(offers=few))
    write_json(folder / "hopeless.json", small_problem(offers=few, deadline_s=30.0))
    spot = small_problem(iterations=200_000, deadline_s=40_000.0)
    spot["offers"][0] |= {"billing": "spot", "preemptions_per_hour": 0.05}
    write_json(folder / "spot.json", spot)
    (folder / "progress.jsonl").write_text('{"elapsed_s": 60, "completed_iterations": 200}')
    (folder / "damaged").mkdir()
    write_fleet(folder / "damaged", jobs=1, batches=1)
    (folder / "damaged" / "segments" / "half.parquet.tmp").touch()
    return folder


def printed(arguments: Sequence[str], capsys: pytest.CaptureFixture[str]) -> Any:
    main([*arguments, "--json"])
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("arguments", "payload"),
    [
        ("detect {trace} --total-epochs 40", detect.DetectPayload),
        ("predict --trace {trace} --targets V100", PredictPayload),
        ("predict --runs {files}/runs.csv --row 0 --targets V100", PredictPayload),
        ("train {files}/runs.csv --out {files}/model", train.TrainPayload),
        ("evaluate epochs {files}/traces.parquet {files}/truth.json", epochs.EvaluateEpochsPayload),
        ("evaluate workload {files}/times.csv", workload.EvaluateWorkloadPayload),
        ("workload graph {files}/net.json --out {files}/copy.json", graph.GraphPayload),
        ("workload predict {files}/net.json --target-gpus T4,H100-SXM5-80GB --batch-size 1", answers.StepsPayload),
        ("workload fit {files}/timed.csv --out {files}/own --regressor linear --encoder digits", fit.FitPayload),
        ("workload embed {files}/net.json --nearest 2", embed.EmbedPayload),
        ("plan solve {files}/problem.json", Solution),
        ("plan solve {files}/hopeless.json", Solution),
        ("plan solve {files}/problem.json {files}/problem.json", JointSolution),
        ("plan solve {files}/few.json {files}/hopeless.json", JointSolution),
        ("plan pareto {files}/problem.json", ParetoFront),
        ("plan estimate {files}/problem.json --group t4=4@64", Solution),
        ("monitor {files}/problem.json --group t4=4@64 --progress {files}/progress.jsonl", monitor.MonitorPayload),
        ("monitor {files}/spot.json --group t4=4@64 --progress {files}/progress.jsonl", monitor.MonitorPayload),
        ("agent --print-config", daemons.ConfigPayload),
        ("collector --check-config", daemons.ConfigPayload),
        ("agent doctor {replay}", daemons.DoctorPayload),
        ("record {files}/copy.csv --replay {trace} --speed 1000", record.RecordPayload),
        ("spool ls {files}/spool", spool.SpoolListPayload),
        ("spool fsck {files}/spool --repair", spool.SpoolCheckPayload),
        ("token new --role agent --agent-id host-*", fleet.TokenPayload),
        ("store fsck {files}/damaged", store.StoreCheckPayload),
        ("store backup {files}/damaged {files}/backup", store.StoreBackupPayload),
        ("store compact {files}/damaged", store.StoreCompactPayload),
        ("store export {files}/damaged {files}/all.csv", store.StoreExportPayload),
        ("store sql {files}/damaged SELECT_1", store.StoreSqlPayload),
        ("gpus", catalog.GpusPayload),
        ("gpus V100", catalog.GpusPayload),
        ("offers --gpu V100,T4", catalog.OffersPayload),
        ("metrics", catalog.MetricsPayload),
        ("gpus no-such-gpu", ErrorPayload),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_command_prints_what_its_payload_declares(
    arguments: str,
    payload: type,
    files: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    some = zoo.names()[:4]
    monkeypatch.setattr(zoo, "names", lambda: some)
    values = {"trace": TRACE, "files": str(files), "replay": " ".join(REPLAY)}
    words = [word.replace("SELECT_1", "SELECT 1") for word in arguments.format(**values).split()]
    found = printed(words, capsys)
    formats = {Solution: "solution", ParetoFront: "pareto", JointSolution: "joint_solution"}
    if payload in formats:
        assert found.pop("format") == f"gpusonde.{formats[payload]}/1"
        assert mismatches(found.pop("notes"), list[str]) == []
    assert mismatches(found, payload) == []


def test_what_needs_torch_prints_what_it_declares(tmp_path: Path) -> None:
    found = JobProfile("T4", (ComputeProbe(8, 0.1), ComputeProbe(64, 0.5)), assumed_trace(1e8), 0.01, 96)
    assert mismatches(profile.profile_payload(found, tmp_path), profile.ProfilePayload) == []
    trained = encoders.train_payload(add_encoder(tmp_path / "registry", "tiny"), training_result())
    assert mismatches(trained, encoders.TrainingPayload) == []
    measured = [AllreduceMeasurement("lab", 1e6, 2, 0.01)]
    assert mismatches(profile.probe_payload("lab", measured, tmp_path), profile.ProbePayload) == []
