"""The command ``python -m sglang_omni.demo``: asks a model a question and shows the answer."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from sglang_omni.client import ClientError, RequestError
from sglang_omni.command_line import CommandParser
from sglang_omni.demo import qwen3_omni_tiny, speech_chat
from sglang_omni.demo.report import DemoFailed
from sglang_omni.demo.stopping import Stopped, end_by_exception

_DEMOS = {"speech-chat": speech_chat.run, "qwen3-omni-tiny": qwen3_omni_tiny.run}


def main(argv: Sequence[str] | None = None) -> int:
    parser = CommandParser(
        prog="python -m sglang_omni.demo",
        description="Ask a question; see and hear the answer.",
    )
    parser.add_argument(
        "--model",
        choices=_DEMOS,
        default="speech-chat",
        help="speech-chat answers a spoken question; qwen3-omni-tiny shows Qwen3-Omni's pipeline on a random "
        "model of a few megabytes, which answers in noise (default: %(default)s)",
    )
    parser.add_argument(
        "--say", default=speech_chat.QUESTION, help="speech-chat's question (default: %(default)s)"
    )
    parser.add_argument("--out", type=Path, default=Path("build/demo"), help="folder for the WAV files")
    parser.add_argument("--port", type=int, default=0, help="the server's port (default: a free one)")
    parser.add_argument("--model-path", help="the checkpoint, as for launch_server")
    parser.add_argument("--keep-serving", action="store_true", help="go on until Ctrl-C")
    args = parser.parse_args(argv)
    args.say = args.say.strip()
    if not args.say:
        parser.error("--say must not be blank")
    end_by_exception()
    try:
        _DEMOS[args.model](args)
    except Stopped as told:
        return 0 if args.keep_serving else 128 + told.number
    except (DemoFailed, ClientError, RequestError, TimeoutError, OSError) as exc:
        print(f"The demo failed: {exc}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
