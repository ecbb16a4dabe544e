"""``sgl-omni bench serve``: its flags, and what it prints."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from sglang_omni.bench.flag_values import decibels, extra_fields, goal, rate, ratio, scenarios
from sglang_omni.bench.prompts import DATASETS, FROM_FILES, Lengths, prompts_of
from sglang_omni.command_line import CommandParser
from sglang_omni.packages import install_line
from sglang_omni.serve.launch.flags import count, count_or_none, not_empty, seconds

if TYPE_CHECKING:
    from sglang_omni.bench.run import Result, RunOptions
    from sglang_omni.bench.summary import Summary

TRAFFIC = ("chat", "completions", "speech", "spoken-chat", "transcription", "realtime")
_SPEAKING = ("transcription", "realtime")
API_KEY = "SGLANG_OMNI_API_KEY"
_PROMPTS = 100

_EXAMPLES = """
examples:
  %(prog)s --concurrency 8
  %(prog)s --request-rate 4 --duration 60 --goodput ttft:500 tpot:50
  %(prog)s --traffic realtime --concurrency 4 --num-prompts 8 --plot talk.svg
  %(prog)s --traffic realtime --scenarios plain,interrupt,noise --num-prompts 9 --concurrency 1
  %(prog)s --dataset-name prefix_repetition --num-prompts 200 --output-json run.json
"""


def build_parser(prog: str = "sgl-omni bench") -> CommandParser:
    parser = CommandParser(prog=prog, description="Load a server, and measure what its clients notice.")
    names = parser.add_subparsers(dest="bench", required=True, metavar="BENCH")
    serve = names.add_parser(
        "serve",
        help="any OpenAI-compatible server: text, speech, transcripts, realtime sessions",
        usage="%(prog)s [--url URL] [--traffic KIND] [--request-rate N] [--OPTION VALUE]...",
        description="Send requests to an OpenAI-compatible server at a rate, or so many at once, and "
        "measure first tokens, first sounds, gaps and whole answers as a client sees them.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    serve.set_defaults(parser=serve)
    _add_flags(serve)
    return parser


def _add_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the server")
    group.add_argument(
        "--url",
        "--base-url",
        type=_url,
        default="http://127.0.0.1:8000",
        help="with or without /v1 (default: %(default)s)",
    )
    group.add_argument("--model", type=not_empty, help="default: the first that the server lists")
    group.add_argument("--api-key", metavar="KEY", help=f"or set {API_KEY}, which `ps` does not show")
    group.add_argument(
        "--timeout",
        type=partial(seconds, above_0=True),
        default=600.0,
        metavar="SECONDS",
        help="an answer, or a turn of a session, that takes longer has failed (default: %(default)g)",
    )
    group = parser.add_argument_group("what is sent")
    group.add_argument(
        "--traffic",
        choices=TRAFFIC,
        default="chat",
        help="chat and completions are streamed text, spoken-chat is chat with sound, speech reads texts "
        "aloud, transcription writes clips down, realtime is sessions of spoken turns (default: chat)",
    )
    group.add_argument(
        "--dataset-name",
        "--dataset",
        choices=DATASETS,
        help="questions: short ones; random: made-up texts of a length; prefix_repetition: long texts that "
        "begin alike, for caches; sharegpt and custom: from --dataset-path (default: questions)",
    )
    group.add_argument(
        "--dataset-path",
        type=Path,
        metavar="PATH",
        help='sharegpt: a JSON file; custom: a file of lines {"prompt": ...} or {"messages": [...]}; for '
        "transcription and realtime: a WAV file or a folder of them (default: the server's own voice)",
    )
    group.add_argument(
        "--output-len",
        "--random-output-len",
        type=count,
        metavar="TOKENS",
        help="the most tokens of an answer (default: the server's)",
    )
    group.add_argument(
        "--random-input-len", type=count, default=1024, metavar="WORDS", help="default: %(default)s"
    )
    group.add_argument(
        "--random-range-ratio",
        type=ratio,
        default=0.0,
        metavar="SHARE",
        help="lengths of random vary by so much up and down: 0 to 1 (default: 0)",
    )
    group.add_argument(
        "--prefix-repetition-prefix-len",
        type=count,
        default=512,
        metavar="WORDS",
        help="default: %(default)s",
    )
    group.add_argument(
        "--prefix-repetition-suffix-len",
        type=count,
        default=32,
        metavar="WORDS",
        help="default: %(default)s",
    )
    group.add_argument(
        "--prefix-repetition-num-prefixes", type=count, default=10, metavar="N", help="default: %(default)s"
    )
    group.add_argument("--voice", type=not_empty, help="of spoken answers (default: the server's)")
    group.add_argument(
        "--turns", type=count, default=3, metavar="N", help="of each realtime session (default: %(default)s)"
    )
    group.add_argument(
        "--scenarios",
        type=scenarios,
        default=("plain",),
        metavar="NAME,...",
        help="what happens in realtime sessions, which take turns at these, for a table that judges the "
        "server: plain: nothing, and the client ends the turns; interrupt: the user speaks while the answer "
        "plays; backchannel: a word that does not interrupt; second-voice: another person speaks along; "
        "noise (default: plain, without that table)",
    )
    group.add_argument(
        "--snr",
        type=decibels,
        default=10.0,
        metavar="DB",
        help="how much louder the user is than the noise, or the other person, of scenarios (default: "
        "%(default)g)",
    )
    group.add_argument(
        "--ignore-eos", action="store_true", help="answers go on to --output-len; not every server takes it"
    )
    group.add_argument(
        "--extra-body",
        "--extra-request-body",
        type=extra_fields,
        default={},
        metavar="JSON",
        help="further fields of each request, such as '{\"temperature\": 0}'",
    )
    group = parser.add_argument_group("how much, and for how long")
    group.add_argument(
        "--request-rate",
        type=rate,
        default=math.inf,
        metavar="PER_SECOND",
        help="requests (for realtime, sessions) a second, at random times (default: inf, as soon as there is "
        "room)",
    )
    group.add_argument(
        "--concurrency", "--max-concurrency", type=count, metavar="N", help="the most that run at once"
    )
    group.add_argument(
        "--num-prompts",
        type=count,
        metavar="N",
        help=f"requests in all; sessions, for realtime (default: {_PROMPTS}, or no end with --duration)",
    )
    group.add_argument(
        "--duration",
        type=partial(seconds, above_0=True),
        metavar="SECONDS",
        help="after which no request is sent any more",
    )
    group.add_argument(
        "--warmup",
        "--num-warmups",
        type=count_or_none,
        default=1,
        metavar="N",
        help="requests before, not measured (default: %(default)s)",
    )
    group.add_argument("--seed", type=count_or_none, default=0, help="of texts and times (default: 0)")
    group = parser.add_argument_group("what is told")
    group.add_argument(
        "--goodput",
        nargs="+",
        type=goal,
        default=[],
        metavar="NAME:MOST",
        help="count the answers that keep to these: ttft, tpot, e2el, first_sound and underrun in "
        "milliseconds, rtf; such as ttft:500 tpot:50",
    )
    group.add_argument(
        "--output-json", type=Path, metavar="FILE", help="write all figures, and those of each request"
    )
    group.add_argument(
        "--plot", type=Path, metavar="FILE.svg", help="draw when requests came and their times"
    )


def main(argv: Sequence[str] | None = None, *, prog: str = "sgl-omni bench") -> int:
    """Runs the bench; returns 1 if the server could not be measured, 130 after Ctrl-C."""
    args = build_parser(prog).parse_args(argv)
    _check(args.parser, args)
    # Imported late, so that --help is fast.
    import asyncio

    try:
        from sglang_omni.bench.run import run
        from sglang_omni.bench.target import Target
    except ModuleNotFoundError as exc:
        if exc.name != "aiohttp":
            raise
        print(f"{prog} serve needs aiohttp:\n  {install_line('bench')}", file=sys.stderr)
        return 1
    from sglang_omni.bench.outcome import CallFailed
    from sglang_omni.bench.summary import summarize

    key = args.api_key or os.environ.get(API_KEY, "").partition(" ")[0] or None
    try:
        result = asyncio.run(run(_options(args), Target(args.url, key, args.timeout)))
    except CallFailed as exc:
        print(f"{prog} serve: {args.url}: {exc}{_advice(exc)}", file=sys.stderr)
        return 1
    except (OSError, ValueError) as exc:
        print(f"{prog} serve: {exc}", file=sys.stderr)
        return 1
    summary = summarize(result.outcomes, dict(args.goodput))
    if not _tell(args, result, summary, prog):
        return 1
    if result.stopped:
        return 130
    return 0 if summary.completed else 1


def _tell(args: argparse.Namespace, result: Result, summary: Summary, prog: str) -> bool:
    """Prints the table and writes the files; False if one could not be written."""
    from sglang_omni.bench.client_load import told
    from sglang_omni.bench.judge.table import scenario_figures, scenario_table
    from sglang_omni.bench.plot import write_plot
    from sglang_omni.bench.summary import as_json
    from sglang_omni.bench.table import table

    title = f"{result.model} at {args.url}: {args.traffic}, {_pace(args)}"
    print(title)
    for line in table(summary, is_open=math.isfinite(args.request_rate)):
        print(line)
    if _is_judged(args):
        print()
        for line in [*scenario_table(args.scenarios, result.outcomes), *result.notes]:
            print(line)
    print(told(result.client))
    about = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        **{
            name: _plain(value)
            for name, value in vars(args).items()
            if name not in ("api_key", "bench", "parser")
        },
        "model": result.model,
        **result.client,
    }
    if _is_judged(args):
        about["judged"] = {name: asdict(scenario_figures(name, result.outcomes)) for name in args.scenarios}
        about["notes"] = result.notes
    try:
        if args.output_json is not None:
            args.output_json.write_text(json.dumps(as_json(summary, result.outcomes, about), indent=1))
        if args.plot is not None:
            write_plot(args.plot, result.outcomes, title)
    except OSError as exc:
        print(f"{prog} serve: {exc}", file=sys.stderr)
        return False
    return True


def _check(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Ends the program if flags do not fit together; sets the defaults that depend on others."""
    path = args.dataset_path
    if args.traffic not in _SPEAKING:
        if args.dataset_name in FROM_FILES and path is None:
            parser.error(f"--dataset-name {args.dataset_name} is read from a file; give --dataset-path")
        if path is not None and args.dataset_name not in FROM_FILES:
            parser.error("--dataset-path is read with --dataset-name sharegpt or custom")
    elif path is not None and args.dataset_name is not None:
        parser.error(
            f"--traffic {args.traffic} takes its clips from --dataset-path; leave --dataset-name out"
        )
    if args.traffic != "realtime" and _is_judged(args):
        parser.error("--scenarios are of realtime sessions; give --traffic realtime")
    if path is not None and not path.exists():
        parser.error(f"--dataset-path: there is no {path}")
    args.dataset_name = args.dataset_name or "questions"
    if args.duration is None:
        args.num_prompts = args.num_prompts or _PROMPTS
    elif args.num_prompts is None and args.concurrency is None and not math.isfinite(args.request_rate):
        parser.error("--duration needs a pace: give --request-rate or --concurrency")
    for file in (args.output_json, args.plot):
        if file is not None and not file.absolute().parent.is_dir():
            parser.error(f"there is no folder {file.absolute().parent} to write {file.name} to")
    if args.plot is not None and args.plot.suffix != ".svg":
        parser.error(f"--plot {args.plot}: it draws SVG alone; give a name that ends with .svg")


def _options(args: argparse.Namespace) -> RunOptions:
    from sglang_omni.bench.load import Load
    from sglang_omni.bench.run import RunOptions

    repeated = args.dataset_name == "prefix_repetition"
    lengths = Lengths(
        input_len=args.prefix_repetition_suffix_len if repeated else args.random_input_len,
        output_len=args.output_len,
        range_ratio=args.random_range_ratio,
        prefix_len=args.prefix_repetition_prefix_len,
        num_prefixes=args.prefix_repetition_num_prefixes,
    )
    speaks = args.traffic in _SPEAKING
    return RunOptions(
        traffic=args.traffic,
        model=args.model,
        voice=args.voice,
        prompts=prompts_of(args.dataset_name, None if speaks else args.dataset_path, lengths, args.seed),
        clips_path=args.dataset_path if speaks else None,
        turns=args.turns,
        scenarios=args.scenarios,
        snr_db=args.snr,
        output_len=args.output_len,
        more={**({"ignore_eos": True} if args.ignore_eos else {}), **args.extra_body},
        load=Load(args.request_rate, args.concurrency, args.num_prompts, args.duration, args.seed),
        warmup=args.warmup,
    )


def _is_judged(args: argparse.Namespace) -> bool:
    return bool(args.scenarios != ("plain",))


def _pace(args: argparse.Namespace) -> str:
    at_once = f"{args.concurrency} at once" if args.concurrency else "all at once"
    if not math.isfinite(args.request_rate):
        return at_once
    return f"{args.request_rate:g} a second" + (
        f", {args.concurrency} at once at most" if args.concurrency else ""
    )


def _plain(value: Any) -> Any:
    """A flag's value as JSON has it."""
    if isinstance(value, float) and math.isinf(value):
        return "inf"
    return str(value) if isinstance(value, Path) else value


def _advice(exc: Any) -> str:
    """What to do about a failure that the flags may mend."""
    return {
        "no connection": "; is the server up? --url says where",
        "HTTP 401": f"; give its key with --api-key, or set {API_KEY}",
    }.get(exc.kind, "")


def _url(text: str) -> str:
    url = text if "://" in text else f"http://{text}"
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no URL of a server; give one like http://127.0.0.1:8000"
        )
    return url
