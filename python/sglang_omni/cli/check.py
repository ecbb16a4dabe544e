"""``sgl-omni check``: says, without loading weights, if a model would start, and what would be in force."""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from sglang_omni.cli.findings import print_findings
from sglang_omni.command_line import CommandParser
from sglang_omni.serve.launch.flags import count, not_empty
from sglang_omni.serve.launch.options import HEALTH, MODEL, add_flags, of_sections

if TYPE_CHECKING:
    from sglang_omni.gpus import Gpu
    from sglang_omni.hub import Outlines
    from sglang_omni.serve.launch.checks import Checks

# What CUDA shows of the memory that a GPU is sold with: 98.9 % of an H100's 80 GB, 98.5 % of a 4090's 24.
_SHOWN = 0.985


def main(argv: Sequence[str], *, prog: str) -> int:
    """Prints a line for each check, or JSON. Returns 1 if the model would not start, else 0."""
    args = _parser(prog).parse_args(argv)
    # Imported late, so that --help is fast.
    from sglang_omni.gpus import assuming
    from sglang_omni.hub import Outlines, outlines_only
    from sglang_omni.serve.launch.checks import Checks

    checks = Checks(go_on=True)
    with (
        _quiet(),
        tempfile.TemporaryDirectory(prefix="sgl-omni-check-") as folder,
        outlines_only(outlines := Outlines(Path(folder))),
        nullcontext() if args.gpus is None else assuming(args.gpus),
    ):
        _check(args, checks, outlines)
    findings = [replace(finding, text=outlines.named(finding.text)) for finding in checks.findings]
    if args.json:
        files = [file for plan in outlines.plans for file in plan.files]
        print(
            json.dumps(
                {
                    "model": args.model,
                    "would_start": not checks.failed(),
                    "download_bytes": sum(file.size for file in files if not file.cached),
                    "files": [file._asdict() for file in files],
                    "checks": [asdict(finding) for finding in findings],
                },
                indent=1,
            )
        )
    else:
        print_findings(findings)
        print(f"{args.model} {'would not start' if checks.failed() else 'would start'}")
    return 1 if checks.failed() else 0


@contextmanager
def _quiet() -> Iterator[None]:
    """In it, nothing is logged, and no bars are shown: what loaders say is for servers."""
    # transformers shows bars for what it reads. tqdm looks at its environment when it is imported.
    bars = os.environ.get("TQDM_DISABLE")
    os.environ["TQDM_DISABLE"] = "1"
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)
        os.environ.pop("TQDM_DISABLE")
        if bars is not None:
            os.environ["TQDM_DISABLE"] = bars


def _parser(prog: str) -> CommandParser:
    parser = CommandParser(
        prog=prog,
        description="Say, without loading weights, if a model would start: its family, files and tensors, "
        "tokenizer, template, memory and engine. Exit status 1 if it would not. Of a hub id, only configs, "
        "tokenizer and the headers of weights are fetched.",
    )
    parser.add_argument("model", type=not_empty, metavar="MODEL", help="a directory, or a hub id")
    parser.add_argument(
        "--revision", type=not_empty, metavar="NAME", help="branch, tag or commit of a hub id"
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="the pipeline as a YAML or JSON file")
    parser.add_argument(
        "--gpus",
        type=gpus_of,
        metavar="NxSIZE",
        help="count for these GPUs instead of this machine's, as in 2x24GB; 0 for none",
    )
    parser.add_argument(
        "--dp-size", type=count, default=1, metavar="REPLICAS", help="replicas of the server (default: 1)"
    )
    parser.add_argument("--json", action="store_true", help="print an object instead of lines")
    add_flags(parser, of_sections(HEALTH, MODEL))
    parser.set_defaults(launcher=None)
    return parser


def gpus_of(text: str) -> list[Gpu]:
    """For ``type=``: ``2x24GB``, ``80GB`` or ``0``."""
    from sglang_omni.gpus import Gpu

    if text == "0":
        return []
    if (match := re.fullmatch(r"(?:(\d+)x)?(\d+(?:\.\d+)?) ?(?:GB|GiB)", text, re.IGNORECASE)) is None:
        raise argparse.ArgumentTypeError(f"{text!r}: expected GPUs as in 1x80GB, or 0")
    size = int(float(match[2]) * _SHOWN * 2**30)
    return [Gpu(index, "", f"{match[2]} GB", size, (9, 0)) for index in range(int(match[1] or 1))]


def _check(args: argparse.Namespace, checks: Checks, outlines: Outlines) -> None:
    from sglang_omni.serve.launch.checks import check_pipeline
    from sglang_omni.serve.launch.model_checks import check_model, describe_download, describe_family
    from sglang_omni.serve.launch.pipelines import load_pipeline
    from sglang_omni.serve.launch.preflight import check_system

    with checks.of("system"):
        check_system()
    config = None
    with checks.of("family"):
        config = load_pipeline(args.model, args.config, args.revision)
        describe_family(config, checks)
    if config is not None:
        check_pipeline(config, args, checks, assumed=args.gpus is not None)
    # A family may read a second repository, which its memory is counted of.
    for plan in outlines.plans:
        describe_download(plan, checks)
    if config is not None:
        check_model(config, checks, unseen=outlines.unseen)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], prog="sgl-omni check"))
