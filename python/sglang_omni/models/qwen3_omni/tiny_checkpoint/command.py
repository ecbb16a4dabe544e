"""The command ``sgl-omni make-tiny-checkpoint qwen3_omni DIR --seed N``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import MISSING, fields
from pathlib import Path

from sglang_omni.command_line import CommandParser
from sglang_omni.models.multimodal.tiny_folder import make_room
from sglang_omni.models.qwen3_omni.tiny_checkpoint.shape import TinyShape
from sglang_omni.packages import install_line


def main(argv: Sequence[str], prog: str = "make-tiny-checkpoint qwen3_omni") -> int:
    parser = CommandParser(
        prog=prog,
        description="Write a random Qwen3-Omni checkpoint of a few megabytes: the files, names and data "
        "types of a published one, which transformers loads as it loads that. Equal options give equal "
        "bytes. What such a model says means nothing, and its speech is noise.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("directory", type=Path, help="output directory; created if it does not exist")
    parser.add_argument("--seed", type=int, default=0, help="of the weights")
    parser.add_argument(
        "--overwrite", action="store_true", help="replace the checkpoint that is there, whatever it is"
    )
    for option in fields(TinyShape):
        assert option.default is not MISSING
        flag = "--" + option.name.replace("_", "-")
        text = option.metadata["help"]
        if isinstance(option.default, bool):
            parser.add_argument(
                flag, action=argparse.BooleanOptionalAction, default=option.default, help=text
            )
        elif isinstance(option.default, tuple):
            parser.add_argument(flag, type=int, nargs="*", default=option.default, metavar="LAYER", help=text)
        else:
            kind = str if isinstance(option.default, str) else int
            parser.add_argument(
                flag, type=kind, default=option.default, metavar="N" if kind is int else "TYPE", help=text
            )
    chosen = vars(parser.parse_args(argv))
    directory, seed = chosen.pop("directory"), chosen.pop("seed")
    overwrite = chosen.pop("overwrite")
    # Imported late, so that --help is fast.
    from sglang_omni.models.qwen3_omni.tiny_checkpoint.make import make_tiny_checkpoint

    try:
        if seed < 0:
            raise ValueError(f"seed must be at least 0, got {seed}")
        _check_installed()
        shape = TinyShape(**{**chosen, "deepstack": tuple(chosen["deepstack"])})
        make_room(directory, overwrite=overwrite)
        make_tiny_checkpoint(directory, seed, shape)
    except (ValueError, OSError) as exc:
        print(exc, file=sys.stderr)
        return 1
    size = sum(file.stat().st_size for file in directory.glob("*.safetensors"))
    print(f"{directory}: {size / 1e6:.1f} MB of {shape.dtype} weights, seed {seed}; its answers mean nothing")
    return 0


def _check_installed() -> None:
    """
    Raises:
        ValueError: A package for the tokenizer is not installed.
    """
    try:
        import jinja2  # noqa: F401
        import tokenizers  # noqa: F401
    except ModuleNotFoundError as exc:
        raise ValueError(
            f"a checkpoint's tokenizer is made with {exc.name}, not installed here:\n"
            f"  {install_line('serve')}"
        ) from exc
