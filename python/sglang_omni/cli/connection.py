"""What the commands that talk to a server have in common: its flags, the client, and failures in words."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sglang_omni.client import SyncClient

DEFAULT_URL = "http://127.0.0.1:8000"
_KEY = "SGLANG_OMNI_API_KEY"


class CommandError(Exception):
    """Why a command cannot go on, for the person at the terminal."""


def add_connection_flags(parser: argparse.ArgumentParser, *, with_model: bool = True) -> None:
    group = parser.add_argument_group("server")
    group.add_argument(
        "--url",
        default=DEFAULT_URL,
        help="the server, or the router in front of several; any with OpenAI's API (default: %(default)s)",
    )
    group.add_argument(
        "--api-key", metavar="KEY", help=f"the key to show it; or set {_KEY}, which `ps` does not show"
    )
    if with_model:
        group.add_argument("--model", metavar="NAME", help="by default the first that can do it")


def api_key(args: argparse.Namespace) -> str | None:
    """The key that was given, or the first of the environment's."""
    return args.api_key or os.environ.get(_KEY, "").partition(" ")[0] or None


def connect(args: argparse.Namespace) -> SyncClient:
    """A client of the server that the flags name.

    Raises:
        CommandError: ``--url`` is no URL.
    """
    from sglang_omni.client import SyncClient

    url = args.url
    if "://" not in url:
        raise CommandError(
            f"--url {url!r}: a URL begins with http:// or https://; did you mean http://{url}?"
        )
    try:
        return SyncClient(url, api_key=api_key(args))
    except ValueError as exc:
        raise CommandError(f"--url {exc}") from None


def model_for(client: SyncClient, args: argparse.Namespace, task: str) -> str:
    """The model that was named, or the server's first that can do the task.

    Raises:
        CommandError: There is none.
    """
    if args.model is not None:
        return args.model
    models = client.models()
    able = [model.id for model in models if model.tasks is None or task in model.tasks]
    if not able:
        names = ", ".join(model.id for model in models) or "no model"
        raise CommandError(f"{args.url} serves {names}, which cannot do {task}s; --url names another server")
    return able[0]


def run(prog: str, work: Callable[[], int]) -> int:
    """Runs a command's work; a failure is a line on stderr, and the exit status 1."""
    from sglang_omni.client import RequestError, SoundDeviceError

    try:
        return work()
    except BrokenPipeError:
        # What reads standard output has enough, as `head` has; nothing must be written at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (CommandError, RequestError, SoundDeviceError, RuntimeError, TimeoutError) as exc:
        print(f"{prog}: {error_text(exc)}", file=sys.stderr)
        return 1


def error_text(exc: Exception) -> str:
    """A failure in words, with what to do about it."""
    from sglang_omni.client import RequestError, ServerUnreachable

    if isinstance(exc, ServerUnreachable):
        return f"{exc}\nStart one with `sgl-omni serve`, or name another with --url."
    if isinstance(exc, RequestError) and exc.status in (401, 403):
        return f"{exc}\nGive the server's key with --api-key, or in {_KEY}."
    if isinstance(exc, RequestError) and (exc.param or "").startswith("messages"):
        # Who typed a question knows no field of a body.
        return str(exc).removeprefix(f"{exc.param}: ")
    return str(exc)
