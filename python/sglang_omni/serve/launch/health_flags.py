"""The flags of how long a request, a step or a silence may last."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from sglang_omni.serve.launch.flags import seconds

if TYPE_CHECKING:
    from sglang_omni.config import PipelineConfig

HEALTH_FLAGS = ("request_timeout", "watchdog_timeout", "heartbeat_timeout")


def add_health_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("health", "What hangs is found, said by /health, and started again.")
    group.add_argument(
        "--request-timeout",
        type=seconds,
        default=600.0,
        metavar="SECONDS",
        help="a request that takes longer is aborted and answered with 504, whatever `timeout` it asks for; "
        "0: it may take any time (default: %(default)g)",
    )
    group.add_argument(
        "--watchdog-timeout",
        type=seconds,
        metavar="SECONDS",
        help="a stage that is in one step for longer is ended and started again; 0: a step may take any time "
        "(default: the config's, 300)",
    )
    group.add_argument(
        "--heartbeat-timeout",
        type=seconds,
        metavar="SECONDS",
        help="a stage, replica or router that is silent for longer is ended and started again; 0: it is not "
        "(default: the config's, 30)",
    )


def apply_health_flags(config: PipelineConfig, args: argparse.Namespace) -> None:
    """Change ``config`` as the flags say."""
    if args.watchdog_timeout is not None:
        config.watchdog.step_timeout = args.watchdog_timeout
    if args.heartbeat_timeout is not None:
        config.watchdog.heartbeat_timeout = args.heartbeat_timeout
