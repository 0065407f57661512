"""What tests of several commands share."""

from __future__ import annotations

from typing import Any

import pytest

from gpusonde.predictor.crossgpu.regression import ObliviousTrees


@pytest.fixture
def few_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fit a tenth of the trees: for what is done with a fitted model, not for how good it is."""
    fit = ObliviousTrees.fit

    def quick(*data: Any, **how: Any) -> ObliviousTrees:
        return fit(*data, **how | {"trees": 40, "learning_rate": 0.2, "depth": 4})

    monkeypatch.setattr(ObliviousTrees, "fit", quick)
