"""The flags of how long things may take before they count as hung."""

from __future__ import annotations

import argparse
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sglang_omni.config import PipelineConfig


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds, 0 or more")
    return seconds


def add_health_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("health", "What hangs is found, said by /health, and started again.")
    group.add_argument(
        "--request-timeout",
        type=_seconds,
        default=600.0,
        metavar="SECONDS",
        help="a request that takes longer is aborted and answered with 504, whatever `timeout` it asks for; "
        "0: it may take any time (default: %(default)g)",
    )
    group.add_argument(
        "--watchdog-timeout",
        type=_seconds,
        metavar="SECONDS",
        help="a stage that is in one step for longer is ended and started again; 0: a step may take any time "
        "(default: the config's, 300)",
    )
    group.add_argument(
        "--heartbeat-timeout",
        type=_seconds,
        metavar="SECONDS",
        help="a stage, replica or router that is silent for longer is ended and started again; 0: it is not "
        "(default: the config's, 30)",
    )


def apply_health_flags(config: PipelineConfig, args: argparse.Namespace) -> None:
    """Changes ``config`` as the flags say."""
    if args.watchdog_timeout is not None:
        config.watchdog.step_timeout = args.watchdog_timeout
    if args.heartbeat_timeout is not None:
        config.watchdog.heartbeat_timeout = args.heartbeat_timeout


def health_arguments(args: argparse.Namespace) -> list[str]:
    """The flags as they were given, for a process that is to serve the same."""
    given = {
        "--request-timeout": args.request_timeout,
        "--watchdog-timeout": args.watchdog_timeout,
        "--heartbeat-timeout": args.heartbeat_timeout,
    }
    return [word for flag, value in given.items() if value is not None for word in (flag, str(value))]
