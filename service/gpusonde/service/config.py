"""Configuration of the daemons: each key is declared once, and everything else is read from that declaration.

A configuration is a frozen dataclass whose fields are sections, themselves frozen dataclasses whose fields are declared
with :func:`option`: kind, default, help, range, choices, and whether a running daemon takes the key over. What a file
may hold, what is wrong with a value, the commented file of ``--print-config`` and what a reload changes follow from
there; a configuration class adds only the rules between keys.

Precedence: command line over environment over file over defaults. The key ``section.name`` has the environment variable
``PREFIX_SECTION_NAME``. Unknown keys are errors. Durations and sizes are written with their unit; a bare number is
refused, because ``interval = 3`` means 3 ms to one reader and 3 s to another.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
import re
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Generic, Protocol, TypeVar
from urllib.parse import urlsplit

from gpusonde.errors import ConfigError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = [
    "Configuration",
    "DaemonConfiguration",
    "LogConfig",
    "Option",
    "Takeover",
    "format_duration",
    "format_size",
    "option",
    "parse_duration_s",
    "parse_size_bytes",
    "take_over",
]

COMMAND_LINE = "command line"
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

_C = TypeVar("_C", bound="Configuration")


def option(
    kind: str,
    default: Any,
    help_text: str,
    *,
    least: Any = None,
    most: Any = None,
    zero: bool = False,
    choices: tuple[str, ...] = (),
    check: Callable[[Any], object] | None = None,
    live: bool = False,
) -> Any:
    """Declare one key as a field of its section; a duration's field name ends in ``_s``, its key does not.

    Args:
        kind: ``text``, ``duration``, ``size``, ``number``, ``count`` or ``switch``.
        default: As in a file: ``"200ms"``, ``"64MiB"``.
        help_text: One line for the commented file, the documentation and messages about the range.
        least: Smallest value, as in a file; None for none.
        most: Largest value.
        zero: Whether 0 is allowed besides the range.
        choices: The words that are allowed.
        check: Raises ``ValueError`` for a value that is wrong, with what is wrong as its message.
        live: Whether a running daemon takes a new value over at SIGHUP.
    """
    convert = _CONVERTERS[kind]
    low, high = (None if bound is None else convert(bound) for bound in (least, most))
    declared = Option("", "", "", kind, convert(default), help_text, low, high, zero, choices, check, live)
    return dataclasses.field(default=declared.default, metadata={"option": declared})


@dataclass(frozen=True)
class Option:
    """One key of a configuration; see :func:`option`.

    Attributes:
        section: Its section.
        name: Its name in files.
        field: Its name in code.
    """

    section: str
    name: str
    field: str
    kind: str
    default: Any
    help: str
    least: Any
    most: Any
    zero: bool
    choices: tuple[str, ...]
    check: Callable[[Any], object] | None
    live: bool

    @property
    def key(self) -> str:
        """``section.name``."""
        return f"{self.section}.{self.name}"

    @property
    def allowed(self) -> str:
        """The values that are allowed, in words; empty where the kind says all."""
        if self.choices:
            words = [word or "nothing" for word in self.choices]
            return f"{', '.join(words[:-1])} or {words[-1]}"
        least, most = self.least, self.most
        if least is None and most is None:
            return ""
        if least is None:
            bounds = f"{self.format(most)} or less"
        else:
            bounds = (
                f"{self.format(least)} to {self.format(most)}" if most is not None else f"{self.format(least)} or more"
            )
        return f"{self.format(0)}, or {bounds}" if self.zero else bounds

    def format(self, value: Any) -> str:
        """Write a value for people: without quotes."""
        if self.kind == "duration":
            return format_duration(value)
        if self.kind == "size":
            return format_size(value)
        return f"{value:g}" if self.kind == "number" else str(value)

    def to_toml(self, value: Any) -> str:
        """Write a value as in a file."""
        if self.kind in ("duration", "size"):
            return f'"{self.format(value)}"'
        if self.kind == "text":
            return json.dumps(value, ensure_ascii=False)  # TOML's basic strings know JSON's escapes
        return str(value).lower() if self.kind == "switch" else repr(value)

    def verify(self, value: Any) -> None:
        """Check one value.

        Raises:
            ConfigError: It is not allowed.
        """
        problem = ""
        if self.choices and value not in self.choices:
            problem = f"{value!r} is unknown; use {self.allowed}"
        elif not (self.zero and value == 0) and (
            (self.least is not None and value < self.least) or (self.most is not None and value > self.most)
        ):
            problem = f"{self.format(value)} is out of its range, {self.allowed}: {self.help}"
        elif self.check is not None:
            try:
                self.check(value)
            except ValueError as error:
                problem = str(error)
        if problem:
            raise ConfigError(f"{self.key}: {problem}", field=self.key)


class Configuration:
    """Base of a frozen dataclass whose fields are sections.

    Attributes:
        environment_prefix: What the names of its environment variables begin with.
    """

    environment_prefix: ClassVar[str]

    def __post_init__(self) -> None:
        """Check every value, then the rules between them.

        Raises:
            ConfigError: A value is not allowed, or does not go with another.
        """
        for entry in self.options().values():
            entry.verify(getattr(getattr(self, entry.section), entry.field))
        self.check()

    def check(self) -> None:
        """Check the rules between keys; each key alone is allowed already.

        Raises:
            ConfigError: Two values do not go together.
        """

    @classmethod
    def options(cls) -> Mapping[str, Option]:
        """Return every key by ``section.name``, in order."""
        return {entry.key: entry for name, section in _sections(cls).items() for entry in _name_options(name, section)}

    def live_keys(self) -> frozenset[str]:
        """Return the keys that a running daemon takes over, as ``section.name``."""
        return frozenset(key for key, entry in self.options().items() if entry.live)

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
        sections, options = _sections(cls), cls.options()
        settings = _read_file(Path(path), sections) if path is not None else []
        settings += _read_environment(environment, cls.environment_prefix, options)
        settings += [_split(COMMAND_LINE, key, value) for key, value in overrides.items()]
        values: dict[str, dict[str, Any]] = {}
        origins: dict[str, str | Path] = {}
        for setting in settings:
            entry = _find(options, setting)
            values.setdefault(entry.section, {})[entry.field] = _convert(setting, entry)
            origins[entry.key] = setting.origin
        try:
            return cls(**{name: sections[name](**chosen) for name, chosen in values.items()})
        except ConfigError as error:
            # Where a value was set only this place knows.
            if error.field not in origins:
                raise
            raise ConfigError(str(error), origin=origins[error.field], field=error.field) from error

    def to_toml(self) -> str:
        """Write the configuration as a commented file that ``load`` reads back to the same value."""
        lines: list[str] = []
        for name, section in _sections(type(self)).items():
            lines += [f"# {_describe(section)}", f"[{name}]"]
            for entry in _name_options(name, section):
                value = getattr(getattr(self, name), entry.field)
                # Of choices the help tells already.
                bounds = ["" if entry.choices else entry.allowed, "live" if entry.live else ""]
                told = ", ".join(filter(None, bounds))
                lines += [f"# {entry.help}{f' [{told}]' if told else ''}", f"{entry.name} = {entry.to_toml(value)}"]
            lines.append("")
        return "\n".join(lines)


@dataclass(frozen=True)
class Takeover(Generic[_C]):
    """A running configuration with what could be taken over of a new one.

    Attributes:
        config: What holds from now on.
        taken: Keys that have changed and are taken over, as ``section.name``.
        waiting: Keys that have changed and need a restart.
    """

    config: _C
    taken: frozenset[str]
    waiting: tuple[str, ...]


def take_over(running: _C, wanted: _C, live: Collection[str]) -> Takeover[_C]:
    """Take from a new configuration what can be changed while the daemon runs.

    Args:
        running: What holds now.
        wanted: What the operator wants.
        live: Keys that can change, as ``section.name``.

    Raises:
        ConfigError: The mixture of both contradicts itself.
    """
    changes: dict[str, dict[str, Any]] = {}
    taken, waiting = set(), []
    for key, entry in running.options().items():
        value = getattr(getattr(wanted, entry.section), entry.field)
        if value == getattr(getattr(running, entry.section), entry.field):
            continue
        if key in live:
            changes.setdefault(entry.section, {})[entry.field] = value
            taken.add(key)
        else:
            waiting.append(key)
    sections = {
        name: dataclasses.replace(getattr(running, name), **changes.get(name, {})) for name in _sections(type(running))
    }
    return Takeover(type(running)(**sections), frozenset(taken), tuple(waiting))


def parse_duration_s(text: str) -> float:
    """Return the seconds meant by, for example, ``"100ms"``, ``"10s"``, ``"5m"`` or ``"1h"``.

    Raises:
        ConfigError: No unit, an unknown one, or not a number.
    """
    return _parse(text, _DURATION_UNITS_S, "a duration", '"100ms", "10s", "5m"')


def parse_size_bytes(text: str) -> int:
    """Return the bytes meant by, for example, ``"64MiB"`` or ``"1GB"``.

    Raises:
        ConfigError: No unit, an unknown one, or not a number.
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
        raise ConfigError(f"{text!r} is not {what}; write a number and its unit, for example {examples}")
    number, unit = match.groups()
    if not unit:
        raise ConfigError(f"{text!r} has no unit; write for example {examples}")
    if unit not in units:
        raise ConfigError(f"{text!r} has the unknown unit {unit!r}; known are {', '.join(units)}")
    value = float(number) * units[unit]
    if not math.isfinite(value):
        raise ConfigError(f"{text!r} is too large to be {what}")
    return value


@dataclass(frozen=True)
class _Setting:
    """One value and where it came from."""

    origin: str | Path
    section: str
    name: str
    value: Any


def _sections(config: type[Any]) -> dict[str, type[Any]]:
    """Return the sections of a configuration class by name."""
    found: dict[str, Any] = {section.name: section.default_factory for section in fields(config)}
    return found


def _name_options(section_name: str, section: type[Any]) -> list[Option]:
    """Return the keys of a section with their names: in files the unit of a duration stands in the value.

    A field that is not declared with :func:`option` is a constant that only tests choose otherwise.
    """
    named = []
    for entry in fields(section):
        if "option" not in entry.metadata:
            continue
        declared: Option = entry.metadata["option"]
        name = entry.name.removesuffix("_s") if declared.kind == "duration" else entry.name
        named.append(dataclasses.replace(declared, section=section_name, name=name, field=entry.name))
    return named


def _describe(section: type[Any]) -> str:
    return (section.__doc__ or "").splitlines()[0].split(": ", 1)[-1]


def check_url(value: str) -> None:
    """Check the address of a service over HTTP, of which an empty one is none.

    Raises:
        ValueError: It is no address, or holds a secret; the message does not show it.
    """
    if not value:
        return
    no_address = "is no address; write http://host:port/path or https://..."
    try:
        parts = urlsplit(value)
        usable = value.startswith(("http://", "https://")) and parts.hostname and parts.port != 0
    except ValueError:  # of a port that is none, or of half a bracket
        raise ValueError(no_address) from None
    if not usable or re.search(r"[\x00-\x20\x7f]", value):
        raise ValueError(no_address)
    if "@" in parts.netloc:
        raise ValueError("holds a user or password, which --print-config would show; let the receiver do without")
    if "?" in value:
        raise ValueError('holds a query ("?..."), which --print-config would show; let the receiver do without')


def _read_file(path: Path, known: Collection[str]) -> list[_Setting]:
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
    settings: list[_Setting] = []
    for section, values in document.items():
        if not isinstance(values, dict):
            raise ConfigError(
                f"{section} stands outside a section; known sections are {', '.join(known)}", origin=path, field=section
            )
        settings += [_Setting(path, section, name, value) for name, value in values.items()]
    return settings


def _read_environment(environment: Mapping[str, str], prefix: str, options: Mapping[str, Option]) -> list[_Setting]:
    known = {key.replace(".", "_").upper(): key for key in options}
    settings: list[_Setting] = []
    for variable, value in environment.items():
        if not variable.startswith(prefix):
            continue
        key = known.get(variable[len(prefix) :])
        if key is None:
            raise ConfigError(
                f"{variable} is no option; known are {', '.join(sorted(known))}", origin="environment", field=variable
            )
        settings.append(_split("environment", key, value))
    return settings


def _split(origin: str, key: str, value: str) -> _Setting:
    section, separator, name = key.partition(".")
    if not separator:
        raise ConfigError(f"{key!r} is no option; write section.name as in --print-config", origin=origin, field=key)
    return _Setting(origin, section, name, value)


def _find(options: Mapping[str, Option], setting: _Setting) -> Option:
    key = f"{setting.section}.{setting.name}"
    names = [entry.name for entry in options.values() if entry.section == setting.section]
    if not names:
        known = ", ".join(dict.fromkeys(entry.section for entry in options.values()))
        raise ConfigError(
            f"unknown section [{setting.section}]; known are {known}", origin=setting.origin, field=setting.section
        )
    if key not in options:
        nearest = difflib.get_close_matches(setting.name[:80], names, n=1)
        guess = f"did you mean {nearest[0]}? " if nearest else ""
        problem = f"unknown key {key}; {guess}[{setting.section}] has {', '.join(names)}"
        raise ConfigError(problem, origin=setting.origin, field=key)
    return options[key]


def _convert(setting: _Setting, entry: Option) -> Any:
    try:
        return _CONVERTERS[entry.kind](setting.value)
    except ConfigError as error:
        raise ConfigError(f"{entry.key}: {error}", origin=setting.origin, field=entry.key) from None


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


@dataclass(frozen=True)
class LogConfig:
    """``[log]``: what is said on stderr."""

    level: str = option(
        "text",
        "info",
        "debug, info, warning or error",
        choices=("debug", "info", "warning", "error"),
        live=True,
    )
    format: str = option(
        "text", "text", "text for people, or json: one object per line", choices=("text", "json"), live=True
    )


class MetricsSection(Protocol):
    """``[metrics]`` of a daemon."""

    @property
    def listen(self) -> str:
        """Where self metrics are served; empty for nowhere."""
        ...


class DaemonConfiguration(Configuration):
    """Base of a daemon's configuration, which has these two sections."""

    metrics: MetricsSection
    log: LogConfig
