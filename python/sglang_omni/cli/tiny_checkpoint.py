"""``sgl-omni make-tiny-checkpoint``: small random checkpoints, each in the layout of a published one."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

from sglang_omni.command_line import CommandParser

# Imported only if they are used.
_MAKERS = {
    "qwen2_5_omni": "sglang_omni.models.qwen2_5_omni.tiny_checkpoint.command",
    "qwen3_omni": "sglang_omni.models.qwen3_omni.tiny_checkpoint.command",
}


def main(argv: Sequence[str], *, prog: str) -> int:
    """Writes the checkpoint that the family's own maker makes."""

    if argv and argv[0] in _MAKERS:
        make = import_module(_MAKERS[argv[0]]).main
        status: int = make(argv[1:], prog=f"{prog} {argv[0]}")
        return status
    parser = CommandParser(
        prog=prog,
        description="Write a small random checkpoint of a model; --help after its name lists its options.",
    )
    parser.add_argument("model", choices=list(_MAKERS), help="the model family")
    parser.parse_args(argv)
    raise AssertionError(f"{argv} names a family")
