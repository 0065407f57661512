"""Looks for attacks in the pickles of a .pt2 archive, without unpickling any.

Nothing of the safety here rests on it: no pickle is loaded, whatever is in it. But an archive with a program of its own
in its sample inputs is meant to run on somebody's machine, and whoever handed it in wants to know.
"""

from __future__ import annotations

import io
import pickletools
import zipfile
from collections.abc import Iterator

_MOST_BYTES = 64 << 10
_MOST_FILES = 1000
_MOST_PICKLES = 16
_PROTOCOL = b"\x80"
_ARCHIVE = b"PK\x03\x04"
_SUFFIXES = (".pt", ".pkl", ".pickle")
# What torch unpacks. Others could hurt nobody, and their decoders take what memory a stranger says.
_METHODS = frozenset({zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED})
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


def attack_in(archive: zipfile.ZipFile) -> str | None:
    """Find a pickle that would call into the operating system or the interpreter.

    Args:
        archive: The .pt2 archive.

    Returns:
        The file in the archive and what it would import; None if none was seen. Large files are not looked at.
    """
    looked_at = 0
    for entry in archive.infolist()[:_MOST_FILES]:
        for pickled in _pickles_in(archive, entry):
            imported = _dangerous_import(pickled)
            if imported is not None:
                return f"{entry.filename[:100]!r} would call {imported[:100]!r}"
            looked_at += 1
            if looked_at >= _MOST_PICKLES:
                return None
    return None


def _pickles_in(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> Iterator[bytes]:
    if not _is_small(entry):
        return
    with archive.open(entry) as file:
        beginning = file.read(4)
        if beginning == _ARCHIVE:
            yield from _inner_pickles(beginning + file.read(_MOST_BYTES))
        elif beginning[:1] == _PROTOCOL or entry.filename.endswith(_SUFFIXES):
            yield beginning + file.read(_MOST_BYTES)


def _inner_pickles(content: bytes) -> Iterator[bytes]:
    """A file of torch.save: an archive with a pickle in it."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as inner:
            for entry in inner.infolist():
                if entry.filename.endswith(_SUFFIXES) and _is_small(entry):
                    yield inner.read(entry)
    except (zipfile.BadZipFile, ValueError, RuntimeError, NotImplementedError):
        return


def _is_small(entry: zipfile.ZipInfo) -> bool:
    """Whether it is looked into."""
    is_open = entry.compress_type in _METHODS and not entry.flag_bits & _ENCRYPTED
    return is_open and 0 < entry.file_size <= _MOST_BYTES


def _dangerous_import(pickled: bytes) -> str | None:
    """What a pickle would import that it has no business with."""
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
