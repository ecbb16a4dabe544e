"""`python -m sglang_omni.launch_router`: a router in front of OpenAI-compatible replicas."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from sglang_omni._core import router_policies
from sglang_omni.router import RouterConfig, run_router


def build_parser(prog: str = "python -m sglang_omni.launch_router") -> argparse.ArgumentParser:
    """The router's options; their defaults are `RouterConfig`'s."""
    default = RouterConfig()
    parser = argparse.ArgumentParser(
        prog=prog,
        description="Route requests to OpenAI-compatible replicas.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument(
        "--worker-urls",
        nargs="*",
        default=[],
        metavar="URL",
        help="replicas, as http://host:port; POST /workers adds more while running",
    )
    parser.add_argument("--host", default=default.host, help="address to listen on")
    parser.add_argument(
        "--port", type=_port, default=default.port, help="port to listen on; 0 takes a free one"
    )
    parser.add_argument(
        "--policy", choices=router_policies(), default=default.policy, help="how a replica is chosen"
    )
    parser.add_argument(
        "--cache-threshold",
        type=float,
        default=default.cache_threshold,
        metavar="SHARE",
        help="cache_aware: follow a prompt to where more than this share of it was seen",
    )
    parser.add_argument(
        "--balance-abs-threshold",
        type=_count,
        default=default.balance_abs_threshold,
        metavar="REQUESTS",
        help="cache_aware: take the shortest queue once the longest has this many more",
    )
    parser.add_argument(
        "--balance-rel-threshold",
        type=float,
        default=default.balance_rel_threshold,
        metavar="FACTOR",
        help="cache_aware: ... and is longer by this factor",
    )
    parser.add_argument(
        "--eviction-interval",
        type=float,
        default=default.eviction_interval,
        metavar="SECONDS",
        help="cache_aware: time between two trims of the prefix tree",
    )
    parser.add_argument(
        "--max-tree-size",
        type=_count,
        default=default.max_tree_size,
        metavar="BYTES",
        help="cache_aware: prompt text remembered for each replica",
    )
    return parser


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) <= 65535):
        raise argparse.ArgumentTypeError(f"{text!r} is not a port; give 0 to 65535")
    return int(text)


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 0 or more")
    return int(text)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the router until a signal ends it; returns the exit status, 2 for wrong options."""
    parser = build_parser()
    config = RouterConfig(**vars(parser.parse_args(argv)))
    if not config.worker_urls:
        print("sglang-omni-router: no --worker-urls; waiting for POST /workers", file=sys.stderr)
    try:
        return run_router(config)
    except ValueError as error:
        parser.error(str(error))
    except OSError as error:
        print(f"sglang-omni-router: error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
