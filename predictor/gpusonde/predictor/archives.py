"""Archives of models: a zip of one JSON document and raw arrays, without pickle, checked before use.

Arrays are little-endian bytes whose type and shape stand in the document: nothing has to be parsed, so nothing in a
foreign file can be made to run or to ask for more memory than the file is allowed to hold.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import struct
import zipfile
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

MANIFEST, ARRAYS = "manifest.json", "arrays.bin"
# A fixed time stamp: the same model gives the same file, byte for byte.
_EPOCH = (1980, 1, 1, 0, 0, 0)
_TYPES = frozenset({"<f8", "<f4", "<i4", "<i2"})

Arrays = Mapping[str, npt.NDArray[Any]]


PACKINGS = frozenset({zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED})
"""Ways of packing that are unpacked; other ones have errors and memory of their own."""


class ArchiveError(ValueError):
    """Bytes that are no archive, or a damaged one; the message says what is wrong."""


def pack(manifest: Mapping[str, Any], arrays: Arrays) -> tuple[bytes, str]:
    """The bytes of an archive, and a digest of its content.

    Args:
        manifest: What JSON can hold; the arrays' names, types and shapes and the digests are added.
        arrays: In the order in which they are stored.
    """
    content = b"".join(array.astype(array.dtype.newbyteorder("<")).tobytes() for array in arrays.values())
    whole = {
        **manifest,
        "arrays": [[name, array.dtype.newbyteorder("<").str, list(array.shape)] for name, array in arrays.items()],
        "arrays_sha256": hashlib.sha256(content).hexdigest(),
    }
    return seal(whole, content)


def seal(manifest: dict[str, Any], stored: bytes) -> tuple[bytes, str]:
    """The bytes of an archive of a document, which is given its digest, and of arrays' bytes; and that digest."""
    digest = _digest(manifest)
    manifest["sha256"] = digest
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        _add(archive, MANIFEST, json.dumps(manifest, indent=1, sort_keys=True).encode())
        _add(archive, ARRAYS, stored)
    return file.getvalue(), digest


def unpack(
    content: bytes, *, file_bytes: int, manifest_bytes: int, array_bytes: int
) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]], str]:
    """Read an archive.

    Args:
        content: Its bytes.
        file_bytes: Most that they may be.
        manifest_bytes: Most that the document may be.
        array_bytes: Most that the arrays may be.

    Returns:
        Document, arrays and digest.

    Raises:
        ArchiveError: It is none, is damaged, or is larger than allowed.
    """
    manifest, stored = opened(content, file_bytes=file_bytes, manifest_bytes=manifest_bytes, array_bytes=array_bytes)
    if not isinstance(manifest, dict):
        raise ArchiveError("its document is no table")
    digest = checked_digest(manifest, stored)
    try:
        return manifest, _arrays(manifest["arrays"], stored), digest
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        if isinstance(error, ArchiveError):
            raise
        raise ArchiveError(f"damaged: its arrays are not those that it lists ({error})") from error


def opened(content: bytes, *, file_bytes: int, manifest_bytes: int, array_bytes: int) -> tuple[Any, bytes]:
    """Document and arrays' bytes of an archive, both unchecked; see ``unpack``.

    Raises:
        ArchiveError: It is no archive, or is larger than allowed.
    """
    if len(content) > file_bytes:
        raise ArchiveError(f"larger than {file_bytes >> 20} MiB")
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            document = _member(archive, MANIFEST, manifest_bytes)
            stored = _member(archive, ARRAYS, array_bytes)
        return json.loads(document), stored
    except ArchiveError:
        raise
    except (
        zipfile.BadZipFile, zlib.error, EOFError, ValueError, NotImplementedError, RuntimeError, RecursionError,
        struct.error,
    ) as error:  # fmt: skip
        raise ArchiveError(f"no archive, or damaged ({error})") from error


def checked_digest(manifest: dict[str, Any], stored: bytes) -> str:
    """Take the digest out of a document and check that neither it nor the arrays' bytes were changed.

    Raises:
        ArchiveError: They were.
    """
    digest = manifest.pop("sha256", None)
    try:
        written = _digest(manifest)
    except RecursionError:
        raise ArchiveError("damaged: the manifest is nested too deeply") from None
    if digest != written:
        raise ArchiveError("damaged: the manifest does not match its checksum")
    if manifest.get("arrays_sha256") != hashlib.sha256(stored).hexdigest():
        raise ArchiveError("damaged: the arrays do not match their checksum")
    return str(digest)


def _arrays(listed: Any, stored: bytes) -> dict[str, npt.NDArray[Any]]:
    arrays: dict[str, npt.NDArray[Any]] = {}
    offset = 0
    for name, kind, shape in listed:
        if kind not in _TYPES or not 1 <= len(shape) <= 2 or not all(type(each) is int and each >= 0 for each in shape):
            raise ArchiveError(f"damaged: array {str(name)[:40]} is of type {str(kind)[:20]}, shape {str(shape)[:40]}")
        array = np.frombuffer(stored, dtype=kind, count=math.prod(shape), offset=offset).reshape(shape)
        offset += array.nbytes
        if not np.isfinite(array).all():
            raise ArchiveError(f"damaged: array {str(name)[:40]} holds what are no numbers")
        arrays[str(name)] = array.astype(array.dtype.newbyteorder("="))
    if offset != len(stored):
        raise ArchiveError(f"damaged: {len(stored) - offset} bytes behind the last array")
    return arrays


def _member(archive: zipfile.ZipFile, name: str, limit: int) -> bytes:
    try:
        info = archive.getinfo(name)
    except KeyError:
        raise ArchiveError(f"it holds no {name}") from None
    if info.compress_type not in PACKINGS:
        raise ArchiveError(f"{name} is packed in another way than its writer packs")
    if info.file_size > limit:
        raise ArchiveError(f"{name} unpacks to more than {limit >> 20} MiB")
    with archive.open(info) as member:
        content = member.read(limit + 1)
    if len(content) > limit:
        raise ArchiveError(f"{name} unpacks to more than {limit >> 20} MiB")
    return content


def _add(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    info = zipfile.ZipInfo(name, date_time=_EPOCH)
    info.compress_type = zipfile.ZIP_DEFLATED
    info.external_attr = 0o644 << 16
    archive.writestr(info, content)


def _digest(manifest: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
