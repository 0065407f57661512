"""Takes the program's JSON text out of a .pt2 archive, and looks for attacks in its pickles without unpickling any.

``torch.export.load`` unpickles what it finds beside the program, and unpickling runs any code. Here only the ZIP
directory and one text are read, so that weights, constants and sample inputs stay what they are: bytes. Nothing of the
safety here rests on the search for attacks, since no pickle is loaded, whatever is in it. But an archive with a program
of its own in its sample inputs is meant to run on somebody's machine, and whoever handed it in wants to know.
"""

from __future__ import annotations

import io
import os
import pickletools
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO, cast

from gpusonde.errors import GraphError, GraphLimitError, MalformedGraphError, UnsupportedGraphError
from gpusonde.predictor.workload.graph.limits import GraphLimits

_MOST_BYTES = 64 << 10
_MOST_FILES = 1000
_MOST_PICKLES = 16
_PROTOCOL = b"\x80"
_ARCHIVE = b"PK\x03\x04"
_SUFFIXES = (".pt", ".pkl", ".pickle")
# What torch unpacks. Others could hurt nobody, and their decoders take what memory a stranger says.
_PICKLE_METHODS = frozenset({zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED})
_ENCRYPTED = 0x1
# Modules that no tensor and no container of tensors is made of.
_DANGEROUS = frozenset(
    {
        "asyncio", "code", "commands", "ctypes", "importlib", "multiprocessing", "nt", "os", "pickle", "platform",
        "posix", "pty", "runpy", "shutil", "signal", "socket", "subprocess", "sys", "threading", "timeit", "urllib",
        "webbrowser",
    }
)  # fmt: skip
_BUILTINS = frozenset({"builtins", "__builtin__"})
_DANGEROUS_BUILTINS = frozenset({"__import__", "compile", "eval", "exec", "getattr", "open", "setattr"})


def find_attack(archive: zipfile.ZipFile) -> str | None:
    """Find a pickle that would call into the operating system or the interpreter.

    Args:
        archive: The .pt2 archive.

    Returns:
        The file in the archive and what it would import; None if none was seen. Large files are not looked at.
    """
    looked_at = 0
    for entry in archive.infolist()[:_MOST_FILES]:
        for pickled in _find_pickles(archive, entry):
            imported = _find_dangerous_import(pickled)
            if imported is not None:
                return f"{entry.filename[:100]!r} would call {imported[:100]!r}"
            looked_at += 1
            if looked_at >= _MOST_PICKLES:
                return None
    return None


def _find_pickles(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> Iterator[bytes]:
    if not _is_small(entry):
        return
    with archive.open(entry) as file:
        beginning = file.read(4)
        if beginning == _ARCHIVE:
            yield from _find_inner_pickles(beginning + file.read(_MOST_BYTES))
        elif beginning[:1] == _PROTOCOL or entry.filename.endswith(_SUFFIXES):
            yield beginning + file.read(_MOST_BYTES)


def _find_inner_pickles(content: bytes) -> Iterator[bytes]:
    """Yield the pickle in a file of torch.save, which is an archive."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as inner:
            for entry in inner.infolist():
                if entry.filename.endswith(_SUFFIXES) and _is_small(entry):
                    yield inner.read(entry)
    except (zipfile.BadZipFile, ValueError, RuntimeError, NotImplementedError):
        return


def _is_small(entry: zipfile.ZipInfo) -> bool:
    """Tell whether it is looked into."""
    is_open = entry.compress_type in _PICKLE_METHODS and not entry.flag_bits & _ENCRYPTED
    return is_open and 0 < entry.file_size <= _MOST_BYTES


def _find_dangerous_import(pickled: bytes) -> str | None:
    """Return what a pickle would import that it has no business with."""
    pushed: list[object] = [None, None]
    remembered: dict[object, object] = {}
    try:
        for operation, argument, _ in pickletools.genops(pickled):
            name = operation.name
            if name in {"GLOBAL", "INST"}:
                module, _, attribute = str(argument).partition(" ")
            elif name == "STACK_GLOBAL":
                module, attribute = str(pushed[-2]), str(pushed[-1])
            else:
                if "UNICODE" in name or "STRING" in name:
                    pushed.append(argument)
                elif name in {"BINGET", "LONG_BINGET", "GET"}:
                    pushed.append(remembered.get(argument))
                elif name == "MEMOIZE":
                    remembered[len(remembered)] = pushed[-1]
                elif name in {"BINPUT", "LONG_BINPUT", "PUT"}:
                    remembered[argument] = pushed[-1]
                continue
            if module.partition(".")[0] in _DANGEROUS or (module in _BUILTINS and attribute in _DANGEROUS_BUILTINS):
                return f"{module}.{attribute}"
    except (ValueError, OverflowError, UnicodeError, IndexError, KeyError):
        # No pickle: nobody else can load it either.
        return None
    return None


# Since torch 2.7 "NAME/models/model.json"; before, this one at the top of the archive.
_OLD_PROGRAM = "serialized_exported_program.json"
_PROGRAM_FOLDER = "models"
_WEIGHTS_FOLDER = "data/weights"
_WEIGHTS_SUFFIX = "_weights_config.json"
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
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
    with _open_archive(file, limits) as archive:
        entries = archive.infolist()
        limits.check_count("files in the archive", len(entries), limits.archive_entries)
        by_name = {each.filename: each for each in entries}
        if len(by_name) < len(entries):
            # Which one counts depends on who reads.
            raise MalformedGraphError("the archive holds two files of the same name")
        program = _find_program(entries)
        attack = find_attack(archive)
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
def _open_archive(file: BinaryIO, limits: GraphLimits) -> Iterator[zipfile.ZipFile]:
    bounded = _BoundedReads(file, max(limits.archive_entries * _DIRECTORY_BYTES_PER_ENTRY, _CHUNK))
    try:
        with zipfile.ZipFile(cast("BinaryIO", bounded)) as archive:
            yield archive
    except GraphError:
        raise
    except _DAMAGE:
        raise MalformedGraphError("no ZIP archive, or a damaged one") from None


def _find_program(entries: list[zipfile.ZipInfo]) -> zipfile.ZipInfo:
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
        """Do nothing: the file belongs to the caller."""
