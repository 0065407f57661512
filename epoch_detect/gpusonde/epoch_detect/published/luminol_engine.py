"""The optional engine ``luminol``: the original package, kept usable for comparison with our port."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt

from gpusonde.epoch_detect.published.bitmap import FloatArray


class LuminolMissingError(RuntimeError):
    """The package ``luminol`` is not installed."""

    def __init__(self) -> None:
        super().__init__(
            "engine 'luminol' needs the package luminol: pip install 'gpusonde[paper]', or use engine 'port'"
        )


def original_luminol_scores(values: npt.ArrayLike, time: npt.ArrayLike | None = None) -> FloatArray:
    """Run ``luminol.AnomalyDetector`` itself; the counterpart of ``published.bitmap.luminol_scores``.

    Args:
        values: Shape (n,).
        time: Shape (n,), integer time stamps, increasing; None means 0, 1, 2, ... Fractions of a second must not be
            passed: luminol cuts them off and merges the points.

    Returns:
        Shape (n,).

    Raises:
        LuminolMissingError: The package is not installed.
    """
    try:
        from luminol.anomaly_detector import AnomalyDetector  # noqa: PLC0415 - optional, and slow to import
    except ImportError:
        raise LuminolMissingError from None
    series = np.asarray(values, dtype=np.float64)
    stamps = np.arange(series.size) if time is None else np.asarray(time).astype(np.int64)
    with _asscalar_restored():
        detector = AnomalyDetector(dict(zip(stamps.tolist(), series.tolist(), strict=True)), score_only=True)
    return np.array(detector.get_all_scores().values, dtype=np.float64)


@contextmanager
def _asscalar_restored() -> Iterator[None]:
    """Give luminol 0.4 the ``numpy.asscalar`` that NumPy dropped in 1.23, for the length of one call."""
    if hasattr(np, "asscalar"):
        yield
        return
    np.asscalar = lambda array: array.item()  # type: ignore[attr-defined]
    try:
        yield
    finally:
        del np.asscalar  # type: ignore[attr-defined]
