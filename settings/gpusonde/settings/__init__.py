"""Settings of the daemons: TOML, environment and command line in layers, quantities with their units."""

from gpusonde.settings.layers import (
    ConfigError,
    gather,
    option,
    options_of,
    section_types,
    to_toml,
)
from gpusonde.settings.quantities import (
    QuantityError,
    format_duration,
    format_size,
    parse_duration_s,
    parse_size_bytes,
)

__all__ = [
    "ConfigError",
    "QuantityError",
    "format_duration",
    "format_size",
    "gather",
    "option",
    "options_of",
    "parse_duration_s",
    "parse_size_bytes",
    "section_types",
    "to_toml",
]
