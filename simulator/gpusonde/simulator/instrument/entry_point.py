"""How commands get at a job or a network: a function of the user's own code, called on the user's own machine."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import cast

from gpusonde.errors import MeasurementError
from gpusonde.simulator.instrument.profile import TrainingJob


def load_job(entry_point: str) -> TrainingJob:
    """Return the job of an entry point.

    Args:
        entry_point: ``FILE.py:FUNCTION`` or ``MODULE:FUNCTION``. The function takes no arguments and returns a
            ``TrainingJob``. The folder of a file can be imported from, as when Python runs it.

    Raises:
        MeasurementError: There is no such file, module or function, or it returns something else. What the user's code
            raises itself is not caught.
    """
    function = load_function(entry_point)
    job = function()
    if not isinstance(job, TrainingJob):
        raise MeasurementError(
            f"{entry_point} returned {type(job).__name__}; it must return a gpusonde.simulator.instrument.profile."
            "TrainingJob"
        )
    return job


def load_function(entry_point: str) -> Callable[[], object]:
    """Return the function of an entry point, ``FILE.py:FUNCTION`` or ``MODULE:FUNCTION``.

    Raises:
        MeasurementError: There is no such file, module or function.
    """
    place, _, name = entry_point.rpartition(":")
    if not place or not name:
        raise MeasurementError(f"{entry_point!r} must be FILE.py:FUNCTION or MODULE:FUNCTION")
    module = _from_file(Path(place)) if place.endswith(".py") else _from_module(place)
    function = getattr(module, name, None)
    if not callable(function):
        raise MeasurementError(f"{place} has no function {name}")
    return cast("Callable[[], object]", function)


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise MeasurementError(f"there is no file {path}")
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    # Under its own name, so that loader processes find the classes of its data sets.
    module = importlib.import_module(path.stem)
    if module.__file__ is None or Path(module.__file__).resolve() != path.resolve():
        raise MeasurementError(f"{path} has the name of another module, {module.__name__}; rename it")
    return module


def _from_module(name: str) -> ModuleType:
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name == error.name or name.startswith(error.name + ".")):
            raise
        raise MeasurementError(f"there is no module {name}; run from its folder, or install it") from error
