"""``sgl-omni say TEXT``: speaks a text, to a file or the loudspeaker, while it comes."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING

from sglang_omni.cli.connection import CommandError, add_connection_flags, connect, model_for, run
from sglang_omni.command_line import CommandParser

if TYPE_CHECKING:
    from sglang_omni.client import SpeechStreamChunk, SyncClient


def main(argv: Sequence[str], *, prog: str) -> int:
    """Speaks; returns the exit status."""
    parser = CommandParser(
        prog=prog, description="Speak a text: through the loudspeaker, or into a file with -o."
    )
    parser.add_argument("text", nargs="?", metavar="TEXT", help="by default, standard input")
    parser.add_argument(
        "-o", "--output", metavar="FILE", help=".wav, .mp3, .flac, .opus, .aac or .pcm; - for standard output"
    )
    parser.add_argument("--play", action="store_true", help="play it too, if it is written with -o")
    parser.add_argument("--voice", metavar="NAME", help="`sgl-omni voices` lists them")
    parser.add_argument("--speed", type=float, default=1.0, help="0.25 to 4 (default: %(default)g)")
    parser.add_argument("--language", metavar="CODE", help="of the text, as en; by default the voice's")
    add_connection_flags(parser)
    args = parser.parse_args(argv)
    return run(prog, lambda: _say(args))


def _say(args: argparse.Namespace) -> int:
    from sglang_omni.cli.sound_files import SoundFile, player

    text = _text(args)
    output = SoundFile(args.output) if args.output else None
    wants_sound = args.play or output is None
    hint = "" if args.output else "; -o speech.wav writes a file"
    with connect(args) as client, player(hint) if wants_sound else nullcontext() as loudspeaker:
        began, first, seconds = time.monotonic(), 0.0, 0.0
        with output or nullcontext():
            for chunk in _chunks(client, args, text):
                first = first or time.monotonic() - began
                seconds += len(chunk.samples) / chunk.sample_rate
                if output is not None:
                    output.write(chunk.samples, chunk.sample_rate)
                if loudspeaker is not None:
                    loudspeaker.add(chunk)
        if output is not None:
            report = f"{args.output}: {seconds:.1f} s of sound, the first after {first:.2f} s"
            print(report, file=sys.stderr)
    return 0


def _text(args: argparse.Namespace) -> str:
    if args.text is None and sys.stdin.isatty():
        raise CommandError("what is to be said? As in: sgl-omni say 'Hello.'")
    text = sys.stdin.read() if args.text in (None, "-") else args.text
    if not text.strip():
        raise CommandError("the text is empty; there is nothing to say")
    return text


def _chunks(client: SyncClient, args: argparse.Namespace, text: str) -> Iterator[SpeechStreamChunk]:
    from sglang_omni.client import GenerateRequest

    given = {"voice": args.voice, "language": args.language}
    request = GenerateRequest(
        model=model_for(client, args, "speech"),
        prompt=text,
        extra_params={name: value for name, value in given.items() if value is not None},
    )
    return client.speech_stream(request, speed=args.speed)
