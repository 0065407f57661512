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
from gpusonde.epoch_detect.result import Cycle, CycleRole, Deviation, EpochDetection, Hypothesis, RunState, Verdict

_Arrays = dict[str, npt.NDArray[np.generic]]

_VERSION = 3
_FORMER_VERSION = 2
# What reading raises where what is stored is none of a tracker.
DAMAGED = (LookupError, TypeError, AttributeError, ArithmeticError, RecursionError, json.JSONDecodeError)


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
        ValueError: The bytes are no archive, or of another version. What is damaged otherwise raises one of
            :data:`DAMAGED`.
    """
    arrays = unpack(data)
    fields = json.loads(arrays["meta"].tobytes())
    if fields["version"] == _FORMER_VERSION:
        fields = _from_former(fields)
    if fields["version"] != _VERSION:
        raise ValueError(f"tracker state of version {fields['version']}; this release reads {_VERSION}")
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
    """Rebuild an answer; anything but what :func:`detection_fields` gave raises one of :data:`DAMAGED`."""
    arrays = {name: np.array(fields[name], dtype=np.float64) for name in ("epoch_starts_s", "epoch_ends_s")}
    hypotheses = tuple(Hypothesis(*row) for row in fields["hypotheses"])
    deviations = tuple(Deviation(*row) for row in fields.get("deviations", ()))
    texts = {"metrics": tuple(fields["metrics"]), "warnings": tuple(fields["warnings"])}
    cycles = tuple(_cycle_from(each) for each in fields.get("cycles", ()))
    run_state = fields.get("run_state") and RunState(fields["run_state"])
    parts = {"cycles": cycles, "hypotheses": hypotheses, "deviations": deviations, "run_state": run_state}
    return EpochDetection(**{**fields, **arrays, **texts, **parts})


def _cycle_from(fields: dict[str, Any]) -> Cycle:
    starts_s = np.array(fields["starts_s"], dtype=np.float64)
    return Cycle(**{**fields, "starts_s": starts_s, "role": CycleRole(fields["role"])})


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
    """Rebuild a match; anything but what :func:`cached_fields` gave raises one of :data:`DAMAGED`."""
    stored = [fields["pattern"], *fields["others"]]
    pattern, *others = (Pattern(**{**p, "template": np.array(p["template"])}) for p in stored)
    return CachedMatch(
        gap_removal=int(fields["cut"]),
        rows=tuple(fields["rows"]),
        pattern=pattern,
        others=tuple(others),
        agreement=float(fields["agreement"]),
        confidence=float(fields["confidence"]),
    )
