"""The command `python -m sglang_omni.launch_router`: a router in front of OpenAI-compatible servers."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from sglang_omni import __version__
from sglang_omni.command_line import CommandParser
from sglang_omni.router import RouterConfig, run_router
from sglang_omni.router.flags import add_flags

_EXAMPLES = """
examples:
  %(prog)s --worker-urls http://10.0.0.1:8000 http://10.0.0.2:8000
  curl -X POST 'http://127.0.0.1:30000/workers?url=http://10.0.0.3:8000'

sgl-omni route top shows a running router's workers, live.
docs/router.md explains the options and lists the endpoints.
"""


def build_parser(prog: str = "python -m sglang_omni.launch_router") -> CommandParser:
    """The router's options: the fields of `RouterConfig`."""
    parser = CommandParser(
        prog=prog,
        usage="%(prog)s --worker-urls URL... [--OPTION VALUE]...",
        description="Route each request to the OpenAI-compatible server that most likely has the start of "
        "its prompt in its cache.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"sglang-omni-router {__version__}")
    add_flags(parser)
    return parser


def main(argv: Sequence[str] | None = None, *, prog: str = "python -m sglang_omni.launch_router") -> int:
    """Runs the router until a signal ends it; returns the exit status, which is 2 for wrong options."""
    parser = build_parser(prog)
    config = RouterConfig(**vars(parser.parse_args(argv)))
    try:
        return run_router(config)
    except ValueError as error:
        parser.error(str(error))
    except OSError as error:
        print(f"sglang-omni-router: error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
