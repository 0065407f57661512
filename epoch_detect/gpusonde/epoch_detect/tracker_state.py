"""What a tracker is stored as: fields in JSON, and the arrays of what it remembers."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import numpy.typing as npt

from gpusonde.epoch_detect.cycles.detector import CachedMatch
from gpusonde.epoch_detect.cycles.segments import Pattern
from gpusonde.epoch_detect.history import pack, unpack
from gpusonde.epoch_detect.reported import EpochStatus
from gpusonde.epoch_detect.result import Cycle, Deviation, EpochDetection, Hypothesis, Verdict
from gpusonde.epoch_detect.stored import DamagedStateError, check, read_array, read_as, read_fields

_Arrays = dict[str, npt.NDArray[np.generic]]

_VERSION = 3
_FORMER_VERSION = 2


def pack_state(fields: dict[str, Any], history: _Arrays, marks: _Arrays) -> bytes:
    """Serialise what a tracker knows; no pickle.

    Args:
        fields: What goes into JSON.
        history: The arrays of its ticks.
        marks: Those of its marks.
    """
    arrays = {f"history_{name}": array for name, array in history.items()}
    arrays |= {f"marks_{name}": array for name, array in marks.items()}
    meta = json.dumps({"version": _VERSION, **fields})
    arrays["meta"] = np.frombuffer(meta.encode(), dtype=np.uint8)
    return pack(arrays)


def unpack_state(data: bytes) -> tuple[dict[str, Any], _Arrays, _Arrays]:
    """Return what :func:`pack_state` was given; of a former release, as this one would have given it.

    Raises:
        DamagedStateError: The bytes are no archive, or of another version.
        ValueError: They are damaged otherwise; ``LookupError`` and ``TypeError`` likewise.
    """
    arrays = unpack(data)
    fields = json.loads(arrays["meta"].tobytes())
    if fields["version"] == _FORMER_VERSION:
        fields = _from_former(fields)
    if fields["version"] != _VERSION:
        raise DamagedStateError(f"tracker state of version {fields['version']}; this release reads {_VERSION}")
    # A release that knew no marks has none in its states.
    return fields, _part(arrays, "history_"), _part(arrays, "marks_")


def _part(arrays: _Arrays, prefix: str) -> _Arrays:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def _from_former(fields: dict[str, Any]) -> dict[str, Any]:
    """Read the state of a release that reported epochs before their level was confirmed, and knew no tree."""
    found = fields["detection"]
    return {
        **fields,
        "version": _VERSION,
        "running": None,  # its steps were others; the analysis begins anew
        "entries": [[*row[:4], str(EpochStatus.CONFIRMED), row[5], row[7]] for row in fields["entries"]],
        "latest": found,
        "told": found if fields["entries"] and found is not None and found["verdict"] == Verdict.EPOCHS else None,
        "rival_s": 0.0,
    }


def detection_fields(found: EpochDetection) -> dict[str, Any]:
    """Return what :func:`detection_from` makes the same of, for JSON."""
    fields = {name: getattr(found, name) for name in found.__dataclass_fields__}
    return {
        **fields,
        "verdict": str(found.verdict),
        "run_state": None if found.run_state is None else str(found.run_state),
        "epoch_starts_s": found.epoch_starts_s.tolist(),
        "epoch_ends_s": found.epoch_ends_s.tolist(),
        "cycles": [{**vars(c), "starts_s": c.starts_s.tolist(), "role": str(c.role)} for c in found.cycles],
        "hypotheses": [[h.period_s, h.cycles, h.score] for h in found.hypotheses],
        "deviations": [[d.gpu, d.kind, d.amount] for d in found.deviations],
    }


def detection_from(fields: dict[str, Any]) -> EpochDetection:
    """Rebuild an answer; for ``stored.reading``, which makes one error of whatever else than that is stored."""
    starts_s, ends_s = (read_array(fields[name], (None,)) for name in ("epoch_starts_s", "epoch_ends_s"))
    check(starts_s.size == ends_s.size, "starts and ends of epochs")
    cycles = tuple(_cycle_from(each) for each in fields.get("cycles", ()))
    level = read_as(int | None, fields.get("level"))
    parents = [cycle.parent for cycle in cycles if cycle.parent is not None]
    check(all(0 <= at < len(cycles) for at in (parents if level is None else [level, *parents])), "levels of cycles")
    hypotheses = tuple(Hypothesis(*row) for row in read_as(list[tuple[float, int, float]], fields["hypotheses"]))
    deviations = tuple(Deviation(*row) for row in read_as(list[tuple[str, str, float]], fields.get("deviations", [])))
    arrays: dict[str, Any] = {"epoch_starts_s": starts_s, "epoch_ends_s": ends_s, "verdict": Verdict(fields["verdict"])}
    parts: dict[str, Any] = {"cycles": cycles, "hypotheses": hypotheses, "deviations": deviations}
    others = {name: value for name, value in fields.items() if name not in {*arrays, *parts}}
    return EpochDetection(**read_fields(EpochDetection, others), **arrays, **parts)


def _cycle_from(fields: dict[str, Any]) -> Cycle:
    others = {name: value for name, value in fields.items() if name != "starts_s"}
    return Cycle(**read_fields(Cycle, others), starts_s=read_array(fields["starts_s"], (None,)))


# The keys of a stored state stay, whatever the attributes are called.
def cached_fields(cached: CachedMatch) -> dict[str, Any]:
    """Return what :func:`cached_from` makes the same of, for JSON."""
    pattern, *others = ({**vars(p), "template": p.template.tolist()} for p in (cached.pattern, *cached.others))
    return {
        "cut": cached.gap_removal,
        "rows": cached.rows,
        "pattern": pattern,
        "others": others,
        "agreement": cached.agreement,
        "confidence": cached.confidence,
    }


def cached_from(fields: dict[str, Any]) -> CachedMatch:
    """Rebuild a match; likewise."""
    pattern, *others = map(_pattern_from, [fields["pattern"], *fields["others"]])
    rows = read_as(tuple[int, ...], fields["rows"])
    check(all(len(each.template) == len(rows) for each in (pattern, *others)), "metrics of a pattern")
    return CachedMatch(
        gap_removal=read_as(int, fields["cut"]),
        rows=rows,
        pattern=pattern,
        others=tuple(others),
        agreement=read_as(float, fields["agreement"]),
        confidence=read_as(float, fields["confidence"]),
    )


def _pattern_from(fields: dict[str, Any]) -> Pattern:
    template = read_array(fields["template"], (None, None))
    pattern = Pattern(**read_fields(Pattern, {k: v for k, v in fields.items() if k != "template"}), template=template)
    check(pattern.template.size > 0 and pattern.step_s > 0 and pattern.smoothing >= 1, "a pattern")
    return pattern
