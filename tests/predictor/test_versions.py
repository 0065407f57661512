"""The folder of models: what is in service, whatever happens."""

from __future__ import annotations

import dataclasses
import json
import pickle
import signal
import subprocess
import sys
import threading

import pytest

from gpusonde.errors import DirectoryLockedError, ModelError
from gpusonde.predictor.crossgpu import LatencyModel, ModelFileError
from gpusonde.predictor.crossgpu.learning import LIST, ModelInService, ModelVersions


@pytest.fixture(scope="module")
def models(model):
    """Models with different versions: they state different coverages, nothing else."""
    return [
        LatencyModel(dataclasses.replace(model.settings, coverage=0.80 + number / 100), state=model.state)
        for number in range(7)
    ]


@pytest.fixture
def versions(tmp_path):
    return ModelVersions(tmp_path / "models")


class Crash(BaseException):
    """The process dies: nothing catches this."""


def test_without_any_the_shipped_model_is_in_service(versions):
    model, problems = versions.in_service()
    assert (model.version, problems) == (LatencyModel.shipped().version, [])
    assert not versions.folder.exists()


def test_rolling_back_goes_through_the_versions_to_the_shipped_one(versions, models):
    first, second = (versions.install(model) for model in models[:2])
    assert versions.in_service()[0].version == second
    assert versions.roll_back() == (second, first)
    assert versions.in_service()[0].version == first
    assert versions.roll_back() == (first, "shipped")
    assert versions.in_service()[0].version == LatencyModel.shipped().version
    with pytest.raises(ModelError, match="first of all"):
        versions.roll_back()


def test_only_the_newest_versions_stay(versions, models):
    installed = [versions.install(model, keep=3) for model in models]
    assert versions.listed() == tuple(installed[-3:])
    assert sorted(path.stem for path in versions.folder.glob("*.safetensors")) == sorted(installed[-3:])
    with pytest.raises(ModelError, match="1 to 100"):
        versions.install(models[0], keep=0)


def test_installing_what_was_in_service_before_brings_it_to_the_front_once(versions, models):
    for model in (models[0], models[1], models[0]):
        versions.install(model)
    assert versions.listed() == (models[1].version, models[0].version)


@pytest.mark.parametrize("step", ["os.fsync", "pathlib.Path.replace"])
def test_a_crash_at_any_step_of_installing_leaves_the_former_model(versions, models, monkeypatch, step):
    former = versions.install(models[0])
    calls = 0
    original = __import__("os").fsync if step == "os.fsync" else type(versions.folder).replace
    for fatal in range(1, 10):
        calls = 0

        def fails(*arguments, fatal=fatal):
            nonlocal calls
            calls += 1
            if calls == fatal:
                raise Crash
            return original(*arguments)

        with monkeypatch.context() as patch:
            patch.setattr(step, fails)
            try:
                versions.install(models[1])
            except Crash:
                model, problems = versions.in_service()
                # Whoever got as far as replacing the list has installed it.
                assert model.version in (former, models[1].version)
                assert problems == []
                continue
        break
    assert fatal > 2
    assert versions.in_service()[0].version == models[1].version


_INSTALL_FOR_EVER = """
import sys
from gpusonde.errors import DirectoryLockedError
from gpusonde.predictor.crossgpu import LatencyModel
from gpusonde.predictor.crossgpu.learning import ModelVersions
versions, models = ModelVersions(sys.argv[1]), [LatencyModel.load(path) for path in sys.argv[2:]]
print("ready", flush=True)
while True:
    for model in models:
        versions.install(model, keep=1)
"""


def test_a_process_killed_while_it_installs_leaves_a_whole_model(versions, models, tmp_path):
    files = [tmp_path / f"{number}.safetensors" for number in range(2)]
    known = {model.save(file) for model, file in zip(models, files, strict=False)}
    for delay_s in (0.0, 0.004, 0.011, 0.023, 0.05):
        process = subprocess.Popen(
            [sys.executable, "-c", _INSTALL_FOR_EVER, str(versions.folder), *map(str, files)], stdout=subprocess.PIPE
        )
        assert process.stdout.readline() == b"ready\n"
        # Killed somewhere in a loop of a few milliseconds; where, does not matter.
        threading.Event().wait(delay_s)
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        model, problems = versions.in_service()
        assert problems == []
        assert model.version in known | {LatencyModel.shipped().version}
    versions.install(models[2], keep=1)
    assert sorted(path.name for path in versions.folder.iterdir()) == [f"{models[2].version}.safetensors", LIST]


def test_a_full_disk_leaves_the_former_model_and_names_the_file(versions, models, monkeypatch):
    former = versions.install(models[0])

    def full(_handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        versions.install(models[1])
    model, problems = versions.in_service()
    assert (model.version, problems) == (former, [])


@pytest.mark.parametrize("damage", ["truncated", "foreign", "pickled", "gone", "another"])
def test_a_model_that_cannot_be_used_is_passed_over(versions, models, damage):
    former, newest = (versions.install(model) for model in models[:2])
    path = versions.path(newest)
    if damage == "gone":
        path.unlink()
    elif damage == "another":
        path.write_bytes(versions.path(former).read_bytes())
    else:
        whole = path.read_bytes()
        path.write_bytes(
            {"truncated": whole[:-200], "foreign": b"PK not ours", "pickled": pickle.dumps(Bomb())}[damage]
        )
    model, problems = versions.in_service()
    assert model.version == former
    assert len(problems) == 1
    assert str(path) in problems[0]


class Bomb:
    def __reduce__(self):
        return pytest.fail, ("a pickle was executed",)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        json.dumps(
            {"format": "gpusonde model versions", "format_version": 1, "versions": ["../../etc/passwd"]}
        ).encode(),
        json.dumps({"format": "gpusonde model versions", "format_version": 1, "versions": "x"}).encode(),
        json.dumps({"format": "gpusonde model versions", "format_version": 99, "versions": []}).encode(),
        json.dumps(
            {"format": "gpusonde model versions", "format_version": 1, "versions": ["crossgpu-1-0123456789ab\n"]}
        ).encode(),
        b" " * (2 << 20),
        b"[" * 100_000,
    ],
)
def test_a_damaged_list_is_refused_and_the_shipped_model_answers(versions, models, content):
    versions.install(models[0])
    (versions.folder / LIST).write_bytes(content)
    with pytest.raises(ModelFileError, match=LIST):
        versions.listed()
    model, problems = versions.in_service()
    assert model.version == LatencyModel.shipped().version
    assert len(problems) == 1
    with pytest.raises(ModelFileError):
        versions.install(models[1])


def test_rolling_back_to_a_damaged_model_changes_nothing(versions, models):
    former, newest = (versions.install(model) for model in models[:2])
    versions.path(former).write_bytes(b"damaged")
    with pytest.raises(ModelFileError):
        versions.roll_back()
    assert versions.in_service()[0].version == newest


def test_two_trainings_at_once_are_refused(versions, models):
    versions.install(models[0])
    with versions.locked():
        with pytest.raises(DirectoryLockedError, match="another training"), versions.locked():
            pass
        with pytest.raises(DirectoryLockedError, match="another training"):
            versions.roll_back()
    versions.roll_back()


def test_a_running_process_sees_changes_and_keeps_what_it_has_when_the_new_model_is_damaged(versions, models, caplog):
    serving = ModelInService(versions)
    shipped = serving.model()
    first = versions.install(models[0])
    assert serving.model().version == first
    assert serving.model() is serving.model()
    versions.path(versions.install(models[1])).write_bytes(b"damaged")
    assert serving.model().version == first
    assert "stays in service" in caplog.text
    versions.roll_back()
    assert serving.model().version == first
    versions.roll_back()
    assert serving.model().version == shipped.version
