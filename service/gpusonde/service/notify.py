"""Telling systemd (``Type=notify``) how the daemon is doing."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Mapping

log = logging.getLogger(__name__)

_PATIENCE_S = 1.0


def notify(*states: str, environment: Mapping[str, str] = os.environ) -> None:
    """Send states of ``sd_notify(3)`` in one message, for example ``READY=1``; does nothing outside of systemd."""
    address = environment.get("NOTIFY_SOCKET", "")
    if not address:
        return
    # A leading "@" stands for the abstract namespace.
    path = "\0" + address[1:] if address.startswith("@") else address
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
            # The event loop calls this: a manager that does not read must not stop it for long.
            channel.settimeout(_PATIENCE_S)
            channel.sendto("\n".join(states).encode(), path)
    except OSError as error:
        log.warning("systemd cannot be told %s: %s", " ".join(states), error.strerror or error)
