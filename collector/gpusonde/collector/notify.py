"""Telling systemd (``Type=notify``) how the service is doing."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping


def notify(state: str, environment: Mapping[str, str] = os.environ) -> None:
    """Send one state, for example ``READY=1``; does nothing outside of systemd."""
    address = environment.get("NOTIFY_SOCKET", "")
    if not address:
        return
    # A leading "@" stands for the abstract namespace, see sd_notify(3).
    path = "\0" + address[1:] if address.startswith("@") else address
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
        channel.sendto(state.encode(), path)
