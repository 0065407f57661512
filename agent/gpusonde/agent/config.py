"""``AgentConfig``: what an operator can set, where it comes from, and what is wrong with it.

Precedence: flags over environment over file over defaults. Every option ``[section] name`` has the environment variable
``GPUSONDE_AGENT_SECTION_NAME``. Unknown keys are errors, durations and sizes carry their unit.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any

from gpusonde.agent.quantities import QuantityError, format_duration, format_size, parse_duration_s, parse_size_bytes

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ENVIRONMENT_PREFIX = "GPUSONDE_AGENT_"
DEFAULT_COLLECTOR = "127.0.0.1:7433"
# Below this, profiling metrics are invalid on Hopper (NVIDIA/DCGM issue 310) and the watched job notices.
MINIMUM_INTERVAL_S = 0.1
_LOG_LEVELS = ("debug", "info", "warning", "error")


class ConfigError(ValueError):
    """A setting that cannot be used; the message names where it stands and what would be right."""


def _option(kind: str, default: Any, help_text: str) -> Any:
    return field(default=default, metadata={"kind": kind, "help": help_text})


@dataclass(frozen=True)
class IdentityConfig:
    """``[agent]``: who the agent is."""

    id: str = _option(
        "text", "", "name of this agent at the collector; empty: host name and a random part, kept beside the spool"
    )


@dataclass(frozen=True)
class SourceConfig:
    """``[source]``: what is sampled."""

    kind: str = _option("text", "auto", "auto, nvml (GPM metrics where the GPU has them) or replay")
    interval_s: float = _option("duration", 0.1, "time between ticks, at least 100ms")
    slow_interval_s: float = _option(
        "duration", 10.0, "time between readings of slow metrics (temperatures, energy ...)"
    )
    trace: str = _option("text", "", "trace file to replay")
    speed: float = _option("number", 1.0, "replay speed; 10 is ten times faster than it was recorded")
    keep_time: bool = _option("switch", False, "replay with the recorded wall-clock times")


@dataclass(frozen=True)
class SpoolConfig:
    """``[spool]``: where samples wait for the collector."""

    directory: str = _option("text", "", "directory, one agent each; empty: ~/.local/state/gpusonde/spool")
    max_bytes: int = _option(
        "size", 1 << 30, "bound of the spool; beyond it the oldest records are dropped and reported"
    )
    commit_interval_s: float = _option(
        "duration", 0.1, "time between syncs to the disk; nothing is sent before it is synced"
    )

    @property
    def path(self) -> Path:
        """The directory, with the default filled in."""
        chosen = self.directory or "~/.local/state/gpusonde/spool"
        return Path(chosen).expanduser()


@dataclass(frozen=True)
class UplinkConfig:
    """``[uplink]``: the way to the collector."""

    collector: str = _option("text", DEFAULT_COLLECTOR, "address of the collector, host:port")
    batch_interval_s: float = _option("duration", 1.0, "time covered by one record")
    compression: str = _option("text", "zstd", "zstd or none")
    max_unacked_records: int = _option("count", 64, "most records in flight without an acknowledgement")
    drain_timeout_s: float = _option("duration", 10.0, "time to empty the spool to the collector when stopped")


@dataclass(frozen=True)
class LogConfig:
    """``[log]``: what is said on stderr."""

    level: str = _option("text", "info", "debug, info, warning or error")


@dataclass(frozen=True)
class AgentConfig:
    """Everything the agent can be told."""

    agent: IdentityConfig = field(default_factory=IdentityConfig)
    source: SourceConfig = field(default_factory=SourceConfig)
    spool: SpoolConfig = field(default_factory=SpoolConfig)
    uplink: UplinkConfig = field(default_factory=UplinkConfig)
    log: LogConfig = field(default_factory=LogConfig)

    def __post_init__(self) -> None:
        """Check what depends on more than one character of the text.

        Raises:
            ConfigError: A value out of its range.
        """
        _check(self)

    @classmethod
    def load(
        cls,
        path: Path | str | None = None,
        *,
        environment: Mapping[str, str] = MappingProxyType({}),
        overrides: Mapping[str, str] = MappingProxyType({}),
    ) -> AgentConfig:
        """Read a configuration.

        Args:
            path: TOML file, or None for none.
            environment: Usually ``os.environ``; only ``GPUSONDE_AGENT_*`` is looked at.
            overrides: Flags, as ``{"source.interval": "200ms"}``.

        Raises:
            ConfigError: Unknown keys, values without a unit or out of range, a file that cannot be read.
        """
        chosen: dict[str, dict[str, Any]] = {}
        for origin, section, name, value in _all_settings(path, environment, overrides):
            option = _find(section, name, origin)
            chosen.setdefault(section, {})[option.name] = _convert(value, option, f"{origin}: {section}.{name}")
        sections = {f.name: f for f in fields(cls)}
        return cls(**{name: _section_type(sections[name])(**values) for name, values in chosen.items()})

    def to_toml(self) -> str:
        """Write the configuration as a commented file that :meth:`load` reads back to the same value."""
        lines = []
        for section in fields(self):
            section_type = _section_type(section)
            lines += [f"# {(section_type.__doc__ or '').splitlines()[0].split(': ', 1)[-1]}", f"[{section.name}]"]
            values = getattr(self, section.name)
            for option in fields(section_type):
                lines.append(f"# {option.metadata['help']}")
                lines.append(
                    f"{_toml_name(option)} = {_to_toml(getattr(values, option.name), option.metadata['kind'])}"
                )
            lines.append("")
        return "\n".join(lines)


def options() -> dict[str, str]:
    """Return every option as ``section.name`` with its help line, for command lines and documentation."""
    return {
        f"{section.name}.{_toml_name(option)}": str(option.metadata["help"])
        for section in fields(AgentConfig)
        for option in fields(_section_type(section))
    }


def _check(config: AgentConfig) -> None:
    source, uplink = config.source, config.uplink
    if source.kind not in ("auto", "nvml", "replay"):
        raise ConfigError(f"source.kind {source.kind!r} is unknown; use auto, nvml or replay")
    if source.kind == "replay" and not source.trace:
        raise ConfigError("source.kind is replay but source.trace names no file")
    if source.interval_s < MINIMUM_INTERVAL_S:
        raise ConfigError(
            f"source.interval {format_duration(source.interval_s)} is too short: profiling metrics are invalid below "
            "100ms, and the watched job would notice; use 100ms or more"
        )
    if source.slow_interval_s < source.interval_s:
        raise ConfigError("source.slow_interval is shorter than source.interval; use at least the same")
    if not source.speed > 0:
        raise ConfigError(f"source.speed {source.speed:g} is not positive; 1 is real time")
    if config.spool.max_bytes < 1 << 20:
        raise ConfigError(f"spool.max_bytes {format_size(config.spool.max_bytes)} is too small; use 1MiB or more")
    if not 0.01 <= config.spool.commit_interval_s <= 10:
        raise ConfigError("spool.commit_interval must lie between 10ms and 10s; the default is 100ms")
    if not 0.1 <= uplink.batch_interval_s <= 60:
        raise ConfigError("uplink.batch_interval must lie between 100ms and 1m; the default is 1s")
    if uplink.compression not in ("zstd", "none"):
        raise ConfigError(f"uplink.compression {uplink.compression!r} is unknown; use zstd or none")
    if not 1 <= uplink.max_unacked_records <= 10_000:
        raise ConfigError("uplink.max_unacked_records must lie between 1 and 10000; the default is 64")
    if not uplink.collector:
        raise ConfigError("uplink.collector is empty; give the collector's host:port")
    if config.log.level not in _LOG_LEVELS:
        raise ConfigError(f"log.level {config.log.level!r} is unknown; use {', '.join(_LOG_LEVELS)}")


def _all_settings(
    path: Path | str | None, environment: Mapping[str, str], overrides: Mapping[str, str]
) -> list[tuple[str, str, str, Any]]:
    settings: list[tuple[str, str, str, Any]] = []
    if path is not None:
        for section, values in _read_toml(Path(path)).items():
            if not isinstance(values, dict):
                raise ConfigError(f"{path}: {section} stands outside a section; known sections are {_section_names()}")
            settings += [(str(path), section, name, value) for name, value in values.items()]
    known = {key.replace(".", "_").upper(): key for key in options()}
    for variable, value in environment.items():
        if variable.startswith(ENVIRONMENT_PREFIX):
            key = known.get(variable[len(ENVIRONMENT_PREFIX) :])
            if key is None:
                raise ConfigError(f"environment: {variable} is no option; known are {', '.join(sorted(known))}")
            settings.append(("environment", *_split(key, "environment"), value))
    settings += [("command line", *_split(key, "command line"), value) for key, value in overrides.items()]
    return settings


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; give an existing configuration file") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not TOML: {error}") from error


def _split(key: str, origin: str) -> tuple[str, str]:
    section, dot, name = key.partition(".")
    if not dot:
        raise ConfigError(f"{origin}: {key!r} is no option; write section.name, for example source.interval")
    return section, name


def _find(section: str, name: str, origin: str) -> Field[Any]:
    for candidate in fields(AgentConfig):
        if candidate.name == section:
            for option in fields(_section_type(candidate)):
                if _toml_name(option) == name:
                    return option
            known = ", ".join(_toml_name(option) for option in fields(_section_type(candidate)))
            raise ConfigError(f"{origin}: unknown key {section}.{name}; [{section}] has {known}")
    raise ConfigError(f"{origin}: unknown section [{section}]; known are {_section_names()}")


def _section_type(section: Field[Any]) -> type[Any]:
    factory: Any = section.default_factory
    return factory  # type: ignore[no-any-return]


def _section_names() -> str:
    return ", ".join(section.name for section in fields(AgentConfig))


def _toml_name(option: Field[Any]) -> str:
    # The unit is in the value there ("100ms"), in the name here.
    return option.name.removesuffix("_s") if option.metadata["kind"] == "duration" else option.name


def _convert(value: Any, option: Field[Any], where: str) -> Any:
    try:
        return _CONVERTERS[option.metadata["kind"]](value)
    except (QuantityError, ConfigError) as error:
        raise ConfigError(f"{where}: {error}") from None


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"{value!r} is not text; put it in quotes")
    return value


def _duration(value: Any) -> float:
    if not isinstance(value, str):
        raise ConfigError(f'{value!r} has no unit; write for example "100ms" or "10s"')
    return parse_duration_s(value)


def _size(value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        raise ConfigError(f'{value!r} has no unit; write for example "1GiB" or "{value}B"')
    return parse_size_bytes(_text(value))


def _number(value: Any) -> float:
    try:
        if isinstance(value, bool):
            raise ValueError  # noqa: TRY301, TRY004 - one message for everything that is no number
        number = float(value)
    except (TypeError, ValueError):
        raise ConfigError(f"{value!r} is not a number") from None
    if math.isnan(number):
        raise ConfigError(f"{value!r} is not a number")
    return number


def _count(value: Any) -> int:
    number = _number(value)
    if number != int(number):
        raise ConfigError(f"{value!r} is not a whole number")
    return int(number)


def _switch(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if value in ("true", "false"):
        return bool(value == "true")
    raise ConfigError(f"{value!r} is neither true nor false")


_CONVERTERS: Mapping[str, Callable[[Any], Any]] = MappingProxyType(
    {"text": _text, "duration": _duration, "size": _size, "number": _number, "count": _count, "switch": _switch}
)


def _to_toml(value: Any, kind: str) -> str:
    if kind == "duration":
        return f'"{format_duration(value)}"'
    if kind == "size":
        return f'"{format_size(value)}"'
    if kind == "switch":
        return str(value).lower()
    if kind in ("number", "count"):
        return f"{value!r}"
    escaped = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
