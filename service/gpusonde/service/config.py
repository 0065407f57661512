"""Typed settings from TOML, environment and command line: the machinery below the daemons' configuration classes.

A configuration is a frozen dataclass whose fields are sections, themselves frozen dataclasses whose fields are declared
with ``option``. Precedence: command line over environment over file over defaults. Every option ``[section] name`` has
the environment variable ``PREFIX_SECTION_NAME``. Unknown keys are errors; durations and sizes carry their unit.

Durations and byte sizes as people write them in a configuration: with their unit.

A bare number is refused: ``interval = 3`` once meant 3 ms to one program and 3 s to its reader.

``Configuration``: what the daemons' configuration classes have in common.

What differs between two configurations, and which of it a running daemon can take over.

Settings of the daemons: TOML, environment and command line in layers, quantities with their units.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Generic, TypeVar

__all__ = [
    "ConfigError",
    "Configuration",
    "LogConfig",
    "QuantityError",
    "Takeover",
    "format_duration",
    "format_size",
    "option",
    "parse_duration_s",
    "parse_size_bytes",
    "take_over",
]
_DURATION_UNITS_S = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_SIZE_UNITS_BYTES = {
    "B": 1,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 1 << 10,
    "MiB": 1 << 20,
    "GiB": 1 << 30,
    "TiB": 1 << 40,
}
_QUANTITY = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*")


class QuantityError(ValueError):
    """Text that is not a number with a known unit."""


def parse_duration_s(text: str) -> float:
    """Return the seconds meant by, for example, ``"100ms"``, ``"10s"``, ``"5m"`` or ``"1h"``.

    Raises:
        QuantityError: No unit, an unknown one, or not a number.
    """
    return _parse(text, _DURATION_UNITS_S, "a duration", '"100ms", "10s", "5m"')


def parse_size_bytes(text: str) -> int:
    """Return the bytes meant by, for example, ``"64MiB"`` or ``"1GB"``.

    Raises:
        QuantityError: No unit, an unknown one, or not a number.
    """
    return round(_parse(text, _SIZE_UNITS_BYTES, "a size", '"64MiB", "1GiB"'))


def format_duration(seconds: float) -> str:
    """Write a duration so that :func:`parse_duration_s` reads the same value back."""
    if seconds == 0:
        return "0s"
    for unit in ("d", "h", "m", "s", "ms"):
        count = seconds / _DURATION_UNITS_S[unit]
        if count >= 1 and abs(count - round(count)) < 1e-9 * count:
            return f"{round(count)}{unit}"
    return f"{seconds * 1e3:.6f}".rstrip("0").rstrip(".") + "ms"


def format_size(size_bytes: int) -> str:
    """Write a size so that :func:`parse_size_bytes` reads the same value back."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if size_bytes and size_bytes % _SIZE_UNITS_BYTES[unit] == 0:
            return f"{size_bytes // _SIZE_UNITS_BYTES[unit]}{unit}"
    return f"{size_bytes}B"


def _parse(text: str, units: dict[str, float] | dict[str, int], what: str, examples: str) -> float:
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise QuantityError(f"{text!r} is not {what}; write a number and its unit, for example {examples}")
    number, unit = match.groups()
    if not unit:
        raise QuantityError(f"{text!r} has no unit; write for example {examples}")
    if unit not in units:
        raise QuantityError(f"{text!r} has the unknown unit {unit!r}; known are {', '.join(units)}")
    value = float(number) * units[unit]
    if not math.isfinite(value):
        raise QuantityError(f"{text!r} is too large to be {what}")
    return value


if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


COMMAND_LINE = "command line"
_LONGEST_PROBLEM = 2000


class ConfigError(ValueError):
    """A setting that cannot be used; the message names where it stands and what would be right.

    What is raised by a check of a configuration class begins with the option as ``section.name``.

    Attributes:
        path: The configuration file at fault, or None.
        field: The option as ``section.name``, or the section; None when none is meant.
        on_command_line: Whether the command line is at fault.
    """

    def __init__(self, problem: str, *, origin: str | Path = "", field: str | None = None) -> None:
        """Keep the place; ``origin`` is the file's path, or the words for another origin."""
        self.path = str(origin) if isinstance(origin, Path) else None
        self.field = field
        self.on_command_line = origin == COMMAND_LINE
        # It repeats what is wrong, which may be a whole file that got into the wrong place.
        if len(problem) > _LONGEST_PROBLEM:
            problem = f"{problem[: _LONGEST_PROBLEM // 2]} ... {problem[-_LONGEST_PROBLEM // 2 :]}"
        super().__init__(f"{origin}: {problem}" if str(origin) else problem)


@dataclass(frozen=True)
class Setting:
    """One value and where it came from."""

    origin: str | Path
    section: str
    name: str
    value: Any


def option(kind: str, default: Any, help_text: str) -> Any:
    """Declare one option of a section; a duration's field name ends in ``_s``, its TOML name does not."""
    return field(default=default, metadata={"kind": kind, "help": help_text})


def section_types(config: type[Any]) -> dict[str, type[Any]]:
    """Return the sections of a configuration class by name."""
    found: dict[str, Any] = {section.name: section.default_factory for section in fields(config)}
    return found


def options_of(config: type[Any]) -> dict[str, str]:
    """Return every option as ``section.name`` with its help line."""
    return {
        f"{name}.{toml_name(entry)}": str(entry.metadata["help"])
        for name, section in section_types(config).items()
        for entry in fields(section)
    }


def gather(
    config: type[Any],
    path: Path | str | None,
    environment: Mapping[str, str],
    prefix: str,
    overrides: Mapping[str, str],
) -> tuple[dict[str, dict[str, Any]], dict[str, str | Path]]:
    """Collect and convert all settings; later origins win: file, environment, command line.

    Returns:
        The values by section and field, and the origin of each by ``section.name``.

    Raises:
        ConfigError: An unknown key, a value of the wrong kind or without its unit, a file that cannot be read.
    """
    settings: list[Setting] = []
    if path is not None:
        settings += _from_file(Path(path), section_types(config))
    known = {key.replace(".", "_").upper(): key for key in options_of(config)}
    for variable, value in environment.items():
        if variable.startswith(prefix):
            key = known.get(variable[len(prefix) :])
            if key is None:
                raise ConfigError(
                    f"{variable} is no option; known are {', '.join(sorted(known))}",
                    origin="environment",
                    field=variable,
                )
            settings.append(_setting("environment", key, value))
    for key, value in overrides.items():
        if "." not in key:
            raise ConfigError(
                f"{key!r} is no option; write section.name as in --print-config", origin=COMMAND_LINE, field=key
            )
        settings.append(_setting(COMMAND_LINE, key, value))
    values: dict[str, dict[str, Any]] = {}
    origins: dict[str, str | Path] = {}
    for setting in settings:
        entry = _find(config, setting)
        values.setdefault(setting.section, {})[entry.name] = _convert(setting, entry.metadata["kind"])
        origins[f"{setting.section}.{setting.name}"] = setting.origin
    return values, origins


def to_toml(config: Any) -> str:
    """Write a configuration as a commented file."""
    lines: list[str] = []
    for name, section in section_types(type(config)).items():
        lines += [f"# {(section.__doc__ or '').splitlines()[0].split(': ', 1)[-1]}", f"[{name}]"]
        for entry in fields(section):
            value = getattr(getattr(config, name), entry.name)
            lines += [f"# {entry.metadata['help']}", f"{toml_name(entry)} = {_written(value, entry.metadata['kind'])}"]
        lines.append("")
    return "\n".join(lines)


def toml_name(entry: Field[Any]) -> str:
    """Return an option's name in files: its unit stands in the value there."""
    return entry.name.removesuffix("_s") if entry.metadata["kind"] == "duration" else entry.name


def _setting(origin: str | Path, key: str, value: str) -> Setting:
    section, _, name = key.partition(".")
    return Setting(origin, section, name, value)


def _from_file(path: Path, known: Iterable[str]) -> list[Setting]:
    try:
        with path.open("rb") as file:
            document = tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"{error.strerror}; give an existing configuration file", origin=path) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"not TOML: byte {error.start} is no UTF-8; save the file as UTF-8", origin=path) from error
    # A whole number of thousands of digits is a plain ValueError of Python's own.
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"not TOML: {error}", origin=path) from error
    settings: list[Setting] = []
    for section, values in document.items():
        if not isinstance(values, dict):
            raise ConfigError(
                f"{section} stands outside a section; known sections are {', '.join(known)}", origin=path, field=section
            )
        settings += [Setting(path, section, name, value) for name, value in values.items()]
    return settings


def _find(config: type[Any], setting: Setting) -> Field[Any]:
    sections = section_types(config)
    if setting.section not in sections:
        raise ConfigError(
            f"unknown section [{setting.section}]; known are {', '.join(sections)}",
            origin=setting.origin,
            field=setting.section,
        )
    entries = {toml_name(entry): entry for entry in fields(sections[setting.section])}
    if setting.name not in entries:
        raise ConfigError(
            f"unknown key {setting.section}.{setting.name}; [{setting.section}] has {', '.join(entries)}",
            origin=setting.origin,
            field=f"{setting.section}.{setting.name}",
        )
    return entries[setting.name]


def _convert(setting: Setting, kind: str) -> Any:
    try:
        return _CONVERTERS[kind](setting.value)
    except (QuantityError, ConfigError) as error:
        key = f"{setting.section}.{setting.name}"
        raise ConfigError(f"{key}: {error}", origin=setting.origin, field=key) from None


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"{value!r} is not text; put it in quotes")
    return value


def _duration(value: Any) -> float:
    if not isinstance(value, str):
        raise ConfigError(f'{value!r} has no unit; write for example "100ms" or "10s"')
    return parse_duration_s(value)


def _size(value: Any) -> int:
    if not isinstance(value, str):
        raise ConfigError(f'{value!r} has no unit; write for example "64MiB" or "4096B"')
    return parse_size_bytes(value)


def _number(value: Any) -> float:
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise ConfigError(f"{value!r} is not a number")
    return number


def _count(value: Any) -> int:
    number = _number(value)
    if number != int(number):
        raise ConfigError(f"{value!r} is not a whole number")
    return int(number)


def _switch(value: Any) -> bool:
    if value in (True, "true"):
        return True
    if value in (False, "false"):
        return False
    raise ConfigError(f"{value!r} is neither true nor false")


_CONVERTERS: Mapping[str, Callable[[Any], Any]] = MappingProxyType(
    {"text": _text, "duration": _duration, "size": _size, "number": _number, "count": _count, "switch": _switch}
)


def _written(value: Any, kind: str) -> str:
    if kind == "duration":
        return f'"{format_duration(value)}"'
    if kind == "size":
        return f'"{format_size(value)}"'
    if kind == "text":
        return json.dumps(value, ensure_ascii=False)  # TOML's basic strings know JSON's escapes
    return str(value).lower() if kind == "switch" else repr(value)


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
    """Base of a frozen dataclass whose fields are sections, see ``gpusonde.service.config``.

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
