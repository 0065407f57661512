"""Log lines on stderr, as text for people or as JSON objects for log collectors."""

from __future__ import annotations

import json
import logging
import sys
from datetime import datetime, timezone
from typing import TextIO


class JsonFormatter(logging.Formatter):
    """One JSON object per line: ``time`` (ISO 8601, UTC), ``level``, ``logger``, ``message``, ``exception`` if any."""

    def format(self, record: logging.LogRecord) -> str:
        """Format one record."""
        entry = {
            "time": datetime.fromtimestamp(record.created, tz=timezone.utc).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


class TextFormatter(logging.Formatter):
    """``2026-01-31 12:00:00.000 WARNING agent.uplink: message``, local time."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s.%(msecs)03d %(levelname)s %(name)s: %(message)s", "%Y-%m-%d %H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the base class's name
        """Leave the distribution's own name out of our loggers' names."""
        record.name = record.name.removeprefix("gpusonde.")
        return super().formatMessage(record)


def configure(log_format: str, *, verbose: bool, level: int, stream: TextIO | None = None) -> None:
    """Send log records of ``level`` and above to ``stream``, stderr by default; our own from DEBUG when verbose."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(_formatter(log_format))
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level)
    logging.getLogger("gpusonde").setLevel(logging.DEBUG if verbose else level)


def set_format(name: str) -> None:
    """Change the form of the lines.

    Args:
        name: ``text`` or ``json``.
    """
    for handler in logging.getLogger().handlers:
        handler.setFormatter(_formatter(name))


def set_level(name: str) -> None:
    """Change how much gpusonde's own loggers say.

    Args:
        name: ``debug``, ``info``, ``warning`` or ``error``.
    """
    logging.getLogger("gpusonde").setLevel(name.upper())


def _formatter(name: str) -> logging.Formatter:
    return JsonFormatter() if name == "json" else TextFormatter()
