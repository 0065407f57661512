"""``learn``: fit a candidate to what a fleet has seen, and compare it with the model in service on runs new to both.

``ModelVersions`` is a folder of models, one of them in service, the ones before it kept for a while. It holds one file
per model and ``versions.json``, which lists those that have been in service, the present one last. A model is written
before it is listed and the list is replaced as a whole, so that a crash at any moment leaves either the old or the new
model in service. Behind the oldest of the list stands the model that is shipped.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from gpusonde.errors import ModelError, ModelFileError
from gpusonde.predictor.crossgpu.model import LatencyModel
from gpusonde.predictor.crossgpu.pairs import BoolArray, FloatArray, Pairs, decay_weights, split_by_group
from gpusonde.predictor.crossgpu.runs_table import IndexArray, RunsTable
from gpusonde.predictor.former_model_files import FORMER_MODEL
from gpusonde.predictor.model_file import SUFFIX
from gpusonde.service.durable_files import DirectoryLock, write_durably

_FOLDS = 5
# Below this neither model can be told to be better.
_MINIMUM_NEW_CONFIGURATIONS = 3
# The time of a fit grows with the third power of its pairs; the newest are the ones that count.
_MOST_FLEET_PAIRS = 1500
# Six half-lives; what counts less is left out altogether.
_LEAST_WEIGHT = 1 / 64


@dataclass(frozen=True)
class Comparison:
    """Two models on the same held-out pairs, errors relative to the measured latency.

    Attributes:
        configurations: Configurations held out in turn; neither model had seen any of them when it was asked.
        pairs: Pairs of runs predicted.
        current_mape: Mean absolute relative error of the model in service.
        candidate_mape: The same of candidates fitted without the configuration.
    """

    configurations: int
    pairs: int
    current_mape: float
    candidate_mape: float


@dataclass(frozen=True)
class Lesson:
    """What came of learning.

    Attributes:
        pairs: Pairs of the fleet's runs.
        carried_pairs: Pairs besides: those of the model in service, or of a table.
        comparison: None where there is too little that is new.
        candidate: The candidate fitted to everything, when it is better; None when it is not.
        reason: Why the model in service is replaced, or is not.
    """

    pairs: int
    carried_pairs: int
    comparison: Comparison | None
    candidate: LatencyModel | None
    reason: str


def learn(
    current: LatencyModel,
    fleet: RunsTable,
    *,
    now_unix_s: float,
    half_life_s: float,
    table: RunsTable | None = None,
    progress: Callable[[float], None] = lambda _: None,
) -> Lesson:
    """Fit a candidate and compare it.

    The candidate is fitted to the fleet's pairs and to those that the model in service was fitted to (or to a table's
    in their place), each pair of a fleet weighing half as much with every half-life of its age, and nothing after six.
    It is compared on
    configurations that the model in service was not fitted to, each held out from the candidate in turn.

    Args:
        current: The model in service.
        fleet: Runs of a fleet, with the times when they ended.
        now_unix_s: The present.
        half_life_s: Above zero.
        table: Fit to these runs instead of the pairs that the model in service carries.
        progress: Called with the share done, 0..1.

    Raises:
        TooFewRunsError: Together there are fewer than 30 pairs.
    """
    source, target = _choose_newest(fleet, now_unix_s, half_life_s)
    own = Pairs.from_runs(fleet, (source, target))
    known = current.state.pairs
    # What the fleet still has is taken from there; what it no longer has is remembered by the model.
    gone = ~np.isin(known.configurations, own.configurations)
    young = decay_weights(known.time_unix_s, now_unix_s, half_life_s) >= _LEAST_WEIGHT
    carried = known.where(gone[known.configuration] & young) if table is None else Pairs.from_runs(table)
    new = ~np.isin(own.configurations, known.configurations)[own.configuration]
    count = len(np.unique(own.configuration[new]))
    if count < _MINIMUM_NEW_CONFIGURATIONS:
        return Lesson(
            len(own), len(carried), None, None,
            f"{count} jobs that ran on two GPU models are new to the model in service, and fewer than "
            f"{_MINIMUM_NEW_CONFIGURATIONS} cannot tell which model is better",
        )  # fmt: skip

    def fitted(model: LatencyModel, rows: BoolArray) -> LatencyModel:
        pairs = Pairs.join([carried, own.where(rows)])
        return model.fit_pairs(pairs, decay_weights(pairs.time_unix_s, now_unix_s, half_life_s))

    quick = replace(current.settings, regimes=())
    positions = np.flatnonzero(new)
    folds = list(split_by_group(own.configuration[new], _FOLDS, current.settings.residual.seed))
    of_current, of_candidate = np.zeros(len(own)), np.zeros(len(own))
    for number, (_, part) in enumerate(folds):
        held_out = np.zeros(len(own), dtype=bool)
        held_out[positions[part]] = True
        candidate = fitted(LatencyModel(quick), ~held_out)
        asked = fleet, source[held_out], target[held_out]
        of_current[held_out], of_candidate[held_out] = (
            _measure_errors(current, *asked),
            _measure_errors(candidate, *asked),
        )
        progress((number + 1) / (len(folds) + 1))
    comparison = Comparison(count, int(new.sum()), float(of_current[new].mean()), float(of_candidate[new].mean()))
    if comparison.candidate_mape >= comparison.current_mape:
        return Lesson(len(own), len(carried), comparison, None, "the candidate is not better on runs new to both")
    whole = fitted(LatencyModel(current.settings), np.ones(len(own), dtype=bool))
    return Lesson(len(own), len(carried), comparison, whole, "the candidate is better on runs new to both")


def _choose_newest(fleet: RunsTable, now_unix_s: float, half_life_s: float) -> tuple[IndexArray, IndexArray]:
    """Return the pairs that ended last, without those that are too old to count, in the order of ``Pairs.of``."""
    source, target = fleet.pairs()
    ends = np.array([run.end_unix_s for run in fleet.runs])
    ended = np.maximum(ends[source], ends[target])
    newest = np.argsort(-ended, kind="stable")[:_MOST_FLEET_PAIRS]
    newest = newest[decay_weights(ended[newest], now_unix_s, half_life_s) >= _LEAST_WEIGHT]
    order = newest[np.argsort(source[newest], kind="stable")]
    return source[order], target[order]


def _measure_errors(model: LatencyModel, fleet: RunsTable, source: IndexArray, target: IndexArray) -> FloatArray:
    """Return absolute relative errors; a pair that a model has no answer for counts as being wrong altogether."""
    runs = fleet.runs
    predicted = [
        model.predict(runs[i].measurement(), [runs[j].gpu])[0].epoch_latency_s
        for i, j in zip(source, target, strict=True)
    ]
    measured = np.array([runs[j].epoch_latency_s for j in target])
    errors: FloatArray = np.nan_to_num(np.abs(np.array(predicted) / measured - 1), nan=1.0)
    return errors


FORMAT = "gpusonde model versions"
FORMAT_VERSION = 1
#: Folder of the models in a collector's data directory.
MODELS = "models"
LIST = "versions.json"
#: What is in service when the list is empty.
SHIPPED = "shipped"
DEFAULT_KEPT = 5

_LOG = logging.getLogger(__name__)
_MAXIMUM_LIST_BYTES = 1 << 20
_MOST_KEPT = 100
# A version names a file: nothing that leads out of the folder.
_VERSION = re.compile(r"crossgpu-\d+-[0-9a-f]{12}")


class ModelVersions:
    """The models of one folder.

    Args:
        folder: Where they are; it is made when a model is installed.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def listed(self) -> tuple[str, ...]:
        """Return the versions that have been in service, the present one last; empty while the shipped one is.

        Raises:
            ModelFileError: The list is damaged, or was written by another version of gpusonde.
            OSError: It cannot be read.
        """
        path = self.folder / LIST
        try:
            with path.open("rb") as file:
                content = file.read(_MAXIMUM_LIST_BYTES + 1)
        except FileNotFoundError:
            return ()
        try:
            found = json.loads(content) if len(content) <= _MAXIMUM_LIST_BYTES else None
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            raise ModelFileError(str(path), "damaged, or no list of models; remove it to go back to the shipped model")
        if found.get("format_version") != FORMAT_VERSION:
            raise ModelFileError(str(path), f"format version {found.get('format_version')}, not {FORMAT_VERSION}")
        versions = found.get("versions")
        if not isinstance(versions, list) or not all(isinstance(v, str) and _VERSION.fullmatch(v) for v in versions):
            raise ModelFileError(
                str(path), "damaged: not a list of versions; remove it to go back to the shipped model"
            )
        return tuple(versions)

    def path(self, version: str) -> Path:
        """Return the file of a version, which a former release may have written as a zip."""
        path = self.folder / f"{version}{SUFFIX}"
        former = path.with_suffix(FORMER_MODEL)
        return former if former.exists() and not path.exists() else path

    def load(self, version: str) -> LatencyModel:
        """Load a listed version.

        Raises:
            ModelFileError: Its file is damaged or holds another model.
            OSError: It cannot be read.
        """
        model = LatencyModel.load(self.path(version))
        if model.version != version:
            raise ModelFileError(str(self.path(version)), f"holds {model.version}; restore it, or roll back")
        return model

    def in_service(self) -> tuple[LatencyModel, list[str]]:
        """Return the model in service: the newest that can be used, at last the shipped one.

        Returns:
            The model, and what was wrong with those that should have come before it.
        """
        problems: list[str] = []
        try:
            versions = self.listed()
        except (ModelFileError, OSError) as error:
            versions, problems = (), [str(error)]
        for version in reversed(versions):
            try:
                return self.load(version), problems
            except (ModelFileError, OSError) as error:
                problems.append(str(error))
        return LatencyModel.shipped(), problems

    def install(self, model: LatencyModel, *, keep: int = DEFAULT_KEPT) -> str:
        """Put a model in service and forget all but the newest ones; whoever may not be alone holds :meth:`locked`.

        Args:
            model: A fitted model.
            keep: Number of versions that stay, this one included, 1..100.

        Returns:
            Its version.

        Raises:
            ModelError: ``keep`` is out of range.
            ModelFileError: The list is damaged.
            OSError: The folder cannot be written; what was in service stays.
        """
        if not 1 <= keep <= _MOST_KEPT:
            raise ModelError(f"{keep} versions cannot be kept; use 1 to {_MOST_KEPT}")
        listed = self.listed()
        self.folder.mkdir(parents=True, exist_ok=True)
        version = model.save(self.folder / ".candidate")
        (self.folder / ".candidate").replace(self.folder / f"{version}{SUFFIX}")
        kept = (*(known for known in listed if known != version), version)[-keep:]
        self._write(kept)
        self._remove_all_but(kept)
        return version

    def roll_back(self) -> tuple[str, str]:
        """Put the model in service again that was before the present one.

        Returns:
            The version that was in service, and the one that now is (``shipped`` for the shipped one).

        Raises:
            ModelError: There is nothing before.
            DirectoryLockedError: Somebody else changes the folder.
            ModelFileError: The list or the former model is damaged; nothing changes.
            OSError: The folder cannot be read or written.
        """
        if not self.listed():
            raise ModelError(f"{self.folder} holds no fitted model: the shipped one is in service, the first of all")
        with self.locked():
            listed = self.listed()
            if len(listed) > 1:
                self.load(listed[-2])
            self._write(listed[:-1])
        return listed[-1], listed[-2] if len(listed) > 1 else SHIPPED

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Let nobody else install or roll back meanwhile.

        Raises:
            DirectoryLockedError: Somebody does.
            OSError: The folder cannot be made.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        with DirectoryLock(self.folder, "training"):
            yield

    def _write(self, versions: tuple[str, ...]) -> None:
        content = {"format": FORMAT, "format_version": FORMAT_VERSION, "versions": list(versions)}
        write_durably(self.folder / LIST, (json.dumps(content, indent=1) + "\n").encode())

    def _remove_all_but(self, versions: tuple[str, ...]) -> None:
        for path in self.folder.glob("crossgpu-*"):
            if path.suffix in (SUFFIX, FORMER_MODEL) and path.stem not in versions:
                path.unlink(missing_ok=True)
        # What processes that were killed had begun to write.
        for path in self.folder.glob(".*"):
            path.unlink(missing_ok=True)


class ModelInService:
    """The model of a folder for a process that goes on: a change of the folder is seen at the next question.

    Args:
        versions: The folder.
    """

    def __init__(self, versions: ModelVersions) -> None:
        self._versions = versions
        self._lock = threading.Lock()
        self._model: LatencyModel | None = None
        self._seen: tuple[int, int, int] | None = None

    def model(self) -> LatencyModel:
        """Return the model in service; while the newest one cannot be used, the one that was."""
        with self._lock:
            seen = self._stat_list()
            if self._model is None or seen != self._seen:
                self._model, self._seen = self._load_changed(), seen
            return self._model

    def _load_changed(self) -> LatencyModel:
        if self._model is None:
            model, problems = self._versions.in_service()
            for problem in problems:
                _LOG.error("%s; %s answers instead", problem, model.version)
            return model
        try:
            listed = self._versions.listed()
            model = self._versions.load(listed[-1]) if listed else LatencyModel.shipped()
        except (ModelFileError, OSError) as error:
            _LOG.error("%s; %s stays in service", error, self._model.version)
            return self._model
        _LOG.info("model %s is in service instead of %s", model.version, self._model.version)
        return model

    def _stat_list(self) -> tuple[int, int, int] | None:
        try:
            found = (self._versions.folder / LIST).stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size
