"""``Configuration``: what the daemons' configuration classes have in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar, TypeVar

from gpusonde.settings.layers import ConfigError, gather, option, options_of, section_types, to_toml

_C = TypeVar("_C", bound="Configuration")
_LOG_LEVELS = ("debug", "info", "warning", "error")
_LOG_FORMATS = ("text", "json")


@dataclass(frozen=True)
class LogConfig:
    """``[log]``: what is said on stderr."""

    level: str = option("text", "info", "debug, info, warning or error")
    format: str = option("text", "text", "text for people, or json: one object per line")

    def __post_init__(self) -> None:
        """Check the words.

        Raises:
            ConfigError: An unknown level or format.
        """
        if self.level not in _LOG_LEVELS:
            raise ConfigError(f"log.level {self.level!r} is unknown; use {', '.join(_LOG_LEVELS)}")
        if self.format not in _LOG_FORMATS:
            raise ConfigError(f"log.format {self.format!r} is unknown; use {' or '.join(_LOG_FORMATS)}")


class Configuration:
    """Base of a frozen dataclass whose fields are sections, see ``gpusonde.settings.layers``.

    Attributes:
        environment_prefix: What the names of its environment variables begin with.
    """

    environment_prefix: ClassVar[str]

    @classmethod
    def load(
        cls: type[_C],
        path: Path | str | None = None,
        *,
        environment: Mapping[str, str] = MappingProxyType({}),
        overrides: Mapping[str, str] = MappingProxyType({}),
    ) -> _C:
        """Read a configuration.

        Args:
            path: TOML file, or None for none.
            environment: Usually ``os.environ``; only variables with the prefix are looked at.
            overrides: Flags, as ``{"section.name": "200ms"}``.

        Raises:
            ConfigError: Unknown keys, values without a unit or out of range, a file that cannot be read.
        """
        values, origins = gather(cls, path, environment, cls.environment_prefix, overrides)
        sections = section_types(cls)
        try:
            return cls(**{name: sections[name](**chosen) for name, chosen in values.items()})
        except ConfigError as error:
            # What checks find wrong, they name first; where it was set only this place knows.
            key = error.field or str(error).partition(" ")[0]
            if key not in origins:
                raise
            raise ConfigError(str(error), origin=origins[key], field=key) from error

    @classmethod
    def options(cls) -> dict[str, str]:
        """Return every option as ``section.name`` with its help line, for command lines and documentation."""
        return options_of(cls)

    def to_toml(self) -> str:
        """Write the configuration as a commented file that ``load`` reads back to the same value."""
        return to_toml(self)
