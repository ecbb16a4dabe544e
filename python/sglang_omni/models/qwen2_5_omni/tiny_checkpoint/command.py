"""The command ``sgl-omni make-tiny-checkpoint qwen2_5_omni DIR --seed N``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from sglang_omni.command_line import CommandParser
from sglang_omni.models.multimodal.tiny_folder import make_room
from sglang_omni.models.qwen2_5_omni.tiny_checkpoint.shape import OmniShape
from sglang_omni.packages import install_line


def main(argv: Sequence[str], prog: str = "make-tiny-checkpoint qwen2_5_omni") -> int:
    parser = CommandParser(
        prog=prog,
        description="Write a random Qwen2.5-Omni checkpoint of a few megabytes: the files and names of a "
        "published one, which transformers loads as it loads that. What such a model says means nothing, and "
        "its speech is noise.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("directory", type=Path, help="output directory; created if it does not exist")
    parser.add_argument("--seed", type=int, default=0, help="of the weights")
    parser.add_argument(
        "--overwrite", action="store_true", help="replace the checkpoint that is there, whatever it is"
    )
    for option in fields(OmniShape):
        flag = "--" + option.name.replace("_", "-")
        parser.add_argument(flag, type=int, default=option.default, metavar="N", help=option.metadata["help"])
    chosen = vars(parser.parse_args(argv))
    directory, seed, overwrite = chosen.pop("directory"), chosen.pop("seed"), chosen.pop("overwrite")
    try:
        if seed < 0:
            raise ValueError(f"seed must be at least 0, got {seed}")
        make_room(directory, overwrite=overwrite)
        # Imported late, so that --help is fast.
        from sglang_omni.models.qwen2_5_omni.tiny_checkpoint.make import make

        make(directory, seed, **chosen)
    except ModuleNotFoundError as exc:
        print(f"{exc.name} is not installed here:\n  {install_line('serve')}", file=sys.stderr)
        return 1
    except (ValueError, OSError) as exc:
        print(exc, file=sys.stderr)
        return 1
    size = sum(file.stat().st_size for file in directory.glob("*.safetensors"))
    print(f"{directory}: {size / 1e6:.1f} MB of weights, seed {seed}; its answers mean nothing")
    return 0
