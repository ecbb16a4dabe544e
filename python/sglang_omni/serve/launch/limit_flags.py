"""The launcher's flags for how many requests run, and how many wait, under the router's names."""

from __future__ import annotations

import argparse

from sglang_omni.serve.launch.model_flags import count


def _count_or_any(text: str) -> int:
    return -1 if text == "-1" else count(text)


def _size(text: str) -> int:
    return 0 if text == "0" else count(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return seconds


def add_limit_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "limits", "Each of one replica. Requests beyond them are answered with 429 and Retry-After."
    )
    group.add_argument(
        "--max-concurrent-requests",
        type=_count_or_any,
        metavar="REQUESTS",
        help="requests that run at once; -1 for any number (default: what the pipeline's stages hold)",
    )
    group.add_argument(
        "--queue-size",
        type=_size,
        metavar="REQUESTS",
        help="requests beyond that which may wait for their turn; 0 for none (default: twice as many as run)",
    )
    group.add_argument(
        "--queue-timeout",
        type=_seconds,
        metavar="SECONDS",
        help="a request that has waited for its turn this long is refused (default: 60)",
    )


_FLAGS = ("max_concurrent_requests", "queue_size", "queue_timeout")


def limit_arguments(args: argparse.Namespace) -> list[str]:
    """The flags as they were given, for a process that is to serve the same."""
    given: list[str] = []
    for name in _FLAGS:
        if (value := getattr(args, name)) is not None:
            given += [f"--{name.replace('_', '-')}", str(value)]
    return given


def given_limits(args: argparse.Namespace) -> dict[str, float]:
    """Those of the limits that were given, by their names."""
    return {name: value for name in _FLAGS if (value := getattr(args, name)) is not None}
