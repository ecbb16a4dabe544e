"""``sgl-omni transcribe FILE...``: writes down what is said in sound files."""

from __future__ import annotations

import argparse
import glob
import json
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sglang_omni.cli.connection import CommandError, add_connection_flags, connect, error_text, model_for, run
from sglang_omni.cli.media_files import read_media
from sglang_omni.command_line import CommandParser

if TYPE_CHECKING:
    from sglang_omni.client import SyncClient, TranscriptionResult

_FORMATS = ("text", "srt", "vtt", "json")


def main(argv: Sequence[str], *, prog: str) -> int:
    """Prints the transcripts; returns 1 if one of the files has none."""
    parser = CommandParser(prog=prog, description="Write down what is said in sound files.")
    parser.add_argument("files", nargs="+", metavar="FILE", help="sound files; - for standard input")
    parser.add_argument(
        "--format",
        choices=_FORMATS,
        default="text",
        help="srt and vtt are subtitles; json has times, and is a line for each file (default: %(default)s)",
    )
    parser.add_argument(
        "--language", metavar="CODE", help="of the speech, as en; by default it is recognized"
    )
    parser.add_argument("--stream", action="store_true", help="print text as it is recognized")
    add_connection_flags(parser)
    args = parser.parse_args(argv)
    if args.stream and args.format != "text":
        parser.error(f"--stream prints text; leave it out, or --format {args.format}")
    return run(prog, lambda: _transcribe_all(args, prog))


def _transcribe_all(args: argparse.Namespace, prog: str) -> int:
    from sglang_omni.client import RequestError

    names = _files(args.files)
    if args.format in ("srt", "vtt") and len(names) > 1:
        raise CommandError(
            f"--format {args.format} is one file of subtitles: name one FILE, not {len(names)}"
        )
    status = 0
    with connect(args) as client:
        model = model_for(client, args, "transcription")
        for name in names:
            try:
                audio = read_media(name, "audio")
                heading = f"==> {name} <==\n" if args.format == "text" and len(names) > 1 else ""
                _transcribe(client, args, model, name, audio, heading)
            except (CommandError, RequestError) as exc:
                # One file's fault; the others may have none.
                shown = str(exc) if isinstance(exc, CommandError) else f"{name}: {error_text(exc)}"
                print(f"{prog}: {shown}", file=sys.stderr)
                status = 1
    return status


def _transcribe(
    client: SyncClient, args: argparse.Namespace, model: str, name: str, audio: bytes, heading: str
) -> None:
    from sglang_omni.client import transcription_request

    request = transcription_request(audio, model=model, language=args.language, stream=args.stream)
    if args.stream:
        with closing(client.generate(request)) as chunks:
            for chunk in chunks:
                if chunk.finish_reason is None:
                    print(heading + chunk.text, end="", flush=True)
                    heading = ""
        print(heading)
        return
    print(heading + _rendered(args.format, name, client.transcript(request)))


def _rendered(form: str, name: str, result: TranscriptionResult) -> str:
    if form == "text":
        return result.text.strip()
    if form == "json":
        fields: dict[str, Any] = {"file": name, "text": result.text, "language": result.language}
        fields |= {
            "duration": result.duration,
            "segments": [
                {key: value for key, value in asdict(segment).items() if value not in (None, [])}
                for segment in result.segments
            ],
        }
        return json.dumps(fields, ensure_ascii=False)
    from sglang_omni.generation.subtitles import srt, vtt

    return (srt if form == "srt" else vtt)(result).rstrip("\n") + "\n"


def _files(given: Sequence[str]) -> list[str]:
    """The files, where a wildcard that no shell has seen stands for those that it matches.

    Raises:
        CommandError: It matches none.
    """
    names: list[str] = []
    for name in given:
        if not glob.has_magic(name):
            names.append(name)
            continue
        found = sorted(glob.glob(name))
        if not found and not Path(name).exists():
            raise CommandError(f"{name}: no file is named so")
        names += found or [name]
    return names
