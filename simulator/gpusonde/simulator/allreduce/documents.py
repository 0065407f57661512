"""Allreduce measurements and models as JSON: plain values, versioned, with limits on everything that is read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields
from typing import Any

from gpusonde.simulator.allreduce.history import MOST_MEASUREMENTS
from gpusonde.simulator.allreduce.measurements import AllreduceMeasurement, LinkTopology, MeasurementError
from gpusonde.simulator.allreduce.model import AllreduceModel, ModelKind, ResidualUse

MEASUREMENTS_FORMAT = "gpusonde.allreduce-measurements/1"
MODEL_FORMAT = "gpusonde.allreduce-model/1"
MOST_CHARACTERS = 128 * 1024 * 1024
_MOST_TOPOLOGIES = 1_000
_MOST_LINKS = 10_000
_MOST_LINK_DEVICES = 1_024
_TEXT = ("fabric", "location", "device")
_WHOLE = ("world_size", "concurrent", "devices_per_machine", "repeats")


class DocumentError(ValueError):
    """A document that cannot be read; the message says what is wrong where."""


def measurements_to_json(measurements: Iterable[AllreduceMeasurement]) -> str:
    """Return measurements as a JSON document, a line each; attributes at their defaults are left out."""
    rows = [json.dumps(_row(one), ensure_ascii=False) for one in measurements]
    return f'{{"format": "{MEASUREMENTS_FORMAT}", "measurements": [\n' + ",\n".join(rows) + "\n]}\n"


def measurements_from_json(text: str) -> tuple[AllreduceMeasurement, ...]:
    """Return the measurements of a document.

    Raises:
        DocumentError: It is none, or too large.
    """
    return _measurements(_document(text, MEASUREMENTS_FORMAT))


def model_to_json(model: AllreduceModel) -> str:
    """Return a model as a JSON document: what it was made from and how. Reading it makes it again."""
    head = {
        "format": MODEL_FORMAT,
        "kind": model.kind.value,
        "half_life_s": model.decay.half_life_s,
        "now_s": model.decay.now_s,
        # What was tried and found of no use is not tried again.
        "residual": (model.residual_use if model.residual is not None else ResidualUse.OFF).value,
        "topologies": {
            fabric: [[one, other, count] for (one, other), count in sorted(topology.links.items())]
            for fabric, topology in sorted(model.topologies.items())
        },
    }
    rows = ",\n".join(json.dumps(_row(one), ensure_ascii=False) for one in model.measurements)
    return json.dumps(head, ensure_ascii=False)[:-1] + ', "measurements": [\n' + rows + "\n]}\n"


def model_from_json(text: str) -> AllreduceModel:
    """Return the model of a document.

    Raises:
        DocumentError: It is none, or too large.
        BoostingMissingError: A model of the paper's kind without XGBoost.
    """
    document = _document(text, MODEL_FORMAT)
    try:
        return AllreduceModel.fit(
            _measurements(document),
            kind=ModelKind(document.get("kind", "default")),
            now_s=_number(document, "now_s"),
            half_life_s=_number(document, "half_life_s") or 0.0,
            topologies=_topologies(document.get("topologies", {})),
            residual=ResidualUse(document.get("residual", "auto")),
        )
    except DocumentError:
        raise
    except ValueError as error:
        raise DocumentError(f"allreduce model: {error}") from error


def _row(one: AllreduceMeasurement) -> dict[str, Any]:
    values = {each.name: (getattr(one, each.name), each.default) for each in fields(one)}
    return {name: value for name, (value, default) in values.items() if default is MISSING or value != default}


def _document(text: str, wanted: str) -> Mapping[str, Any]:
    if len(text) > MOST_CHARACTERS:
        raise DocumentError(f"{len(text):,} characters are too many; {MOST_CHARACTERS:,} is the limit")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DocumentError(f"not JSON: {error}") from error
    if not isinstance(found, dict) or found.get("format") != wanted:
        got = found.get("format") if isinstance(found, dict) else None
        raise DocumentError(f'this needs a document of format "{wanted}", not {str(got)[:80]!r}')
    return found


def _measurements(document: Mapping[str, Any]) -> tuple[AllreduceMeasurement, ...]:
    rows = document.get("measurements")
    if not isinstance(rows, list) or len(rows) > MOST_MEASUREMENTS:
        raise DocumentError(f'"measurements" must be a list of at most {MOST_MEASUREMENTS:,}')
    return tuple(_measurement(row, place) for place, row in enumerate(rows))


def _measurement(row: object, place: int) -> AllreduceMeasurement:
    if not isinstance(row, dict):
        raise DocumentError(f"measurement {place}: must be an object")
    known = {each.name: each for each in fields(AllreduceMeasurement)}
    if unknown := sorted(map(str, set(row) - set(known))):
        raise DocumentError(f"measurement {place}: unknown {', '.join(unknown[:5])[:200]}")
    for name, each in known.items():
        if name not in row and each.default is MISSING:
            raise DocumentError(f"measurement {place}: {name} is missing")
    values: dict[str, Any] = {}
    for name, value in row.items():
        if name in _TEXT:
            good = isinstance(value, str)
        elif name in _WHOLE:
            good = isinstance(value, int) and not isinstance(value, bool)
        else:
            optional = known[name].default is None
            good = (value is None and optional) or (isinstance(value, (int, float)) and not isinstance(value, bool))
        if not good:
            raise DocumentError(f"measurement {place}: {name} has the wrong type")
        values[name] = value
    try:
        return AllreduceMeasurement(**values)
    except (MeasurementError, OverflowError) as error:
        raise DocumentError(f"measurement {place}: {error}") from error


def _number(document: Mapping[str, Any], name: str) -> float | None:
    value = document.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or abs(value) > 1e18:
        raise DocumentError(f"{name} must be a number")
    return float(value)


def _topologies(found: object) -> dict[str, LinkTopology]:
    if not isinstance(found, dict) or len(found) > _MOST_TOPOLOGIES:
        raise DocumentError(f'"topologies" must be an object of at most {_MOST_TOPOLOGIES:,}')
    topologies = {}
    for fabric, links in found.items():
        if not isinstance(links, list) or len(links) > _MOST_LINKS:
            raise DocumentError(f"topology of {fabric[:80]!r}: a list of at most {_MOST_LINKS:,} links")
        pairs = {}
        for link in links:
            whole = isinstance(link, list) and len(link) == 3 and all(type(value) is int for value in link)
            if not whole or max(link) > _MOST_LINK_DEVICES:
                raise DocumentError(f"topology of {fabric[:80]!r}: a link is [smaller device, larger device, links]")
            pairs[link[0], link[1]] = link[2]
        topologies[fabric] = LinkTopology(pairs)
    return topologies
