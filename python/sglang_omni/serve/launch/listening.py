"""How clients reach the server: its certificate, and the web pages that may use it."""

from __future__ import annotations

import argparse
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

# In a fleet the router listens: its fields for these flags.
_ROUTERS = {
    "ssl_certfile": "tls_cert_path",
    "ssl_keyfile": "tls_key_path",
    "allowed_origins": "cors_allowed_origins",
}


class Certificate(NamedTuple):
    """The files of a certificate, with its chain, and of its key."""

    path: Path
    key: Path


def check_listen_flags(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Exits through ``parser`` if the certificate cannot be used."""
    if (args.ssl_certfile is None) != (args.ssl_keyfile is None):
        parser.error("--ssl-certfile and --ssl-keyfile: give both, or neither")
    if args.ssl_certfile is not None:
        try:
            tls_context(args.ssl_certfile, args.ssl_keyfile)
        except OSError as exc:  # what ssl raises as well
            why = f"{exc.filename} cannot be read: {exc.strerror}" if exc.filename else str(exc)
            parser.error(
                f"--ssl-certfile {args.ssl_certfile}, --ssl-keyfile {args.ssl_keyfile}: no certificate with "
                f"its key, both in PEM: {why}"
            )


def tls_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """What connections are encrypted with: TLS 1.2 or newer.

    Raises:
        OSError: A file cannot be read, or the key is not the certificate's.
    """
    for path in (certificate, key):
        path.open("rb").close()  # ssl does not say which of the two is missing
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # Without a callback a key behind a password would ask for it at the terminal.
    context.load_cert_chain(certificate, key, password=lambda: "")
    context.set_alpn_protocols(["http/1.1"])
    return context


def routers_listening(
    parser: argparse.ArgumentParser, args: argparse.Namespace, router: Mapping[str, Any]
) -> dict[str, Any]:
    """A fleet's router's fields with the server's flags, which are the router's there.

    Exits through ``parser`` if one is given twice.
    """
    fields = dict(router)
    for own, name in _ROUTERS.items():
        value = getattr(args, own)
        if not value:
            continue
        if name in router:
            flag, other = own.replace("_", "-"), name.replace("_", "-")
            parser.error(f"--{flag} and --router-{other} are the same in a fleet: give one")
        fields[name] = value if isinstance(value, list) else str(value)
    return fields
