"""Model files of releases before safetensors: zip archives, read for one more release.

Models were a JSON document and all arrays' bytes in one member each. The document alone is read: it says that the model
has other features and is to be fitted again. Encoders and checkpoints of trainings were ``.npz`` archives with a
document among the arrays. This module goes with the release after the next.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from gpusonde.errors import ModelError

#: How the names of models, and of encoders and checkpoints, ended.
FORMER_MODEL, FORMER_ENCODER = ".zip", ".npz"

_MANIFEST, _ARRAYS = "manifest.json", "arrays.bin"
_DOCUMENTS = ("description.npy", "document.npy")
_MOST_MEMBERS = 10_000
# Other ways of packing have errors and memory of their own.
_PACKINGS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_TYPES = frozenset({"<f8", "<f4", "<i8", "<i4", "<i2", "|u1", "|b1"})
# What zipfile and NumPy raise; the latter hands a header that is no Python to the tokenizer.
_DAMAGED = (
    zipfile.BadZipFile, zlib.error, struct.error, EOFError, KeyError, ValueError, TypeError, AttributeError, OSError,
    OverflowError, RuntimeError, RecursionError, NotImplementedError, MemoryError, SyntaxError, tokenize.TokenError,
)  # fmt: skip

Content = tuple[dict[str, Any], dict[str, npt.NDArray[Any]], str]


def decode_zip(content: bytes, *, most_bytes: int) -> Content:
    """Read document, arrays and digest (empty for an ``.npz``).

    Args:
        content: The bytes of the file.
        most_bytes: Most that it may unpack to.

    Raises:
        ModelError: It is no such file, is damaged, or unpacks to more.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = dict(_read_members(archive, most_bytes))
        return _decode_model(members) if _MANIFEST in members else _decode_npz(members)
    except ModelError:
        raise
    except _DAMAGED as error:
        raise ModelError(f"not a model file, or damaged ({str(error)[:200]})") from error


def _read_members(archive: zipfile.ZipFile, most_bytes: int) -> Iterator[tuple[str, bytes]]:
    left = most_bytes
    for info in archive.infolist()[:_MOST_MEMBERS]:
        if info.compress_type not in _PACKINGS:
            raise ModelError(f"{info.filename[:40]} is packed in another way than its writer packed")
        with archive.open(info) as member:
            content = member.read(left + 1)
        left -= len(content)
        if left < 0:
            raise ModelError(f"it unpacks to more than {most_bytes >> 20} MiB")
        yield info.filename, content


def _decode_model(members: dict[str, bytes]) -> Content:
    document, stored = json.loads(members[_MANIFEST]), members[_ARRAYS]
    digest = document.pop("sha256")
    written = hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()
    if digest != written or document.pop("arrays_sha256") != hashlib.sha256(stored).hexdigest():
        raise ModelError("damaged: it does not match its checksum")
    return document, {}, str(digest)


def _decode_npz(members: dict[str, bytes]) -> Content:
    arrays = {name: _decode_npy(content) for name, content in members.items()}
    name = next((name for name in _DOCUMENTS if name in arrays), None)
    document = None if name is None else json.loads(arrays.pop(name).tobytes())
    if not isinstance(document, dict):
        raise ModelError("damaged: it holds no document")
    return document, {name.removesuffix(".npy"): array for name, array in arrays.items()}, ""


def _decode_npy(content: bytes) -> npt.NDArray[Any]:
    file = io.BytesIO(content)
    if np.lib.format.read_magic(file) != (1, 0):
        raise ModelError("damaged: an array of another version")
    shape, fortran_order, dtype = np.lib.format.read_array_header_1_0(file)
    data = content[file.tell() :]
    # Before NumPy is asked for an array: its size is what there is, whatever the header says.
    if dtype.str not in _TYPES or min(shape, default=0) < 0 or len(data) != dtype.itemsize * math.prod(shape):
        raise ModelError("damaged: an array is not what its header says")
    array = np.frombuffer(data, dtype=dtype)
    return array.reshape(shape[::-1]).T if fortran_order else array.reshape(shape)
