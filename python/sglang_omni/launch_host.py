"""The command ``sgl-omni host``: joins a coordinator and runs the stages that its config puts on this
node."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

from sglang_omni.command_line import CommandParser
from sglang_omni.serve.launch.stopping import on_stop_signals

_EXAMPLES = """
example, of two machines:
  a$ sgl-omni serve --config two-hosts.yaml --join-port 7000 --host-address 10.0.0.1
  b$ scp a:.config/sglang_omni/join.key .
  b$ %(prog)s --coordinator tcp://10.0.0.1:7000 --name b --join-key join.key

When a run has ended, it joins the next one; Ctrl-C ends it and its processes.
docs/hosts.md explains ports, keys, and what happens when a host or a link fails.
"""


def build_parser(prog: str = "sgl-omni host") -> CommandParser:
    parser = CommandParser(
        prog=prog,
        description="Join a coordinator over the network; run the stages that its config puts on this node.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--coordinator",
        required=True,
        metavar="ENDPOINT",
        help="the coordinator's endpoint for hosts, which it logs when it starts: tcp://10.0.0.1:7000",
    )
    parser.add_argument("--name", required=True, help="this node's name in the config: `node: NAME`")
    parser.add_argument(
        "--join-key",
        type=Path,
        metavar="FILE",
        help="a copy of the coordinator's key file (default: ~/.config/sglang_omni/join.key)",
    )
    parser.add_argument(
        "--address",
        help="this machine's address for the other hosts (default: the one facing the coordinator)",
    )
    parser.add_argument(
        "--log-level", choices=("debug", "info", "warning", "error"), default="info", help="default: info"
    )
    return parser


def main(argv: Sequence[str] | None = None, *, prog: str = "sgl-omni host") -> int:
    parser = build_parser(prog)
    args = parser.parse_args(argv)
    logging.basicConfig(
        level=args.log_level.upper(),
        format=f"%(asctime)s %(levelname)s [host {args.name}] %(name)s: %(message)s",
    )
    # Imported late, so that --help is fast.
    from sglang_omni.config.imports import import_beside
    from sglang_omni.pipeline.processes.hosts.agent import HostAgent
    from sglang_omni.pipeline.processes.hosts.join_key import default_key_file, read_join_key
    from sglang_omni.pipeline.processes.hosts.join_sockets import JoinRefused

    try:
        key = read_join_key(args.join_key or default_key_file())
        agent = HostAgent(args.coordinator, args.name, key, args.address)
    except (OSError, ValueError) as exc:
        parser.error(str(exc))
    import_beside()
    try:
        asyncio.run(_until_told(agent.run()))
    except JoinRefused as exc:
        print(f"{parser.prog}: cannot join {args.coordinator} as {args.name!r}: {exc}", file=sys.stderr)
        return 1
    return 0


async def _until_told(running: Coroutine[Any, Any, None]) -> None:
    """Awaits ``running`` until it ends, or a signal ends it."""
    task = asyncio.create_task(running)
    on_stop_signals(lambda _: task.cancel())
    try:
        await task
    except asyncio.CancelledError:
        logging.getLogger(__name__).info("Left, and ended what ran here")


if __name__ == "__main__":
    sys.exit(main())
