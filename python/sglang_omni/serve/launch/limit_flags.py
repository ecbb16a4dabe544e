"""The flags of how large requests may be, how strictly they are read, how many run, and how many wait."""

from __future__ import annotations

import argparse
from functools import partial

from sglang_omni.serve.api.limits import BodyLimits
from sglang_omni.serve.launch.flags import count, count_or_any, count_or_none, seconds

_ADMISSION = ("max_concurrent_requests", "queue_size", "queue_timeout")
LIMIT_FLAGS = ("max_body_size", "max_json_size", "strict_params", *_ADMISSION)


def add_limit_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--max-body-size",
        type=count,
        default=BodyLimits.max_body_size,
        metavar="BYTES",
        help="larger request bodies are refused with 413 (default: %(default)s, 64 MiB)",
    )
    parser.add_argument(
        "--max-json-size",
        type=count,
        default=BodyLimits.max_json_size,
        metavar="BYTES",
        help="JSON bodies that are larger without their media, too (default: %(default)s, 8 MiB)",
    )
    parser.add_argument(
        "--strict-params",
        action="store_true",
        help="refuse fields of requests that have no effect on the model, of which answers else only warn",
    )
    group = parser.add_argument_group(
        "limits", "Each of one replica. Requests beyond them are answered with 429 and Retry-After."
    )
    group.add_argument(
        "--max-concurrent-requests",
        type=count_or_any,
        metavar="REQUESTS",
        help="requests that run at once; -1 for any number (default: what the pipeline's stages hold)",
    )
    group.add_argument(
        "--queue-size",
        "--max-queued-requests",
        type=count_or_none,
        metavar="REQUESTS",
        help="requests beyond that which may wait for their turn; 0 for none (default: twice as many as run)",
    )
    group.add_argument(
        "--queue-timeout",
        type=partial(seconds, above_0=True),
        metavar="SECONDS",
        help="a request that has waited for its turn this long is refused (default: 60)",
    )


def given_limits(args: argparse.Namespace) -> dict[str, float]:
    """The limits of how many requests run and wait that were given, by name."""
    return {name: value for name in _ADMISSION if (value := getattr(args, name)) is not None}
