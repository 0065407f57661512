"""Errors as the user of the command sees them: one clear line each, and one JSON object under ``--json``.

Every error of ``gpusonde.errors`` says what happened and what to do next: it is printed as it is. So are the operating
system's and gRPC's, translated into words. Anything else is a fault of ours and says so.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypedDict

from gpusonde.cli.output import JsonKey
from gpusonde.documents import NOT_A_KEY
from gpusonde.errors import CommandError, GpusondeError, MissingExtraError

# The extra that brings a module; a bare agent host has none of them.
_EXTRAS = {
    **dict.fromkeys(("scipy", "safetensors", "rich", "textual"), "cli"),
    "matplotlib": "plot",
    **dict.fromkeys(("pandas", "sklearn", "catboost", "pyarrow", "grpc_health", "grpc_reflection"), "collector"),
    "torch": "torch",
}


# Commands that need no more than "cli".
_SMALL_COMMANDS = frozenset({"detect", "predict", "plan", "monitor", "top", "report", "workload"})


class ErrorPayload(TypedDict):
    """What a command that fails prints instead of its own object."""

    error: Annotated[dict[str, Any], JsonKey(holds="gpusonde.cli.errors.ErrorReport")]


@dataclass(frozen=True)
class ErrorReport:
    """One error as the user sees it.

    Attributes:
        type: Name of the exception's class.
        message: What happened and what to do next; one line.
        file: The file at fault, or None.
        line: Its line, counted from 1, or None.
        field: The column, key or field at fault, or None.
        is_bug: Whether gpusonde did not expect this.
    """

    type: str
    message: str
    file: str | None = None
    line: int | None = None
    field: str | None = None
    is_bug: Annotated[bool, NOT_A_KEY] = False

    def payload(self) -> ErrorPayload:
        """The object printed under ``--json``."""
        return {"error": {name: value for name, value in vars(self).items() if name != "is_bug"}}


def describe(error: BaseException, command: str) -> ErrorReport:
    """Say what an exception means to the user of ``gpusonde COMMAND``."""
    name = type(error).__name__
    if isinstance(error, ModuleNotFoundError):
        root = (error.name or "").partition(".")[0]
        extra = _EXTRAS.get(root)
        if extra is not None:
            if extra == "cli" and command not in _SMALL_COMMANDS:
                extra = "collector"
            return ErrorReport("MissingExtraError", str(MissingExtraError(root, command, extra)))
    if isinstance(error, GpusondeError):
        return ErrorReport(
            name,
            one_line(str(error)),
            file=None if error.path is None else str(error.path),
            line=error.line if error.line is not None and error.line > 0 else None,
            field=error.field or None,
        )
    if isinstance(error, OSError):
        return ErrorReport(
            name, _describe_os_error(error), file=None if error.filename is None else str(error.filename)
        )
    grpc = sys.modules.get("grpc")
    if grpc is not None and isinstance(error, grpc.RpcError):
        return ErrorReport(name, _describe_rpc_error(error))
    if isinstance(error, MemoryError):
        return ErrorReport(name, "out of memory")
    return ErrorReport(name, one_line(f"{name}: {error}"), is_bug=True)


@contextlib.contextmanager
def error_context(path: Path) -> Iterator[None]:
    """Name the file in errors about its content, which are raised by parts that do not know where it came from."""
    try:
        yield
    except (CommandError, ValueError) as error:
        if isinstance(error, GpusondeError) and error.path is None:
            from gpusonde.telemetry.readers.prometheus import without_password

            error.path = without_password(path)
            if error.path not in str(error):
                error.args = (f"{error.path}: {error}",)
        raise


def check_writable(*paths: Path | None) -> None:
    """Refuse places where no file can be written, before minutes of work whose result would be lost; None is none.

    Raises:
        CommandError: Its folder is not there or takes no files, or it is a folder itself.
    """
    for path in filter(None, paths):
        folder = path.parent
        if not folder.is_dir():
            raise CommandError(f"{path}: there is no folder {folder}; make it first")
        if path.is_dir():
            raise CommandError(f"{path}: is a folder; name a file")
        if not path.exists() and not os.access(folder, os.W_OK):
            raise CommandError(f"{path}: {folder} takes no files of yours; name another folder")


def one_line(text: str) -> str:
    """Fold a message into one line."""
    return " ".join(text.split())


def _describe_os_error(error: OSError) -> str:
    reason = error.strerror or str(error) or type(error).__name__
    return f"{error.filename}: {reason}" if error.filename else one_line(reason)


def _describe_rpc_error(error: Any) -> str:
    code = getattr(error, "code", None)
    status = code().name if callable(code) and code() is not None else "UNKNOWN"
    details = getattr(error, "details", None)
    text = one_line((details() if callable(details) else None) or str(error))
    if status == "UNAVAILABLE":
        return f"the collector cannot be reached ({text}); is it running, and is --collector its address?"
    if status == "DEADLINE_EXCEEDED":
        return f"the collector did not answer in time ({text}); try again, or look at its log"
    return f"the collector refused ({status}): {text}"
