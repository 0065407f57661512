"""``ModelVersions``: a folder of models, one of them in service, the ones before it kept for a while.

The folder holds one file per model and ``versions.json``, which lists those that have been in service, the present one
last. A model is written before it is listed and the list is replaced as a whole, so that a crash at any moment leaves
either the old or the new model in service. Behind the oldest of the list stands the model that is shipped.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path

from gpusonde.predictor.crossgpu.model import LatencyModel
from gpusonde.predictor.crossgpu.persistence import ModelFileError
from gpusonde.predictor.files import replace_file

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


class VersionsError(RuntimeError):
    """A folder of models that cannot be changed as asked; the message says why and what to do."""


class ModelVersions:
    """The models of one folder.

    Args:
        folder: Where they are; it is made when a model is installed.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def listed(self) -> tuple[str, ...]:
        """Versions that have been in service, the present one last; empty while the shipped one is.

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
        """The file of a version."""
        return self.folder / f"{version}.zip"

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
        """The model in service: the newest that can be used, at last the shipped one.

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
            VersionsError: ``keep`` is out of range.
            ModelFileError: The list is damaged.
            OSError: The folder cannot be written; what was in service stays.
        """
        if not 1 <= keep <= _MOST_KEPT:
            raise VersionsError(f"{keep} versions cannot be kept; use 1 to {_MOST_KEPT}")
        listed = self.listed()
        self.folder.mkdir(parents=True, exist_ok=True)
        version = model.save(self.folder / ".candidate")
        (self.folder / ".candidate").replace(self.path(version))
        kept = (*(known for known in listed if known != version), version)[-keep:]
        self._write(kept)
        self._remove_all_but(kept)
        return version

    def roll_back(self) -> tuple[str, str]:
        """Put the model in service again that was before the present one.

        Returns:
            The version that was in service, and the one that now is (``shipped`` for the shipped one).

        Raises:
            VersionsError: There is nothing before, or somebody else changes the folder.
            ModelFileError: The list or the former model is damaged; nothing changes.
            OSError: The folder cannot be read or written.
        """
        if not self.listed():
            raise VersionsError(f"{self.folder} holds no fitted model: the shipped one is in service, the first of all")
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
            VersionsError: Somebody does.
            OSError: The folder cannot be made.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise VersionsError(f"another training uses {self.folder}; wait for its end") from None
            yield
        finally:
            os.close(descriptor)

    def _write(self, versions: tuple[str, ...]) -> None:
        content = {"format": FORMAT, "format_version": FORMAT_VERSION, "versions": list(versions)}
        replace_file(self.folder / LIST, (json.dumps(content, indent=1) + "\n").encode())

    def _remove_all_but(self, versions: tuple[str, ...]) -> None:
        for path in self.folder.glob("crossgpu-*.zip"):
            if path.stem not in versions:
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
        """The model in service; while the newest one cannot be used, the one that was."""
        with self._lock:
            seen = self._state_of_list()
            if self._model is None or seen != self._seen:
                self._model, self._seen = self._changed(), seen
            return self._model

    def _changed(self) -> LatencyModel:
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

    def _state_of_list(self) -> tuple[int, int, int] | None:
        try:
            found = (self._versions.folder / LIST).stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size
