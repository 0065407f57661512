"""Takes the program's JSON text out of a .pt2 archive: nothing else in the archive is ever read.

``torch.export.load`` unpickles what it finds beside the program, and unpickling runs any code. Here only the ZIP
directory and one text are looked at, so that weights, constants and sample inputs stay what they are: bytes.
"""

from __future__ import annotations

import os
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO, cast

from gpusonde.predictor.workload.graph.errors import (
    GraphError,
    GraphLimitError,
    MalformedGraphError,
    UnsupportedGraphError,
)
from gpusonde.predictor.workload.graph.from_pt2.pickles import attack_in
from gpusonde.predictor.workload.graph.limits import GraphLimits

# Since torch 2.7 "NAME/models/model.json"; before, this one at the top of the archive.
_OLD_PROGRAM = "serialized_exported_program.json"
_PROGRAM_FOLDER = "models"
_WEIGHTS_FOLDER = "data/weights"
_WEIGHTS_SUFFIX = "_weights_config.json"
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_ENCRYPTED = 0x1
_CHUNK = 1 << 20
# An entry of the directory takes 46 bytes and its name; zipfile reads all of them in one go before anybody can count.
_DIRECTORY_BYTES_PER_ENTRY = 128
_DAMAGE = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, ValueError, RuntimeError, NotImplementedError)


@dataclass(frozen=True)
class ProgramText:
    """What an archive holds of JSON.

    Attributes:
        program: The program, not yet parsed.
        weights: Where each weight lies, not yet parsed; empty if the archive does not say.
        name: Of the archive, as its folder is called; may be empty.
    """

    program: bytes
    weights: bytes
    name: str


def read_program(file: BinaryIO, limits: GraphLimits) -> ProgramText:
    """Read the JSON text of the program in an archive.

    Args:
        file: The archive; it can seek.
        limits: Sizes that are accepted.

    Raises:
        MalformedGraphError: No ZIP archive, a damaged one, one that repeats a name, one without a program, or one
            with a pickle in it that is plainly an attack.
        GraphLimitError: The archive, its directory or the program is too large, or packed too tightly.
        UnsupportedGraphError: Several programs.
    """
    limits.check_size("the archive", file.seek(0, os.SEEK_END), limits.archive_bytes)
    with _archive(file, limits) as archive:
        entries = archive.infolist()
        limits.check_count("files in the archive", len(entries), limits.archive_entries)
        by_name = {each.filename: each for each in entries}
        if len(by_name) < len(entries):
            # Which one counts depends on who reads.
            raise MalformedGraphError("the archive holds two files of the same name")
        program = _program(entries)
        attack = attack_in(archive)
        if attack is not None:
            raise MalformedGraphError(
                f"the archive holds an attack: {attack} if somebody loaded it with torch. Nothing of it was run"
            )
        folder, _, file_name = program.filename.rpartition(f"{_PROGRAM_FOLDER}/")
        weights = by_name.get(f"{folder}{_WEIGHTS_FOLDER}/{file_name.removesuffix('.json')}{_WEIGHTS_SUFFIX}")
        return ProgramText(
            _read(archive, program, limits),
            b"" if weights is None else _read(archive, weights, limits),
            folder.strip("/"),
        )


@contextmanager
def _archive(file: BinaryIO, limits: GraphLimits) -> Iterator[zipfile.ZipFile]:
    bounded = _BoundedReads(file, max(limits.archive_entries * _DIRECTORY_BYTES_PER_ENTRY, _CHUNK))
    try:
        with zipfile.ZipFile(cast("BinaryIO", bounded)) as archive:
            yield archive
    except GraphError:
        raise
    except _DAMAGE:
        raise MalformedGraphError("no ZIP archive, or a damaged one") from None


def _program(entries: list[zipfile.ZipInfo]) -> zipfile.ZipInfo:
    found = [each for each in entries if _is_program(each.filename.split("/"))]
    found = found or [each for each in entries if each.filename.rpartition("/")[2] == _OLD_PROGRAM]
    if len(found) > 1:
        raise UnsupportedGraphError(f"the archive holds {len(found)} programs: give one with a single one")
    if not found:
        hint = "; files of torch.save and of TorchScript hold pickled code and are not read"
        raise MalformedGraphError("the archive holds no exported program" + (hint if _is_pickled(entries) else ""))
    return found[0]


def _is_program(path: list[str]) -> bool:
    return len(path) in (2, 3) and path[-2] == _PROGRAM_FOLDER and path[-1].endswith(".json")


def _is_pickled(entries: list[zipfile.ZipInfo]) -> bool:
    return any(each.filename.endswith("data.pkl") for each in entries)


def _read(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, limits: GraphLimits) -> bytes:
    limits.check_size("JSON text in the archive", entry.file_size, limits.program_bytes)
    if entry.compress_type not in _METHODS or entry.flag_bits & _ENCRYPTED:
        raise MalformedGraphError("JSON text in the archive is encrypted, or packed in a way that torch does not use")
    if entry.file_size > limits.compression_ratio * max(entry.compress_size, 1):
        raise GraphLimitError(
            f"JSON text in the archive unpacks to more than {limits.compression_ratio} times its packed size"
        )
    text = bytearray()
    with archive.open(entry) as packed:
        while chunk := packed.read(_CHUNK):
            text += chunk
            # The size that the directory gives is only a claim.
            limits.check_size("JSON text in the archive", len(text), limits.program_bytes)
    return bytes(text)


class _BoundedReads:
    """A file of which nobody reads more than ``most`` bytes at once."""

    def __init__(self, file: BinaryIO, most: int) -> None:
        self._file = file
        self._most = most

    def read(self, size: int = -1) -> bytes:
        if size < 0:
            here = self._file.tell()
            size = self._file.seek(0, os.SEEK_END) - here
            self._file.seek(here)
        if size > self._most:
            raise GraphLimitError(f"the archive's directory has {size} bytes: at most {self._most} are accepted")
        return self._file.read(size)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def seekable(self) -> bool:
        return True

    def close(self) -> None:
        """The file belongs to the caller."""
