"""From a collector's store to a better model, and back: what predicts afterwards, with and without a collector."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.fleet_store import write_fleet
from support.json_keys import mismatches
from support.running_collector import ThreadCollector
from support.synthetic_runs import synthetic_runs, write_runs

from gpusonde.cli.commands.train import LearnPayload, RollbackPayload
from gpusonde.cli.main import main
from gpusonde.collector.storage.model import CycleRow, CycleTree
from gpusonde.predictor.crossgpu import LatencyModel
from gpusonde.predictor.crossgpu.learning import ModelVersions

pytestmark = pytest.mark.usefixtures("few_trees")


def answered(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, dict[str, Any]]:
    code = main([*map(str, arguments), "--json"])
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return code, answer


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_runs(tmp_path_factory.mktemp("runs") / "runs.csv", synthetic_runs(models=3, batches=2, seed=8))


def test_a_fleet_teaches_a_model_that_predict_and_a_running_collector_use_until_it_is_rolled_back(
    tmp_path: Path, table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "data"
    run_id = write_fleet(store, jobs=2, batches=2)[0]
    shipped = LatencyModel.shipped().version
    with ThreadCollector(store) as collector:
        question = ("predict", "--run", run_id, "--targets", "A10G", "--collector", collector.target)
        before = answered(capsys, *question)[1]
        assert before["model_version"] == shipped

        code, learnt = answered(capsys, "train", "--from-store", store, table)
        assert code == 0
        assert mismatches(learnt, LearnPayload) == []
        assert learnt["replaced"]
        assert (learnt["jobs"], learnt["runs"], learnt["pairs"], learnt["held_out_pairs"]) == (4, 12, 24, 24)
        assert learnt["candidate_mape"] < learnt["current_mape"]
        assert learnt["former_version"] == shipped
        new = learnt["model_version"]
        assert learnt["versions"] == [new]
        assert Path(learnt["model"]).is_file()

        after = answered(capsys, *question)[1]
        assert after["model_version"] == new
        assert after["predictions"][0]["epoch_latency_s"] != before["predictions"][0]["epoch_latency_s"]
        offline = ("predict", "--runs", table, "--row", "0", "--targets", "T4", "--model", store)
        assert answered(capsys, *offline)[1]["model_version"] == new

        _, again = answered(capsys, "train", "--from-store", store)
        assert (again["replaced"], again["model_version"], again["held_out_pairs"]) == (False, new, 0)
        assert "new to the model in service" in again["reason"]

        # A damaged model: who has the old one keeps it, who starts takes the one before.
        whole = Path(learnt["model"]).read_bytes()
        Path(learnt["model"]).write_bytes(whole[:-100])
        assert answered(capsys, *question)[1]["model_version"] == new
        fallen_back = answered(capsys, *offline)[1]
        assert fallen_back["model_version"] == shipped
        assert "damaged" in fallen_back["notes"][0]
        Path(learnt["model"]).write_bytes(whole)

        code, rolled_back = answered(capsys, "train", "--rollback", store)
        assert mismatches(rolled_back, RollbackPayload) == []
        assert (code, rolled_back["former_version"], rolled_back["model_version"]) == (0, new, "shipped")
        back = answered(capsys, *question)[1]
        assert back["predictions"] == before["predictions"]
        assert answered(capsys, *offline)[1]["model_version"] == shipped
    code, error = answered(capsys, "train", "--rollback", store)
    assert code == 1
    assert error["error"]["type"] == "ModelError"


def test_a_store_with_too_little_that_is_new_changes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_fleet(tmp_path / "data", jobs=1, batches=1)
    code, answer = answered(capsys, "train", "--from-store", tmp_path / "data")
    assert (code, answer["replaced"], answer["jobs"]) == (0, False, 1)
    assert answer["current_mape"] is None
    assert answer["model"] is None
    assert ModelVersions(tmp_path / "data" / "models").listed() == ()
    assert main(["train", "--from-store", str(tmp_path / "data")]) == 0
    assert "in service" in capsys.readouterr().out


def test_a_failed_training_leaves_the_model_in_service(
    tmp_path: Path, table: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_fleet(tmp_path / "data", jobs=2, batches=2)

    def full(_handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    code, error = answered(capsys, "train", "--from-store", tmp_path / "data", table)
    assert code == 1
    assert "No space left" in error["error"]["message"]
    model, problems = ModelVersions(tmp_path / "data" / "models").in_service()
    assert (model.version, problems) == (LatencyModel.shipped().version, [])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "--from-store"),
        (["runs.csv"], "--out"),
        (["--from-store", "s", "--out", "m"], "--out belongs to"),
        (["--rollback", "s", "--out", "m"], "stands alone"),
    ],
)
def test_contradictory_options_are_usage_errors(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_a_folder_that_is_no_store_is_named_and_left_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for option in ("--from-store", "--rollback"):
        code, answer = answered(capsys, "train", option, tmp_path)
        assert code == 1
        assert str(tmp_path) in answer["error"]["message"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("role", "noun"), [("epoch", "epoch"), ("step", "step cycle"), ("evaluation", "cycle"), (None, "cycle")]
)
def test_what_a_prediction_is_of_is_called_as_the_collector_knows_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], role: str | None, noun: str
) -> None:
    tree = role and CycleTree((CycleRow(60.0, 59.0, 61.0, 10, 0.9, role, 0.9, None, (), True),), 0)
    run_id = write_fleet(tmp_path / "data", jobs=1, batches=1, tree=tree)[0]
    with ThreadCollector(tmp_path / "data") as collector:
        assert main(["predict", "--run", run_id, "--targets", "A10G", "--collector", collector.target]) == 0
    said = capsys.readouterr().out.lstrip()
    assert said.startswith(f"one {noun} takes ")
    assert f"{noun} (s)" in said
