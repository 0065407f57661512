"""The registry of encoders: what is asked for is what was added, whatever happens to the files."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import os
import pickle
import threading

import numpy as np
import pytest
from support.spawned_work import add_again_and_again
from support.wire_agent import wait_until

from gpusonde.errors import EncoderError, UnknownEncoderError
from gpusonde.predictor.workload.embedding import registry as module
from gpusonde.predictor.workload.embedding.registry import Registry, name_checkpoint
from gpusonde.predictor.workload.embedding.weights import EncoderDescription, EncoderWeights


def weights(seed=0, dataset_type="flowers", steps=5):
    untrained = EncoderWeights.random(seed, EncoderDescription(hidden_size=8))
    description = dataclasses.replace(untrained.description, dataset_type=dataset_type, training_steps=steps)
    return EncoderWeights(description, untrained.arrays)


@pytest.fixture
def registry(tmp_path):
    return Registry(tmp_path / "encoders")


def test_what_is_added_is_found_by_everybody(registry):
    added = registry.add(weights(), figures={"mean accuracy": 0.6})
    for other in (registry, Registry(registry.folder)):
        found = other.get("flowers")
        assert found.sha256 == weights().sha256 == added.sha256
        assert (found.dataset_type, found.trained_steps, found.is_shipped) == ("flowers", 5, False)
        assert found.figures == {"mean accuracy": 0.6}
        assert all(np.array_equal(found.weights.arrays[name], array) for name, array in weights().arrays.items())
        assert "flowers" in other.dataset_types()


def test_an_unknown_dataset_type_is_told_with_those_that_are_known(registry):
    registry.add(weights())
    with pytest.raises(UnknownEncoderError, match=r"'birds'.*flowers"):
        registry.get("birds")


def test_a_registry_without_a_folder_has_the_shipped_encoders_alone(tmp_path):
    registry = Registry()
    with pytest.raises(EncoderError, match="name a folder"):
        registry.add(weights())
    assert registry.dataset_types() == Registry(tmp_path / "nothing").dataset_types()
    assert not (tmp_path / "nothing").exists()


def test_asking_again_reads_nothing_until_the_card_changes(registry, monkeypatch):
    registry.add(weights())
    first = registry.get("flowers")
    with monkeypatch.context() as patched:
        patched.setattr(EncoderWeights, "from_bytes", None)
        assert registry.get("flowers") is first
    Registry(registry.folder).add(weights(seed=1))
    assert registry.get("flowers").sha256 == weights(seed=1).sha256


def test_a_new_encoder_replaces_the_old_one_of_its_own_type_only(registry):
    # Their files begin like those of "flowers".
    registry.add(weights(dataset_type="flowers-0123456789ab"))
    registry.add(weights(dataset_type="flowers-large"))
    registry.add(weights())
    registry.add(weights(seed=1))
    assert registry.get("flowers").sha256 == weights(seed=1).sha256
    for name in ("flowers-0123456789ab", "flowers-large"):
        assert registry.get(name).dataset_type == name


def test_the_latest_encoders_can_still_be_had_by_their_digest(registry):
    kept = [weights(seed=seed) for seed in range(10)]
    registry.add(weights(dataset_type="flowers-0123456789ab"))
    for age, each in enumerate(kept):
        registry.add(each)
        path = registry.folder / name_checkpoint("flowers", each.sha256)
        os.utime(path, (age, age))
    for each in kept[2:]:
        assert Registry(registry.folder).exact("flowers", each.sha256).sha256 == each.sha256
    for each in kept[:2]:
        with pytest.raises(UnknownEncoderError, match="it is not in"):
            registry.exact("flowers", each.sha256)
    assert len(list(registry.folder.glob("flowers-*.safetensors"))) == 9
    shipped = Registry().get("digits").sha256
    assert registry.exact("digits", shipped).sha256 == shipped
    with pytest.raises(UnknownEncoderError, match="shipped"):
        Registry().exact("flowers", kept[-1].sha256)


def test_a_checkpoint_that_holds_other_weights_than_its_name_says_is_not_taken(registry):
    registry.add(weights())
    wanted = weights(seed=1).sha256
    path = registry.folder / name_checkpoint("flowers", wanted)
    path.write_bytes(weights().to_bytes())
    with pytest.raises(EncoderError, match="other weights than its name says"):
        registry.exact("flowers", wanted)
    path.write_bytes(b"damaged")
    with pytest.raises(EncoderError, match="restore it"):
        registry.exact("flowers", wanted)


@pytest.mark.parametrize("name", ["../flowers", "a/b", "", "Flowers", "x" * 65, "flowers\n", "flowers\0"])
def test_names_that_could_lead_elsewhere_are_refused(registry, name):
    with pytest.raises(EncoderError):
        registry.get(name)
    with pytest.raises(EncoderError):
        registry.add(weights(dataset_type=name))
    assert not registry.folder.exists()


def test_an_untrained_encoder_is_not_registered(registry):
    with pytest.raises(EncoderError, match="untrained"):
        registry.add(weights(steps=0))


@pytest.mark.parametrize("figures", [{"x": object()}, {"x": float("nan")}, {"x": "y" * (256 << 10)}])
def test_figures_that_no_card_can_hold_are_refused(registry, figures):
    registry.add(weights())
    with pytest.raises(EncoderError, match="figures"):
        registry.add(weights(seed=1), figures=figures)
    assert registry.get("flowers").sha256 == weights().sha256


def files_of(registry):
    (card,), (checkpoint,) = registry.folder.glob("*.json"), registry.folder.glob("*.safetensors")
    return card, checkpoint


class Exploit:
    def __reduce__(self):
        return (exec, ("raise SystemExit('unpickled')",))


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", pickle.dumps(Exploit()), bytes(17 << 20)])
def test_a_damaged_checkpoint_is_told_and_not_replaced_by_another(registry, content):
    registry.add(weights())
    _, checkpoint = files_of(registry)
    checkpoint.write_bytes(content)
    with pytest.raises(EncoderError, match=checkpoint.name):
        Registry(registry.folder).get("flowers")
    checkpoint.unlink()
    with pytest.raises(EncoderError, match="missing"):
        Registry(registry.folder).get("flowers")


def test_other_weights_than_the_card_says_are_told(registry):
    registry.add(weights())
    _, checkpoint = files_of(registry)
    for other in (weights(seed=1), weights(dataset_type="birds"), weights(steps=6)):
        checkpoint.write_bytes(other.to_bytes())
        with pytest.raises(EncoderError, match=weights().sha256):
            Registry(registry.folder).get("flowers")


def test_damaged_cards_are_told(registry):
    registry.add(weights())
    card, _ = files_of(registry)
    sound = json.loads(card.read_text())
    changes = ({"format": "x"}, {"sha256": "../x"}, {"sha256": 5}, {"dataset_type": "birds"}, {"figures": []})
    for content in (
        "",
        "[]",
        "[" * 100_000,
        "{" + " " * (256 << 10) + "}",
        *(json.dumps({**sound, **change}) for change in changes),
    ):
        card.write_text(content)
        with pytest.raises(EncoderError, match=r"flowers\.json"):
            Registry(registry.folder).get("flowers")


@pytest.mark.parametrize("failing", [".safetensors", ".json"])
def test_a_write_that_breaks_off_leaves_the_old_encoder(registry, monkeypatch, failing):
    registry.add(weights())

    def full(path, content, real=module.write_durably):
        if path.suffix == failing:
            raise OSError(28, "No space left on device", str(path))
        real(path, content)

    monkeypatch.setattr(module, "write_durably", full)
    with pytest.raises(OSError, match="No space left"):
        registry.add(weights(seed=1))
    assert Registry(registry.folder).get("flowers").sha256 == weights().sha256


def test_readers_find_an_encoder_while_another_process_replaces_it(registry):
    registry.add(weights())
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    encoders = [weights(seed=seed) for seed in range(4)]
    writer = context.Process(target=add_again_and_again, args=(registry.folder, encoders, ready))
    writer.start()
    wait_until(lambda: ready.is_set() or not writer.is_alive(), what="the start of the writer")
    expected = {encoder.sha256 for encoder in encoders}
    while writer.is_alive():
        assert Registry(registry.folder).get("flowers").sha256 in expected
        assert registry.get("flowers").sha256 in expected
    writer.join()
    assert writer.exitcode == 0


def test_threads_share_a_registry(registry):
    registry.add(weights())
    found = []
    threads = [threading.Thread(target=lambda: found.append(registry.get("flowers").sha256)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [weights().sha256] * 8


def test_files_of_others_in_the_folder_are_no_dataset_types(registry):
    registry.add(weights())
    before = registry.dataset_types()
    for name in ("Notes.json", ".hidden.json", "readme.txt"):
        (registry.folder / name).write_text("{}")
    assert registry.dataset_types() == before
