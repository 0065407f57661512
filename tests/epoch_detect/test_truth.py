"""Truth files and manifests: what they say, and what is wrong with those that cannot be read."""

import json
from pathlib import Path
from typing import Any

import pytest

from gpusonde.epoch_detect import CycleRole
from gpusonde.epoch_detect.evaluation import TrueLevel, Truth, read_truth
from gpusonde.errors import DocumentError

MANIFEST = Path(__file__).parents[3] / "shared" / "data" / "traces" / "manifest.json"


def written(folder: Path, content: Any) -> Path:
    path = folder / "truth.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def manifest_entry(**changes: Any) -> dict[str, Any]:
    return {"file": "rig_a.csv", "period_s": 10.0, "trust": "high", **changes}


def test_a_truth_file_gives_periods_starts_and_shapes(tmp_path: Path) -> None:
    content = {
        "a": {"period_s": 2.5, "epoch_starts_s": [1, 2], "shape": "x", "note": "other keys do not matter"},
        "two": {"period_s": 40, "regimes_s": [80]},
        "n": {"period_s": None, "epoch_starts_s": []},
    }
    assert read_truth(written(tmp_path, content)).truth == {
        "a": Truth((2.5,), (1.0, 2.0), "x"),
        "two": Truth((40.0, 80.0)),
        "n": Truth(()),
    }


def test_a_truth_file_gives_the_levels_of_the_tree(tmp_path: Path) -> None:
    step = {"period_s": 0.5, "roles": ["step"], "visible": False}
    epoch = {"period_s": 40, "regimes_s": [50], "roles": ["epoch", "evaluation"], "starts_s": [0, 40]}
    content = {"a": {"period_s": 40, "levels": [step, epoch]}, "none": {"period_s": None, "levels": []}}
    assert read_truth(written(tmp_path, content)).truth == {
        "a": Truth(
            (40.0,),
            levels=(
                TrueLevel((0.5,), (CycleRole.STEP,), visible=False),
                TrueLevel((40.0, 50.0), (CycleRole.EPOCH, CycleRole.EVALUATION), starts_s=(0.0, 40.0)),
            ),
        ),
        "none": Truth((), levels=()),
    }


@pytest.mark.parametrize(
    ("level", "field"),
    [
        ({"roles": ["step"]}, "a.levels.0.period_s"),
        ({"period_s": None}, "a.levels.0.period_s"),
        ({"period_s": 3, "roles": ["lunch"]}, "a.levels.0.roles"),
        ({"period_s": 3, "visible": "no"}, "a.levels.0.visible"),
        (7, "a.levels.0"),
    ],
)
def test_a_level_that_cannot_be_read_is_named(tmp_path: Path, level: Any, field: str) -> None:
    with pytest.raises(DocumentError) as caught:
        read_truth(written(tmp_path, {"a": {"period_s": 3, "levels": [level]}}))
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("content", "field", "message"),
    [
        ("{", "", "line 1: not JSON"),
        ('{"a": {"period_s": NaN}}', "a.period_s", "give seconds as a number"),
        ('"text"', "", "an object of trace ids or the list of a manifest"),
        ({"a": {}}, "a.period_s", "a.period_s: is missing; give the seconds of an epoch, or null"),
        ({"a": None}, "a", "expected an object with period_s"),
        ({"a": {"period_s": True}}, "a.period_s", "give seconds as a number"),
        ({"a": {"period_s": -1}}, "a.period_s", "a period is above zero"),
        ({"a": {"period_s": 3, "regimes_s": 6}}, "a.regimes_s", "give a list of seconds"),
        ({"a": {"period_s": 3, "regimes_s": [0]}}, "a.regimes_s", "a period is above zero"),
        ({"a": {"period_s": None, "regimes_s": [6]}}, "a.regimes_s", "correct one of them"),
        ({"a": {"period_s": 3, "epoch_starts_s": ["now"]}}, "a.epoch_starts_s", "give seconds as a number"),
        ({"a": {"period_s": 3, "shape": 7}}, "a.shape", "give a text"),
        ([{"period_s": 3}], "0.file", "name its trace file"),
        (["rig_a.csv"], "0.file", "name its trace file"),
        ([manifest_entry(), manifest_entry()], "rig_a.csv", "two entries; remove one"),
        ([manifest_entry(regular_window=[9, 3])], "rig_a.csv.regular_window", "give its start and its end"),
    ],
)
def test_a_file_of_another_form_is_refused_with_its_key_and_what_to_do(
    content: Any, field: str, message: str, tmp_path: Path
) -> None:
    path = written(tmp_path, content)
    with pytest.raises(DocumentError, match=message) as caught:
        read_truth(path)
    assert (caught.value.path, caught.value.field) == (path, field)
    assert str(path) in str(caught.value)


def test_a_file_that_is_missing_or_no_text_is_named(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match=r"missing\.json: .*give the truth file"):
        read_truth(tmp_path / "missing.json")
    (tmp_path / "truth.json").write_bytes(b'{"a\xff"')
    with pytest.raises(DocumentError, match="not JSON in UTF-8"):
        read_truth(tmp_path / "truth.json")


def test_of_a_manifest_only_starts_inside_the_regular_window_count(tmp_path: Path) -> None:
    entry = manifest_entry(epoch_or_cycle_starts_s=[1, 20, 30, 40, 77], regular_window=[20, 40])
    assert read_truth(written(tmp_path, [entry])).truth == {"rig_a.csv": Truth((10.0,), (20.0, 30.0, 40.0), "rig")}


@pytest.mark.parametrize(
    ("after", "periods"),
    [
        ([60, 80.2, 100, 120], (10.0, 20.0)),  # a regime of its own
        ([60, 80, 100], (10.0,)),  # too few cycles
        ([60, 80, 130, 140], (10.0,)),  # no common period
    ],
)
def test_a_period_that_a_manifest_keeps_outside_of_its_window_is_right_as_well(
    after: list[float], periods: tuple[float, ...], tmp_path: Path
) -> None:
    entry = manifest_entry(epoch_or_cycle_starts_s=[20, 30, 40, *after], regular_window=[20, 40])
    truth = read_truth(written(tmp_path, [entry])).truth["rig_a.csv"]
    assert truth.periods_s == periods
    assert truth.epoch_starts_s == (20.0, 30.0, 40.0)


@pytest.mark.parametrize(
    ("changes", "is_scored"),
    [
        ({"trust": "exact (callbacks)"}, True),
        ({"trust": "medium: 2 regimes"}, True),
        ({"trust": "low: 2 cycles"}, False),
        ({"trust": "none"}, False),
        ({"trust": None}, False),
        ({"period_s": None}, False),
    ],
)
def test_what_is_not_trusted_or_has_no_period_is_left_out(
    changes: dict[str, Any], is_scored: bool, tmp_path: Path
) -> None:
    found = read_truth(written(tmp_path, [manifest_entry(**changes)]))
    assert ("rig_a.csv" in found.truth, "rig_a.csv" in found.left_out) == (is_scored, not is_scored)


@pytest.mark.shared_data
@pytest.mark.skipif(not MANIFEST.exists(), reason=f"{MANIFEST} is not here")
def test_of_the_measured_gpu_traces_twelve_are_scored_and_only_one_has_two_regimes() -> None:
    truth = {file: t for file, t in read_truth(MANIFEST).truth.items() if file.startswith(("h100_", "titanx_"))}
    assert len(truth) == 12
    (several,) = [t.periods_s for t in truth.values() if len(t.periods_s) > 1]
    assert several == pytest.approx((40.39, 79.5), abs=0.1)
    assert several == truth["h100_ckpt100.csv"].periods_s


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="needs a file without end")
def test_a_file_without_end_is_refused() -> None:
    with pytest.raises(DocumentError, match="larger than"):
        read_truth("/dev/zero")
