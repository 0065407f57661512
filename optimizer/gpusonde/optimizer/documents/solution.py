"""Solutions, estimates and plans as documents."""

from __future__ import annotations

import dataclasses
import math
from enum import Enum
from typing import Any

import numpy as np

from gpusonde.optimizer.plan import Plan
from gpusonde.optimizer.solution import Solution

SOLUTION_FORMAT = "gpusonde.solution/1"
PARETO_FORMAT = "gpusonde.pareto/1"
PLAN_FORMAT = "gpusonde.plan/1"


def solution_document(solution: Solution) -> dict[str, Any]:
    """Return a solution as plain values; what is not known is None."""
    return {"format": SOLUTION_FORMAT, **plain_fields(solution)}


def plan_document(plan: Plan) -> dict[str, Any]:
    """Return a plan as plain values, as ``parse_plan`` reads them."""
    return {"format": PLAN_FORMAT, **plain_fields(plan)}


def plain_fields(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass as plain values, by name."""
    return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return plain_fields(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, (float, np.floating)):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, np.integer):
        return int(value)
    if isinstance(value, (tuple, list)):
        return [_plain(element) for element in value]
    return value
