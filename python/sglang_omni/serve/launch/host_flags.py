"""The flags of a server whose stages run on several hosts."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from sglang_omni.router.flags import port

if TYPE_CHECKING:
    from sglang_omni.pipeline.processes.hosts.launcher import HostsLauncher

# No packet is sent there (it is set aside for documentation): what counts is where one would leave from.
_ELSEWHERE = "192.0.2.1"


def add_host_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "several hosts", "For stages with a `node`: each such host runs `sgl-omni host`. See docs/hosts.md."
    )
    group.add_argument(
        "--join-port", type=port, metavar="PORT", help="let hosts join here; 0 picks a free port"
    )
    group.add_argument(
        "--join-key",
        type=Path,
        metavar="FILE",
        help="the key that hosts join with; written where there is none "
        "(default: ~/.config/sglang_omni/join.key)",
    )
    group.add_argument(
        "--host-address",
        metavar="ADDRESS",
        help="this machine's address, where the others reach it (default: that of its default route)",
    )
    group.add_argument(
        "--host-timeout",
        type=float,
        metavar="SECONDS",
        help="a host that is silent for so long has failed (default: 10)",
    )


def check_host_flags(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Ends the program where they do not fit together."""
    given = [
        f"--{name.replace('_', '-')}"
        for name in ("join_key", "host_address", "host_timeout")
        if getattr(args, name) is not None
    ]
    if args.join_port is None and given:
        parser.error(f"{', '.join(given)}: hosts join only with a --join-port")
    if args.host_timeout is not None and not args.host_timeout > 0:
        parser.error("--host-timeout must be more than 0 seconds")
    if args.join_port is not None and args.dp_size > 1:
        parser.error("--join-port: hosts join one replica; with --dp-size, start each with its own")


def hosts_launcher(args: argparse.Namespace) -> HostsLauncher:
    """Raises OSError or ValueError where the key or the address cannot be used."""
    from sglang_omni.pipeline.processes.hosts.addresses import address_towards
    from sglang_omni.pipeline.processes.hosts.join_key import default_key_file, read_or_create_join_key
    from sglang_omni.pipeline.processes.hosts.launcher import HostsLauncher

    key_file = args.join_key or default_key_file()
    try:
        address = args.host_address or address_towards(_ELSEWHERE, 9)
    except ValueError:
        raise ValueError(
            "this machine has no default route: say with --host-address where hosts reach it"
        ) from None
    return HostsLauncher(
        address,
        args.join_port,
        read_or_create_join_key(key_file),
        host_timeout=args.host_timeout or 10.0,
        join_timeout=args.start_timeout,
        key_file=key_file,
    )
