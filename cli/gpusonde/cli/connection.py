"""How commands reach a collector: its address, TLS and a token, from flags or the environment."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from gpusonde.cli.parsing import DEFAULT_COLLECTOR, address
from gpusonde.errors import UsageError

if TYPE_CHECKING:
    from gpusonde.collector.client import Client
    from gpusonde.service.tls import ClientSecurity

# Destination of the flag, its environment variable, what it holds.
_FILES = (
    ("tls_ca", "GPUSONDE_TLS_CA", "PEM file with the authority of the collector's certificate; turns TLS on"),
    ("tls_cert", "GPUSONDE_TLS_CERT", "PEM file with your certificate and its chain"),
    ("tls_key", "GPUSONDE_TLS_KEY", "PEM file with its key"),
    ("token_file", "GPUSONDE_TOKEN_FILE", "file with a token of 'gpusonde token new', instead of a certificate"),
)
# The name in the collector's certificate where that is not the address's host: rare enough for the environment alone.
_SERVER_NAME = "GPUSONDE_TLS_SERVER_NAME"


def add_collector_options(
    parser: argparse.ArgumentParser,
    *,
    default: str | None = DEFAULT_COLLECTOR,
    otherwise: str = "predicting here",
) -> None:
    """Declare ``--collector`` of the commands that ask one, and what proves who asks whom.

    ``otherwise`` is what happens without, for commands that have no default.
    """
    group = parser.add_argument_group(
        "the collector",
        f"Each option has an environment variable, named in brackets; {_SERVER_NAME} is the name in the collector's "
        "certificate, if not the address's host.",
    )
    group.add_argument(
        "--collector",
        type=address,
        default=default,
        metavar="HOST:PORT",
        help=f"address of the collector (default: {DEFAULT_COLLECTOR})"
        if default
        else f"ask this collector instead of {otherwise}",
    )
    for name, variable, text in _FILES:
        group.add_argument(_flag(name), metavar="FILE", help=f"{text} [{variable}]")


def client_security(args: argparse.Namespace, environment: Mapping[str, str] = os.environ) -> ClientSecurity:
    """Return the files to use; flags win over the environment.

    Raises:
        UsageError: They do not go together.
    """
    from gpusonde.service.tls import ClientSecurity

    values = {name: getattr(args, name) or environment.get(variable, "") for name, variable, _ in _FILES}
    security = ClientSecurity(
        ca=values["tls_ca"],
        certificate=values["tls_cert"],
        key=values["tls_key"],
        server_name=environment.get(_SERVER_NAME, ""),
        token_file=values["token_file"],
    )
    if problem := security.problem(args.collector):
        raise UsageError(f"--tls-ca, --tls-cert, --tls-key, --token-file and {_SERVER_NAME}: {problem}")
    return security


def connect(args: argparse.Namespace) -> Client:
    """Return a client of the collector that the command line names.

    Raises:
        UsageError: Its options do not go together.
        gpusonde.service.tls.TlsError: A file cannot be used.
    """
    from gpusonde.collector.client import Client

    return Client(args.collector, security=client_security(args))


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
