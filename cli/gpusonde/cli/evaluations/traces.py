"""The traces of an evaluation, each with its truth."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from gpusonde.cli.errors import naming
from gpusonde.cli.parsing import UsageError

if TYPE_CHECKING:
    from gpusonde.epoch_detect.evaluation import Truth, TruthFile
    from gpusonde.telemetry import Trace

# A message that names more traces than this is not read.
_MOST_NAMES = 5

_Value = TypeVar("_Value")


@dataclass(frozen=True)
class TraceSet:
    """Traces that have a truth, and truths that have a trace.

    Attributes:
        truth: Truth by trace id, in the order of the traces.
        left_out: Traces that are not scored, and why.
    """

    truth: Mapping[str, Truth]
    left_out: Mapping[str, str]
    _source: Path
    _loaded: Mapping[str, Trace]

    @classmethod
    def open(cls, source: Path, truth_path: Path, only: Sequence[str] = ()) -> TraceSet:
        """Find the traces of a trace file, or of a folder that holds a file for each.

        Args:
            source: Trace file with an id for each trace, or a folder; of a folder, the truth names the files.
            truth_path: Truth file or manifest.
            only: Patterns (``*``, ``?``) of the ids to score; all if empty.

        Raises:
            TruthError: The truth cannot be read, or traces and truth do not belong together.
            UsageError: No trace fits ``only``.
            gpusonde.telemetry.TraceError: The trace file cannot be read.
            OSError: Likewise.
        """
        from gpusonde.epoch_detect.evaluation import TruthFile, read_truth

        whole = read_truth(truth_path)
        given = TruthFile(_chosen(whole.truth, only), _chosen(whole.left_out, only))
        if source.is_dir():
            _check_files(source, truth_path, given)
            return cls._of(given.truth, given, source, {}, only)
        loaded = _chosen(_load(source), only)
        _check_pairs(source, truth_path, loaded, given)
        return cls._of({name: given.truth[name] for name in loaded if name in given.truth}, given, source, loaded, only)

    @classmethod
    def _of(
        cls,
        truth: Mapping[str, Truth],
        given: TruthFile,
        source: Path,
        loaded: Mapping[str, Trace],
        only: Sequence[str],
    ) -> TraceSet:
        if not truth:
            left = f"; left out: {_names(given.left_out)}" if given.left_out else ""
            asked = f" that fits --only {' '.join(only)}" if only else ""
            raise UsageError(f"{source}: no trace to score{asked}{left}")
        return cls(truth, given.left_out, source, loaded)

    def file_of(self, name: str) -> Path:
        """The file that a trace is in."""
        return self._source if name in self._loaded else self._source / name

    def __len__(self) -> int:
        return len(self.truth)

    def __iter__(self) -> Iterator[tuple[str, Trace, Truth]]:
        """Trace id, trace and truth; files of a folder are read one after the other, their first GPU."""
        from gpusonde.telemetry import read_trace

        for name, truth in self.truth.items():
            trace = self._loaded.get(name)
            if trace is None:
                path = self.file_of(name)
                with naming(path):
                    trace = read_trace(path, gpu=0)
            yield name, trace, truth


def _load(source: Path) -> dict[str, Trace]:
    from gpusonde.telemetry import read_traces

    with naming(source):
        traces = read_traces(source)
    return {trace.attributes.get("trace_id") or trace.gpu_uuid or str(i): trace for i, trace in enumerate(traces)}


def _chosen(named: Mapping[str, _Value], only: Sequence[str]) -> dict[str, _Value]:
    return {n: v for n, v in named.items() if not only or any(fnmatch.fnmatchcase(n, pattern) for pattern in only)}


def _check_files(source: Path, truth_path: Path, given: TruthFile) -> None:
    from gpusonde.epoch_detect.evaluation import TruthError

    absent = [name for name in given.truth if not (source / name).is_file()]
    if absent:
        raise TruthError(
            f"{source} has no file {_names(absent)}; give the folder that the manifest belongs to, or leave traces out "
            "with --only",
            path=truth_path,
            field=absent[0],
        )


def _check_pairs(source: Path, truth_path: Path, loaded: Mapping[str, Trace], given: TruthFile) -> None:
    from gpusonde.epoch_detect.evaluation import TruthError

    known = {*given.truth, *given.left_out}
    untold, unseen = [n for n in loaded if n not in known], [n for n in given.truth if n not in loaded]
    if loaded and given.truth and not known & set(loaded):
        raise TruthError(
            f"none of its traces ({_names(given.truth)}) is in {source} ({_names(loaded)}); they belong to different "
            "sets",
            path=truth_path,
        )
    if untold:
        raise TruthError(
            f"no truth for trace {_names(untold)} of {source}; add it (period_s null for no epochs), or leave the "
            "trace out with --only",
            path=truth_path,
            field=untold[0],
        )
    if unseen:
        raise TruthError(
            f"no trace {_names(unseen)} in {source}; remove it from the truth, or leave it out with --only",
            path=truth_path,
            field=unseen[0],
        )


def _names(names: Mapping[str, object] | Sequence[str]) -> str:
    every = list(names)
    rest = f" and {len(every) - _MOST_NAMES} more" if len(every) > _MOST_NAMES else ""
    return ", ".join(repr(name) for name in every[:_MOST_NAMES]) + rest
