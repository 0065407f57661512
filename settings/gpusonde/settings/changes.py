"""What differs between two configurations, and which of it a running daemon can take over."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from gpusonde.settings.configuration import Configuration
from gpusonde.settings.layers import section_types, toml_name

_C = TypeVar("_C", bound=Configuration)


@dataclass(frozen=True)
class Takeover(Generic[_C]):
    """A running configuration with what could be taken over of a new one.

    Attributes:
        config: What holds from now on.
        taken: Options that have changed and are taken over, as ``section.name``.
        waiting: Options that have changed and need a restart.
    """

    config: _C
    taken: frozenset[str]
    waiting: tuple[str, ...]


def take_over(running: _C, wanted: _C, live: Collection[str]) -> Takeover[_C]:
    """Take from a new configuration what can be changed while the daemon runs.

    Args:
        running: What holds now.
        wanted: What the operator wants.
        live: Options that can change, as ``section.name``.

    Raises:
        ConfigError: The mixture of both contradicts itself.
    """
    sections: dict[str, Any] = {}
    taken, waiting = set(), []
    for section in section_types(type(running)):
        now, then = getattr(running, section), getattr(wanted, section)
        changes = {}
        for entry in dataclasses.fields(now):
            key = f"{section}.{toml_name(entry)}"
            value = getattr(then, entry.name)
            if value == getattr(now, entry.name):
                continue
            if key in live:
                changes[entry.name] = value
                taken.add(key)
            else:
                waiting.append(key)
        sections[section] = dataclasses.replace(now, **changes)
    return Takeover(type(running)(**sections), frozenset(taken), tuple(waiting))
