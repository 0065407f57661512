"""``Registry``: which encoder embeds the networks of a dataset type, as a folder that an operator owns.

Each dataset type has a card, ``TYPE.json``, which names its checkpoint, ``TYPE-DIGEST.safetensors``, and the digest
of the weights in it. The checkpoint is written first and the card replaced as a whole, so that whoever reads
meanwhile, and whatever breaks off, finds the old encoder or the new one. Beneath the folder lie the encoders that
are shipped.
"""

from __future__ import annotations

import contextlib
import json
import re
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Any

from gpusonde.errors import EncoderError, UnknownEncoderError
from gpusonde.predictor.former_model_files import FORMER_ENCODER
from gpusonde.predictor.model_file import SUFFIX
from gpusonde.predictor.workload.embedding.weights import EncoderWeights, check_dataset_type
from gpusonde.service.durable_files import write_durably

FORMAT = "gpusonde.encoder_card/1"

_MAXIMUM_CARD_BYTES = 256 << 10
_MAXIMUM_CHECKPOINT_BYTES = 16 << 20
_MAXIMUM_DATASET_TYPES = 1000
_KEPT_CHECKPOINTS = 8
_SHIPPED = "checkpoints"
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class RegisteredEncoder:
    """The encoder of a dataset type.

    Attributes:
        dataset_type: What its training networks classified.
        weights: Its weights; ``Encoder(weights)`` embeds.
        sha256: Digest of the weights.
        trained_steps: Steps that it was trained for.
        figures: What its training measured, as the card tells.
        is_shipped: Whether it came with gpusonde and not from the operator's folder.
    """

    dataset_type: str
    weights: EncoderWeights
    sha256: str
    trained_steps: int
    figures: Mapping[str, Any]
    is_shipped: bool


class Registry:
    """The encoders of a folder, and beneath them the shipped ones.

    Answers are kept until a card changes, so that asking costs next to nothing. Threads may share a registry, and
    processes a folder.

    Args:
        folder: The operator's folder; it is made when an encoder is added. None for the shipped encoders alone.
    """

    def __init__(self, folder: str | Path | None = None) -> None:
        self.folder = None if folder is None else Path(folder)
        self._shipped = Path(str(files("gpusonde.predictor.workload.embedding").joinpath(_SHIPPED)))
        self._lock = threading.Lock()
        self._kept: dict[Path, tuple[tuple[int, int, int], RegisteredEncoder]] = {}

    def dataset_types(self) -> tuple[str, ...]:
        """Return the dataset types that have an encoder, in alphabetical order.

        Raises:
            EncoderError: The folder holds more than a registry ever does.
            OSError: The folder cannot be read.
        """
        found: set[str] = set()
        for folder in self._list_folders():
            found.update(_list_dataset_types(folder))
            if len(found) > _MAXIMUM_DATASET_TYPES:
                raise EncoderError(f"{folder} holds more than {_MAXIMUM_DATASET_TYPES} encoders: no registry's folder")
        return tuple(sorted(found))

    def get(self, dataset_type: str) -> RegisteredEncoder:
        """Return the encoder of a dataset type; the operator's, if there is one, else the shipped one.

        Raises:
            EncoderError: It is no name of a dataset type.
            UnknownEncoderError: There is none.
            EncoderError: Its card or its checkpoint cannot be read.
            EncoderError: The checkpoint holds other weights than the card says.
            OSError: A file cannot be read.
        """
        check_dataset_type(dataset_type)
        for folder in self._list_folders():
            card = folder / f"{dataset_type}.json"
            if card.is_file():
                return self._read_once(dataset_type, card)
        known = ", ".join(self.dataset_types()) or "none"
        raise UnknownEncoderError(
            f"no encoder for dataset type {dataset_type!r}; there are {known}; train one with 'gpusonde workload train'"
        )

    def exact(self, dataset_type: str, sha256: str) -> EncoderWeights:
        """Return the encoder with a digest, also where its dataset type has a newer one by now.

        Raises:
            EncoderError: It is no name of a dataset type.
            UnknownEncoderError: It is not there.
            EncoderError: Its checkpoint cannot be read, or holds other weights.
            OSError: A file cannot be read.
        """
        name = name_checkpoint(check_dataset_type(dataset_type), sha256)
        for folder in self._list_folders():
            path = folder / name
            try:
                weights = _read_checkpoint(path)
            except FileNotFoundError:
                continue
            if (weights.description.dataset_type, weights.sha256) != (dataset_type, sha256):
                raise EncoderError(f"{path} holds other weights than its name says; restore it")
            return weights
        where = "among the shipped encoders" if self.folder is None else f"in {self.folder} or among the shipped ones"
        raise UnknownEncoderError(f"it is not {where}")

    def add(self, weights: EncoderWeights, *, figures: Mapping[str, Any] | None = None) -> RegisteredEncoder:
        """Register an encoder under the dataset type of its description, instead of an older one.

        Checkpoints of the latest 8 of a dataset type stay, as models may have been fitted with them.

        Args:
            weights: The weights of a trained encoder.
            figures: What its training measured; anything that JSON can hold, 256 KiB at most.

        Raises:
            EncoderError: Its description names no dataset type.
            EncoderError: The registry has no folder, the encoder is untrained, or the figures are too long.
            OSError: The folder cannot be written; what was registered stays.
        """
        if self.folder is None:
            raise EncoderError("shipped encoders cannot be replaced: name a folder for the registry")
        dataset_type = check_dataset_type(weights.description.dataset_type)
        if weights.description.training_steps < 1:
            raise EncoderError(f"the encoder for {dataset_type!r} is untrained; train it first")
        card = {
            "format": FORMAT,
            "dataset_type": dataset_type,
            "sha256": weights.sha256,
            "trained_steps": weights.description.training_steps,
            "figures": dict(figures or {}),
        }
        try:
            content = (json.dumps(card, indent=1, allow_nan=False) + "\n").encode()
        except (TypeError, ValueError) as error:
            raise EncoderError(f"the figures of the encoder for {dataset_type!r} are no JSON: {error}") from error
        if len(content) > _MAXIMUM_CARD_BYTES:
            raise EncoderError(
                f"the figures of the encoder for {dataset_type!r} exceed {_MAXIMUM_CARD_BYTES >> 10} KiB"
            )
        self.folder.mkdir(parents=True, exist_ok=True)
        checkpoint = self.folder / name_checkpoint(dataset_type, weights.sha256)
        write_durably(checkpoint, weights.to_bytes())
        write_durably(self.folder / f"{dataset_type}.json", content)
        self._forget_old(dataset_type, checkpoint)
        return self.get(dataset_type)

    def _forget_old(self, dataset_type: str, newest: Path) -> None:
        found = []
        for path in newest.parent.glob(f"{dataset_type}-*"):
            if path.suffix not in (SUFFIX, FORMER_ENCODER):
                continue
            if path != newest and re.fullmatch(_SHORT_DIGEST, path.stem[len(dataset_type) + 1 :]):
                with contextlib.suppress(FileNotFoundError):  # another process forgets, too
                    found.append((path.stat().st_mtime_ns, path))
        for _, path in sorted(found, reverse=True)[_KEPT_CHECKPOINTS - 1 :]:
            path.unlink(missing_ok=True)

    def _list_folders(self) -> Iterator[Path]:
        if self.folder is not None:
            yield self.folder
        yield self._shipped

    def _read_once(self, dataset_type: str, card: Path) -> RegisteredEncoder:
        for _ in range(_ATTEMPTS):
            try:
                found = card.stat()
                state = found.st_ino, found.st_mtime_ns, found.st_size
                with self._lock:
                    kept_state, kept = self._kept.get(card, (None, None))
                if kept is not None and kept_state == state:
                    return kept
                encoder = self._read(dataset_type, card)
            except FileNotFoundError:
                # Another process replaced the encoder and removed the checkpoint that the card named before.
                continue
            with self._lock:
                self._kept[card] = state, encoder
            return encoder
        raise EncoderError(f"{card}: its checkpoint is missing; train the encoder again or remove the card")

    def _read(self, dataset_type: str, path: Path) -> RegisteredEncoder:
        card = _read_card(path, dataset_type)
        checkpoint = path.parent / name_checkpoint(dataset_type, card["sha256"])
        weights = _read_checkpoint(checkpoint)
        if weights.sha256 != card["sha256"] or weights.description.dataset_type != dataset_type:
            raise EncoderError(
                f"{checkpoint} holds other weights than {path.name} says (sha256 {weights.sha256}, not "
                f"{card['sha256']}); restore it or train the encoder again"
            )
        return RegisteredEncoder(
            dataset_type,
            weights,
            weights.sha256,
            weights.description.training_steps,
            MappingProxyType(card["figures"]),
            path.parent == self._shipped,
        )


_ATTEMPTS = 10
_SHORT_DIGEST = r"[0-9a-f]{12}"


def name_checkpoint(dataset_type: str, sha256: str) -> str:
    """Name of the file with the weights of an encoder."""
    return f"{dataset_type}-{sha256[:12]}{SUFFIX}"


def _read_checkpoint(path: Path) -> EncoderWeights:
    if not path.exists() and path.with_suffix(FORMER_ENCODER).exists():
        path = path.with_suffix(FORMER_ENCODER)
    with path.open("rb") as file:
        content = file.read(_MAXIMUM_CHECKPOINT_BYTES + 1)
    try:
        return EncoderWeights.from_bytes(content)
    except EncoderError as error:
        raise EncoderError(f"{path}: {error}; restore it or train the encoder again") from error


def _list_dataset_types(folder: Path) -> Iterator[str]:
    if not folder.is_dir():
        return
    for path in folder.glob("*.json"):
        try:
            yield check_dataset_type(path.stem)
        except EncoderError:
            continue


def _read_card(path: Path, dataset_type: str) -> dict[str, Any]:
    with path.open("rb") as file:
        content = file.read(_MAXIMUM_CARD_BYTES + 1)
    try:
        card = json.loads(content) if len(content) <= _MAXIMUM_CARD_BYTES else None
    except (ValueError, RecursionError):
        card = None
    if not isinstance(card, dict) or card.get("format") != FORMAT:
        raise EncoderError(f"{path}: damaged, or no card of an encoder; restore it or remove it")
    sha256, figures = card.get("sha256"), card.get("figures")
    if (
        card.get("dataset_type") != dataset_type
        or not isinstance(sha256, str)
        or not _SHA256.fullmatch(sha256)
        or not isinstance(figures, dict)
    ):
        raise EncoderError(f"{path}: damaged, or the card of another encoder; restore it or remove it")
    return card
