"""Allreduce measurements and models as JSON: plain values, versioned, with limits on everything that is read."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import MISSING, dataclass, fields
from typing import Annotated, Any

from gpusonde.documents import ListOf, Number, parse, parse_json
from gpusonde.errors import DocumentError
from gpusonde.simulator.allreduce.history import MOST_MEASUREMENTS
from gpusonde.simulator.allreduce.measurements import AllreduceMeasurement, LinkTopology
from gpusonde.simulator.allreduce.model import DEFAULT_HALF_LIFE_S, AllreduceModel, ModelKind, ResidualUse

MEASUREMENTS_FORMAT = "gpusonde.allreduce-measurements/1"
MODEL_FORMAT = "gpusonde.allreduce-model/1"
MOST_CHARACTERS = 128 * 1024 * 1024
_MOST_TOPOLOGIES = 1_000
_MOST_LINKS = 10_000
_MOST_LINK_DEVICES = 1_024
_Rows = Annotated[tuple[AllreduceMeasurement, ...], ListOf(MOST_MEASUREMENTS)]


@dataclass(frozen=True)
class _Measurements:
    measurements: _Rows


@dataclass(frozen=True)
class _Model:
    measurements: _Rows
    kind: ModelKind = "default"
    half_life_s: Annotated[float, Number(most=1e18)] = DEFAULT_HALF_LIFE_S
    now_s: Annotated[float, Number(least=-1e18, most=1e18)] | None = None
    residual: ResidualUse = "auto"
    topologies: Any = None


def measurements_to_json(measurements: Iterable[AllreduceMeasurement]) -> str:
    """Return measurements as a JSON document, a line each; attributes at their defaults are left out."""
    rows = [json.dumps(_row(one), ensure_ascii=False) for one in measurements]
    return f'{{"format": "{MEASUREMENTS_FORMAT}", "measurements": [\n' + ",\n".join(rows) + "\n]}\n"


def measurements_from_json(text: str) -> tuple[AllreduceMeasurement, ...]:
    """Return the measurements of a document.

    Raises:
        DocumentError: It is none, or too large.
    """
    return parse(_Measurements, _document(text), format_name="allreduce-measurements").measurements


def model_to_json(model: AllreduceModel) -> str:
    """Return a model as a JSON document: what it was made from and how. Reading it makes it again."""
    head = {
        "format": MODEL_FORMAT,
        "kind": model.kind,
        "half_life_s": model.decay.half_life_s,
        "now_s": model.decay.now_s,
        # What was tried and found of no use is not tried again.
        "residual": model.residual_use if model.residual is not None else "off",
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
        CommandError: A model of the paper's kind without XGBoost.
    """
    found = parse(_Model, _document(text), format_name="allreduce-model")
    topologies = _topologies(found.topologies)
    try:
        return AllreduceModel.fit(
            found.measurements,
            kind=found.kind,
            now_s=found.now_s,
            half_life_s=found.half_life_s,
            topologies=topologies,
            residual=found.residual,
        )
    except ValueError as error:
        raise DocumentError("", f"allreduce model: {error}") from error


def _row(one: AllreduceMeasurement) -> dict[str, Any]:
    values = {each.name: (getattr(one, each.name), each.default) for each in fields(one)}
    return {name: value for name, (value, default) in values.items() if default is MISSING or value != default}


def _document(text: str) -> dict[str, Any]:
    if len(text) > MOST_CHARACTERS:
        raise DocumentError("", f"{len(text):,} characters are too many; {MOST_CHARACTERS:,} is the limit")
    return parse_json(text.encode("utf-8", "surrogatepass"), largest_bytes=4 * MOST_CHARACTERS)


def _topologies(found: object) -> dict[str, LinkTopology]:
    if found is None:
        return {}
    if not isinstance(found, dict) or len(found) > _MOST_TOPOLOGIES:
        raise DocumentError("topologies", f"must be an object of at most {_MOST_TOPOLOGIES:,}")
    topologies = {}
    for fabric, links in found.items():
        if not isinstance(links, list) or len(links) > _MOST_LINKS:
            raise DocumentError("topologies", f"{fabric[:80]!r} is a list of at most {_MOST_LINKS:,} links")
        pairs = {}
        for link in links:
            whole = isinstance(link, list) and len(link) == 3 and all(type(value) is int for value in link)
            if not whole or max(link) > _MOST_LINK_DEVICES:
                raise DocumentError(
                    "topologies", f"of {fabric[:80]!r}: a link is [smaller device, larger device, links]"
                )
            pairs[link[0], link[1]] = link[2]
        try:
            topologies[fabric] = LinkTopology(pairs)
        except ValueError as error:
            raise DocumentError("topologies", f"of {fabric[:80]!r}: {error}") from None
    return topologies
