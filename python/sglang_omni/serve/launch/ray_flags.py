"""The flags of a server whose stages run as actors of a Ray cluster."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any, Protocol

from sglang_omni.packages import install_line

if TYPE_CHECKING:
    from sglang_omni.pipeline.processes.ray.launcher import RayLauncher


def add_ray_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "Ray",
        "For stages that a Ray cluster places and restarts; a `node` is a custom resource then. See "
        "docs/ray.md.",
    )
    add_launcher_flag(group)
    group.add_argument(
        "--ray-address",
        metavar="ADDRESS",
        help="HOST:PORT of the cluster, or auto for the one this machine is in (default: $RAY_ADDRESS, "
        "else auto, else a cluster is started on this machine)",
    )


class TakesFlags(Protocol):
    """A parser, or a group of one."""

    def add_argument(self, *names: str, **settings: Any) -> Any: ...


def add_launcher_flag(parser: TakesFlags) -> None:
    """``--launcher``."""
    parser.add_argument(
        "--launcher",
        choices=("local", "ray"),
        default="local",
        help="what starts the processes of stages: this server, or Ray (default: local)",
    )


def check_ray_flags(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Ends the program where they do not fit together."""
    if args.launcher != "ray":
        if args.ray_address is not None:
            parser.error("--ray-address: needs --launcher ray")
        return
    if args.join_port is not None:
        parser.error("--launcher ray: the nodes are Ray's, so that no host joins; leave --join-port out")
    if args.dp_size > 1:
        parser.error(
            "--launcher ray: replicate stages with num_replicas, or start one server for each replica and a "
            "router (sgl-omni route) in front of them, in place of --dp-size"
        )


def ray_launcher(args: argparse.Namespace) -> RayLauncher:
    """
    Raises:
        RuntimeError: Ray is not installed.
        ValueError: The address is of a kind that does not work.
    """
    try:
        from sglang_omni.pipeline.processes.ray.launcher import RayLauncher
    except ModuleNotFoundError as exc:
        if exc.name != "ray":
            raise
        raise RuntimeError(f"--launcher ray needs Ray:\n  {install_line('ray')}") from None
    return RayLauncher(args.ray_address, placement_timeout=args.start_timeout)
