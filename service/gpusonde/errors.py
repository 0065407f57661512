"""The errors of gpusonde, all of them, as one tree.

A class stands here if somebody catches it by name or a command prints its name; what is only reported is raised as the
class above. Every message says what happened and what to do next, so that the command prints it as it is; an exception
that is not one of these is a fault of ours and says so. Interruptions that are no errors (a source that has ended, a
search out of time) stay private to their modules.

    GpusondeError
    ├── UsageError                  the command line
    ├── CommandError                a command found it out itself
    │   └── MissingExtraError       a distribution is not installed
    ├── ConfigError                 a configuration key, a quantity
    │   └── TlsError                certificates and keys
    ├── CatalogError                GPU specifications, offers, prices
    │   └── UnknownGpuError
    ├── UnknownMetricError          names that the metric catalogue lacks
    ├── TotalEpochsError            how many epochs a job is said to have
    │   └── TotalPassedError
    ├── TraceError                  traces and trace files
    │   └── TraceFormatError
    ├── SourceError                 where an agent samples, and who tells it of jobs
    │   ├── SourceUnavailableError
    │   └── DriverCallError         a call of NVML or DCGM, with its code
    │       ├── CallRefusedError
    │       ├── GpuLostError
    │       └── EngineLostError
    ├── SpoolError                  what an agent keeps
    ├── StoreError                  what a collector keeps
    │   ├── StoreFullError
    │   └── StoreCorruptError
    ├── DirectoryLockedError        another process has it
    ├── WireError                   a record that cannot be taken: its field, its gRPC status
    ├── CollectorError              what a collector answers, as its clients see it
    ├── RequestError                a question that a service refuses, with its gRPC status
    ├── ChildError                  a process of ours that answers questions
    │   ├── ChildBusyError
    │   ├── ChildTimeoutError
    │   ├── ChildLostError
    │   └── ChildFaultError
    ├── TableError                  tables of runs, timings, measurements: file, line, column
    ├── MeasurementError            what cannot be measured, or was measured and cannot be: of a run, a job, a network
    ├── ModelError                  fitted models
    │   ├── ModelFileError
    │   │   └── MissingEncoderError its encoder is not at hand
    │   └── TooFewRunsError
    ├── GraphError                  graphs of networks
    │   ├── MalformedGraphError
    │   ├── GraphLimitError
    │   └── UnsupportedGraphError
    │       └── DataDependentGraphError
    ├── EncoderError                encoders of graphs, their training
    │   └── UnknownEncoderError
    ├── DocumentError               problem, job, plan files: the key at fault
    ├── ProblemError                figures for planning that mean nothing: offers, plans, timed steps, allreduces
    └── CloudError                  a cloud that does not do what it was told
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence
    from pathlib import Path


class GpusondeError(Exception):
    """Whatever gpusonde raises for its callers.

    Attributes:
        path: The file at fault, or None.
        line: Its line, counted from 1, or None.
        field: The column, key or metric at fault, or None.
    """

    path: str | Path | None = None
    line: int | None = None
    field: str | None = None


_LONGEST_SHOWN = 80


def shown(text: str) -> str:
    """Quote what a file or a user gave, for a message: control characters escaped, long text cut."""
    return repr(text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}...")


class UsageError(GpusondeError):
    """A command line that cannot be understood; exit code 2.

    Attributes:
        usage: The usage line of the subcommand at fault, or empty.
    """

    def __init__(self, message: str, usage: str = "") -> None:
        """Keep the usage line beside the message."""
        self.usage = usage
        super().__init__(message)


class CommandError(GpusondeError):
    """A failure that the command itself found."""


class MissingExtraError(CommandError):
    """A subcommand needs a distribution that is not installed."""

    def __init__(self, module: str, command: str, extra: str = "collector") -> None:
        """Name the extra that brings ``module``."""
        super().__init__(
            f"'gpusonde {command}' needs {module}, which is not installed: run pip install 'gpusonde[{extra}]'"
        )


class CatalogError(GpusondeError, ValueError):
    """Data of the catalogue that cannot be used, or a question that it has no answer to; names file, entry and key."""


class UnknownGpuError(CatalogError, LookupError):
    """A name for which the catalogue holds no GPU.

    Attributes:
        requested: The name as given.
        nearest: Canonical names that are spelled most alike, best first; may be empty.
        reason: Why the name cannot be taken for a GPU of the catalogue, where more is known than that it is absent.
    """

    def __init__(self, requested: str, nearest: Sequence[str] = (), reason: str = "") -> None:
        """Keep the name, the nearest names and the reason."""
        self.requested = requested
        self.nearest = tuple(nearest)
        self.reason = reason
        super().__init__(requested)

    def __str__(self) -> str:
        message = f"unknown GPU {shown(self.requested)}"
        if self.reason:
            message = f"{shown(self.requested)} is {self.reason}; name a whole NVIDIA GPU"
        if self.nearest:
            message += f"; nearest: {', '.join(self.nearest)}"
        return message + " ('gpusonde gpus' lists all)"


class TraceError(GpusondeError, ValueError):
    """Ticks that are no trace, or a choice of metrics or GPUs that a trace file does not have."""

    def __init__(self, message: str, *, field: str | None = None) -> None:
        """Keep the metric at fault, where it is one."""
        self.field = field
        super().__init__(message)


class TraceFormatError(TraceError):
    """A file that is not a trace, or a place in it that cannot be read.

    Attributes:
        path: The file.
        line: Line in a text file, or row in a Parquet file, counted from 1; None when the whole file is meant.
        field: Name of the column, or None.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        what: str,
        *,
        line: int | None = None,
        field: str | None = None,
        place: str = "",
    ) -> None:
        """Keep the place; ``place`` is the word before the number, such as ``"row "`` (nothing for a line)."""
        self.path = str(path)
        self.line = line
        position = "" if line is None else f":{place}{line}"
        column = "" if field is None else f"field {shown(field)}: "
        super().__init__(f"{self.path}{position}: {column}{what}", field=field)


class TotalEpochsError(GpusondeError, ValueError):
    """A total number of epochs that the run has gone beyond, or too few epochs are known to say anything."""


class TotalPassedError(TotalEpochsError):
    """A total number of epochs that the run has gone beyond."""


class UnknownMetricError(GpusondeError, KeyError):
    """A metric name that the catalogue does not hold."""

    def __init__(self, name: str, nearest: tuple[str, ...]) -> None:
        """Keep the offending name and the nearest known ones."""
        self.name = self.field = name
        self.nearest = nearest
        super().__init__(name)

    def __str__(self) -> str:
        hint = f"; did you mean {', '.join(self.nearest)}?" if self.nearest else ""
        return f"unknown metric {shown(self.name)}{hint} ('gpusonde metrics' lists them all)"


class DirectoryLockedError(GpusondeError):
    """Another process holds the directory."""

    def __init__(self, message: str, path: Path) -> None:
        """Keep the directory beside the message."""
        self.path = path
        super().__init__(message)


class WireError(GpusondeError, ValueError):
    """A record or a greeting that must not be taken.

    Attributes:
        field: Path of the field at fault, for example ``batch.blocks[2].values``.
        problem: What is wrong with it.
        status: Name of the gRPC status that it is refused with: ``RESOURCE_EXHAUSTED`` above the announced size,
            ``FAILED_PRECONDITION`` for GPUs without an inventory.
    """

    field: str

    def __init__(self, field: str, problem: str, *, status: str = "INVALID_ARGUMENT") -> None:
        """Keep the field, what is wrong with it, and the status."""
        self.field = field
        self.problem = problem
        self.status = status
        super().__init__(f"field '{field}': {problem}")


class ChildError(GpusondeError):
    """A process that answers questions has not answered one."""


class ChildBusyError(ChildError):
    """Too many questions wait for an answer already."""


class ChildTimeoutError(ChildError):
    """An answer took longer than it may; its process was ended."""


class ChildLostError(ChildError):
    """The process died over a question, as it does without memory."""


class ChildFaultError(ChildError):
    """What answers has raised; the message is its exception, and the process goes on."""


class StoreError(GpusondeError, RuntimeError):
    """The store of a collector cannot do what was asked."""


class StoreFullError(StoreError):
    """There is no room on the disk; nothing of what was being written counts as stored."""


class StoreCorruptError(StoreError):
    """A file of the store does not hold what was written to it."""

    path: Path

    def __init__(
        self, path: Path, problem: str, remedy: str = "restore the file from a backup, or accept its samples' loss"
    ) -> None:
        """Keep the file; ``problem`` says what is wrong with it, ``remedy`` what to do."""
        self.path = path
        super().__init__(f"{path}: {problem}; {remedy}")


class CollectorError(GpusondeError, RuntimeError):
    """A collector that cannot be reached, or a question that it cannot answer.

    Attributes:
        code: Name of the gRPC status, for example ``NOT_FOUND``.
        details: The collector's own words.
    """

    def __init__(self, code: str, details: str, advice: str) -> None:
        """Keep status and words; ``advice`` says what to do."""
        self.code = code
        self.details = details
        super().__init__(f"{details}; {advice}" if advice else details)


class RequestError(GpusondeError):
    """A question, a stream or a greeting that a service refuses.

    Attributes:
        status: Name of its gRPC status, for example ``NOT_FOUND``.
        reason: Name that it is counted under, or empty.
    """

    def __init__(self, status: str, message: str, *, reason: str = "") -> None:
        """Keep the status beside the message."""
        self.status = status
        self.reason = reason
        super().__init__(message)


class ModelError(GpusondeError, ValueError):
    """A model that cannot be used or is not fitted yet, or figures that none can be fitted to."""


class ModelFileError(ModelError):
    """A file that holds no model, is damaged, or was written by another version."""

    def __init__(self, path: str | Path, problem: str) -> None:
        """Keep the path; ``problem`` says what is wrong and what to do."""
        self.path = str(path)
        super().__init__(f"{path}: {problem}")


class MissingEncoderError(ModelFileError):
    """A model whose columns come from an encoder that is not at hand."""


class TooFewRunsError(ModelError):
    """A table with too few runs to fit a model on, or for what it is to be tested by."""


class MeasurementError(GpusondeError, ValueError):
    """A job or a network that cannot be measured, or a run's figures that no prediction can be made from.

    A function of the user's that is not there, nothing to train, a batch that does not fit, too few processes; an
    impossible latency or distribution, an unknown metric.
    """


_LONGEST_PROBLEM = 2000


class ConfigError(GpusondeError, ValueError):
    """A setting that cannot be used; the message names where it stands and what would be right.

    Attributes:
        path: The configuration file at fault, or None.
        field: The key as ``section.name``, or the section; None when none is meant.
        on_command_line: Whether the command line is at fault.
    """

    def __init__(self, problem: str, *, origin: str | Path = "", field: str | None = None) -> None:
        """Keep the place; ``origin`` is the file's path, or the words for another origin."""
        self.path = None if isinstance(origin, str) else str(origin)
        self.field = field
        self.on_command_line = origin == "command line"
        # It repeats what is wrong, which may be a whole file that got into the wrong place.
        if len(problem) > _LONGEST_PROBLEM:
            problem = f"{problem[: _LONGEST_PROBLEM // 2]} ... {problem[-_LONGEST_PROBLEM // 2 :]}"
        super().__init__(f"{origin}: {problem}" if str(origin) else problem)


class GraphError(GpusondeError, ValueError):
    """A network's graph that cannot be had, or used."""


class MalformedGraphError(GraphError):
    """The input is not what its format says, or describes no directed acyclic graph of operations."""


class GraphLimitError(GraphError):
    """The input is larger than what is accepted."""


class UnsupportedGraphError(GraphError):
    """The input is sound, but its operations cannot be turned into a graph."""


class DataDependentGraphError(UnsupportedGraphError):
    """Which operations run depends on the values of the data: there is no single graph."""


class EncoderError(GpusondeError, ValueError):
    """An encoder of graphs that cannot be had, read, trained or queued to be trained."""


class UnknownEncoderError(EncoderError):
    """No encoder for a type of data, or none with a digest."""


class TableError(GpusondeError, ValueError):
    """A table of measurements or prices that cannot be used; the message names file and line."""

    def __init__(
        self, problem: str, *, path: str | Path | None = None, line: int | None = None, field: str | None = None
    ) -> None:
        """Keep the place; ``problem`` says what is wrong and what to do, and is cut where it is megabytes."""
        self.path = None if path is None else str(path)
        self.line, self.field = line, field
        place = "" if path is None else f"{path}: " if line is None else f"{path}:{line}: "
        if len(problem) > _LONGEST_PROBLEM:
            problem = f"{problem[:_LONGEST_PROBLEM]}..."
        super().__init__(f"{place}{f'field {shown(field)}: ' if field else ''}{problem}")


class DocumentError(GpusondeError, ValueError):
    """A document that cannot be used; the message says where and what to do.

    Attributes:
        field: Path of the key at fault, for example ``offers[2].usd_per_hour``; empty for the document as a whole.
        problem: What is wrong with it, without its name.
    """

    field: str

    def __init__(self, field: str, problem: str, path: str | Path | None = None) -> None:
        """Name the key, and the file where it is known."""
        self.field = field
        self.problem = problem
        self.path = path
        super().__init__(": ".join(str(part) for part in (path, field, problem) if part))


class ProblemError(GpusondeError, ValueError):
    """Figures for planning that mean nothing: of a problem, a plan, a step, an allreduce; the message says which."""


class CloudError(GpusondeError):
    """A cloud that did not do what it was told; what was asked is asked again."""


class TlsError(ConfigError):
    """A certificate, key, authority or token file that cannot be used; the message names it and never its content.

    Attributes:
        path: The file at fault.
    """

    def __init__(self, path: str, problem: str) -> None:
        """Keep the path beside the problem."""
        super().__init__(f"{path}: {problem}")
        self.path = path


class SourceError(GpusondeError):
    """A source of samples or of jobs cannot do what it was asked to, or has stopped working as a whole."""


class SourceUnavailableError(SourceError):
    """The source cannot be opened here; the message says what is missing and what to do."""


class DriverCallError(SourceError):
    """One call of a vendor's library failed.

    Attributes:
        code: The ``nvmlReturn_t`` or ``dcgmReturn_t``.
    """

    def __init__(self, message: str, code: int) -> None:
        """Keep the code beside the message."""
        self.code = code
        super().__init__(message)


class CallRefusedError(DriverCallError):
    """The library answers, and does not do this."""


class GpuLostError(DriverCallError):
    """The GPU has fallen off the bus; the others go on."""


class EngineLostError(DriverCallError):
    """The connection to the host engine is gone."""


class SpoolError(GpusondeError):
    """A spool cannot be used: its directory, or files that are damaged beyond what losses can describe."""
