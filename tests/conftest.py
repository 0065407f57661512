"""What one test does to the logs is no other test's business."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _logs_as_they_were() -> Iterator[None]:
    """Commands run in process set levels and put their own handlers in the place of all others."""
    root, ours = logging.getLogger(), logging.getLogger("gpusonde")
    before = set(root.handlers)
    levels = root.level, ours.level
    yield
    for handler in set(root.handlers) - before:
        root.removeHandler(handler)
    root.setLevel(levels[0])
    ours.setLevel(levels[1])
