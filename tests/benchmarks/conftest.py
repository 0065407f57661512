"""Modules of the benchmarks, which are no package: each is imported as its command would."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def module(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], ModuleType]]:
    """Imports a module from the test module's ``BENCHMARKS``, names of folders, and forgets it afterwards."""
    folders = [str(BENCHMARKS / name) for name in request.module.BENCHMARKS]
    for folder in folders:
        monkeypatch.syspath_prepend(folder)
    before = set(sys.modules)
    yield importlib.import_module
    for name in set(sys.modules) - before:
        # Benchmarks have modules of like names.
        if str(getattr(sys.modules[name], "__file__", "")).startswith(tuple(folders)):
            del sys.modules[name]
