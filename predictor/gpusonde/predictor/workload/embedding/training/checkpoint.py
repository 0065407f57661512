"""The file that a training goes on from: a JSON document and arrays in one ``.npz``, without pickle."""

from __future__ import annotations

import errno
import io
import json
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gpusonde.predictor.archives import PACKINGS
from gpusonde.predictor.files import replace_file

FORMAT = "gpusonde.training_checkpoint/1"

_DOCUMENT = "document"
_MAXIMUM_BYTES = 1 << 30
_MAXIMUM_DOCUMENT_BYTES = 256 << 20

Arrays = Mapping[str, npt.NDArray[Any]]


class CheckpointError(ValueError):
    """A checkpoint that training cannot go on from; the message says why and what to do."""


def write_checkpoint(path: Path, document: Mapping[str, Any], arrays: Arrays) -> None:
    """Write a checkpoint; an older one is replaced once the new one is complete and on disk.

    Args:
        path: The file.
        document: What JSON can hold.
        arrays: Arrays of numbers by name.

    Raises:
        ValueError: An array holds objects.
        OSError: It cannot be written; the old file stays.
    """
    content = json.dumps({"format": FORMAT, **document}, sort_keys=True).encode()
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in {_DOCUMENT: np.frombuffer(content, np.uint8), **arrays}.items():
            member = io.BytesIO()
            np.lib.format.write_array(member, np.asarray(array), allow_pickle=False)
            archive.writestr(f"{name}.npy", member.getvalue())
    replace_file(path, file.getvalue())


def read_checkpoint(path: Path) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
    """Read a checkpoint. Nothing in it is executed.

    Returns:
        Document and arrays.

    Raises:
        CheckpointError: It is no checkpoint, or is damaged.
        FileNotFoundError: There is none.
        OSError: It cannot be read.
    """
    try:
        _check_sizes(path)
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        document = json.loads(arrays.pop(_DOCUMENT).tobytes())
    except (
        zipfile.BadZipFile, zlib.error, struct.error, EOFError, KeyError, ValueError, TypeError, AttributeError,
        RuntimeError, RecursionError, NotImplementedError, OverflowError, MemoryError, SyntaxError, tokenize.TokenError,
    ) as error:  # fmt: skip
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{path}: no checkpoint of a training, or damaged ({error}); remove it") from error
    except OSError as error:
        # A member is said to lie before the beginning of the file.
        if error.errno != errno.EINVAL:
            raise
        raise CheckpointError(f"{path}: damaged; remove it") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise CheckpointError(f"{path}: no checkpoint of a training, or of another version; remove it")
    return document, arrays


def _check_sizes(path: Path) -> None:
    """Refuse an archive that unpacks to more than any training writes."""
    with zipfile.ZipFile(path) as archive:
        sizes = {each.filename: each.file_size for each in archive.infolist()}
        packings = {each.compress_type for each in archive.infolist()}
    if not packings <= PACKINGS:
        raise CheckpointError(f"{path}: packed in another way than checkpoints are: no checkpoint; remove it")
    if sum(sizes.values()) > _MAXIMUM_BYTES or sizes.get(f"{_DOCUMENT}.npy", 0) > _MAXIMUM_DOCUMENT_BYTES:
        raise CheckpointError(f"{path}: unpacks to more than {_MAXIMUM_BYTES >> 20} MiB: no checkpoint; remove it")
