"""What starts the processes of stages: this server, hosts that join it, or Ray."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from sglang_omni.packages import install_line

if TYPE_CHECKING:
    from sglang_omni.pipeline.processes.hosts.launcher import HostsLauncher
    from sglang_omni.pipeline.processes.launcher import Launcher

# No packet is sent there (it is set aside for documentation): only the route to it is looked up.
_ELSEWHERE = "192.0.2.1"


def check_launcher_flags(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """End the program if the flags do not fit together."""
    given = [
        f"--{name.replace('_', '-')}"
        for name in ("join_key", "host_address", "host_timeout")
        if getattr(args, name) is not None
    ]
    if args.join_port is None and given:
        parser.error(f"{', '.join(given)}: hosts join only with a --join-port")
    if args.join_port is not None and args.dp_size > 1:
        parser.error("--join-port: hosts join one replica; with --dp-size, start each with its own")
    if args.launcher != "ray":
        if args.ray_address is not None:
            parser.error("--ray-address: needs --launcher ray")
        return
    if args.join_port is not None:
        parser.error("--launcher ray: the nodes are Ray's, so that no host joins; leave --join-port out")
    if args.mps == "on":
        parser.error("--mps on: Ray places processes on GPUs, and nothing here starts MPS on its nodes")
    if args.dp_size > 1:
        parser.error(
            "--launcher ray: replicate stages with num_replicas, or start one server for each replica and a "
            "router (sgl-omni route) in front of them, in place of --dp-size"
        )


def chosen_launcher(args: argparse.Namespace) -> Launcher:
    """What starts the processes of stages.

    Raises:
        RuntimeError: Ray is not installed.
        OSError: The join key cannot be read or written.
        ValueError: An address cannot be used.
    """
    if args.launcher == "ray":
        return _ray_launcher(args)
    if args.join_port is not None:
        return _hosts_launcher(args)
    from sglang_omni.pipeline.processes.local import LocalLauncher

    return LocalLauncher(args.mps)


def _hosts_launcher(args: argparse.Namespace) -> HostsLauncher:
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
        mps=args.mps,
    )


def _ray_launcher(args: argparse.Namespace) -> Launcher:
    try:
        from sglang_omni.pipeline.processes.ray.launcher import RayLauncher
    except ModuleNotFoundError as exc:
        if exc.name != "ray":
            raise
        raise RuntimeError(f"--launcher ray needs Ray:\n  {install_line('ray')}") from None
    return RayLauncher(args.ray_address, placement_timeout=args.start_timeout)
