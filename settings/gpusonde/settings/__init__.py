"""Settings of the daemons: TOML, environment and command line in layers, quantities with their units."""

from gpusonde.settings.changes import Takeover, take_over
from gpusonde.settings.configuration import Configuration, LogConfig
from gpusonde.settings.layers import ConfigError, option
from gpusonde.settings.quantities import (
    QuantityError,
    format_duration,
    format_size,
    parse_duration_s,
    parse_size_bytes,
)

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
