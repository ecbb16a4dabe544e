"""The command ``sgl-omni trace REQUEST_ID``: fetches what a request did when, for ui.perfetto.dev."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from sglang_omni.cli.connection import add_connection_flags, api_key
from sglang_omni.command_line import CommandParser

if TYPE_CHECKING:
    # Imported late, so that --help is fast.
    import httpx

_TIMEOUT_S = 30.0


def build_parser(prog: str) -> CommandParser:
    parser = CommandParser(
        prog=prog,
        description="Fetch the trace of a request that a server has answered lately, over all its processes, "
        "to be opened in https://ui.perfetto.dev.",
    )
    parser.add_argument(
        "request_id", metavar="REQUEST_ID", help="the x-request-id of the answer, or the id in its body"
    )
    add_connection_flags(parser, with_model=False)
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="where to write it; - for standard output (default: trace-ID.json)",
    )
    return parser


def main(argv: Sequence[str], *, prog: str = "sgl-omni trace") -> int:
    """Writes the trace to a file; returns the exit status."""
    args = build_parser(prog).parse_args(argv)
    # Imported late, so that --help is fast.
    import httpx

    key = api_key(args)
    url = f"{args.url.rstrip('/')}/traces/{quote(args.request_id, safe='')}"
    try:
        answer = httpx.get(
            url,
            headers={"authorization": f"Bearer {key}"} if key else {},
            timeout=_TIMEOUT_S,
            trust_env=False,
        )
        answer.raise_for_status()
        trace = answer.json()
    except httpx.HTTPStatusError as exc:
        print(f"{prog}: {_error(exc.response)}", file=sys.stderr)
        return 1
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as exc:
        print(f"{prog}: {url}: {exc}", file=sys.stderr)
        return 1
    text = json.dumps(trace)
    if args.output == "-":
        print(text)
        return 0
    path = Path(args.output or f"trace-{re.sub(r'[^A-Za-z0-9._-]', '_', args.request_id)}.json")
    try:
        path.write_text(text)
    except OSError as exc:
        print(f"{prog}: {exc}", file=sys.stderr)
        return 1
    print(f"{path}: {len(trace['traceEvents'])} events; open it in https://ui.perfetto.dev")
    return 0


def _error(response: httpx.Response) -> str:
    try:
        return str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"{response.url} answered with {response.status_code}"
