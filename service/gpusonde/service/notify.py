"""Telling systemd (``Type=notify``) how the daemon is doing."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Mapping

log = logging.getLogger(__name__)


def notify(state: str, environment: Mapping[str, str] = os.environ) -> None:
    """Send one state of ``sd_notify(3)``, for example ``READY=1``; does nothing outside of systemd."""
    address = environment.get("NOTIFY_SOCKET", "")
    if not address:
        return
    # A leading "@" stands for the abstract namespace.
    path = "\0" + address[1:] if address.startswith("@") else address
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
            channel.sendto(state.encode(), path)
    except OSError as error:
        log.warning("systemd cannot be told %s: %s", state, error.strerror)
