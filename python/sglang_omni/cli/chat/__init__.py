"""``sgl-omni chat``: a conversation in the terminal, with text, pictures and sound.

``loop.py`` reads what is typed, ``commands.py`` has the words that begin with a slash, ``history.py`` is
what has been said, and ``answers.py`` shows an answer while it comes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from sglang_omni.cli.connection import CommandError, add_connection_flags, connect, model_for, run
from sglang_omni.command_line import CommandParser

_KINDS = ("image", "audio", "video")


def main(argv: Sequence[str], *, prog: str) -> int:
    """Talks; returns the exit status."""
    parser = CommandParser(
        prog=prog,
        description="Talk to a model. With a PROMPT, or one on standard input, it answers once.",
    )
    parser.add_argument("prompt", nargs="?", metavar="PROMPT", help="a question; without one, a conversation")
    parser.add_argument("--system", metavar="TEXT", help="the system prompt")
    parser.add_argument("--speak", action="store_true", help="play the answers")
    parser.add_argument(
        "--save", metavar="FILE", help="write the answers' sound: .wav, .mp3, .flac, .opus, .aac or .pcm"
    )
    parser.add_argument("--voice", metavar="NAME", help="of the answers; `sgl-omni voices` lists them")
    for kind in _KINDS:
        noun = {"image": "a picture", "audio": "sound", "video": "a video"}[kind]
        parser.add_argument(
            f"--{kind}", action="append", default=[], metavar="FILE", help=f"{noun} for the first question"
        )
    parser.add_argument("--max-tokens", type=int, metavar="N", help="of an answer")
    parser.add_argument("--temperature", type=float, metavar="T", help="0 for the likeliest words")
    parser.add_argument("--stats", action="store_true", help="print after each answer how long it took")
    add_connection_flags(parser)
    args = parser.parse_args(argv)
    return run(prog, lambda: _chat(args, prog))


def _chat(args: argparse.Namespace, prog: str) -> int:
    from sglang_omni.cli.chat.answers import Answerer
    from sglang_omni.cli.chat.history import ChatHistory
    from sglang_omni.cli.chat.loop import ChatLoop
    from sglang_omni.cli.media_files import content_part

    history = ChatHistory(args.system)
    for kind in _KINDS:
        for name in getattr(args, kind):
            history.attach(name, content_part(name, kind))
    is_interactive = args.prompt is None and sys.stdin.isatty()
    prompt = None if is_interactive else _prompt(args)
    with connect(args) as client:
        answerer = Answerer(client, model_for(client, args, "chat"), args)
        if prompt is None:
            ChatLoop(client, history, answerer, prog).run()
            return 0
        return 0 if answerer.ask(history, prompt) else 130


def _prompt(args: argparse.Namespace) -> str:
    prompt = sys.stdin.read() if args.prompt in (None, "-") else args.prompt
    if not prompt.strip() and not (args.image or args.audio or args.video):
        raise CommandError("the prompt is empty; there is nothing to answer")
    return prompt.strip()
