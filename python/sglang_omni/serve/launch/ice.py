"""The STUN and TURN servers of calls over WebRTC, and their credentials."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from importlib.util import find_spec

from sglang_omni.packages import install_line
from sglang_omni.serve.realtime.ice import IceServers, check_url, is_turn

TURN_CREDENTIALS = "SGLANG_OMNI_TURN_CREDENTIALS"


def take_ice_servers(parser: argparse.ArgumentParser, args: argparse.Namespace) -> IceServers:
    """The servers that were given. The environment's credentials are taken out of it: no stage inherits them.

    Exits through ``parser`` if they cannot be used.
    """
    urls: Sequence[str] = args.ice_server
    given = os.environ.pop(TURN_CREDENTIALS, "")
    turns = sum(map(is_turn, urls))
    if turns > 1 or len(urls) - turns > 1:
        parser.error(f"--ice-server: at most one STUN server and one TURN server, not {', '.join(urls)}")
    if urls and find_spec("aiortc") is None:
        parser.error(f"--ice-server: calls over WebRTC need aiortc; {install_line('realtime')}")
    if args.turn_credentials_file is not None:
        if not turns:
            parser.error("--turn-credentials-file: there is no TURN server; give one with --ice-server")
        try:
            given = args.turn_credentials_file.read_text(encoding="utf-8")
        except (OSError, UnicodeError) as exc:
            why = exc.strerror if isinstance(exc, OSError) else "it is no text"
            parser.error(f"--turn-credentials-file: cannot read {args.turn_credentials_file}: {why}")
    if not turns:
        return IceServers(tuple(urls))
    words = given.split()
    if len(words) != 2:
        parser.error(
            f"--ice-server: a TURN server takes credentials: set {TURN_CREDENTIALS}, or write "
            "--turn-credentials-file, with one line `USERNAME PASSWORD`"
        )
    return IceServers(tuple(urls), *words)


def replicas_turn(servers: IceServers) -> dict[str, str]:
    """What a fleet's replicas find in their environment."""
    if servers.username is None:
        return {}
    return {TURN_CREDENTIALS: f"{servers.username} {servers.password}"}


def ice_url(text: str) -> str:
    try:
        return check_url(text)
    except ValueError as exc:
        raise argparse.ArgumentTypeError(str(exc)) from None
