"""``sgl-omni make-tiny-checkpoint``: small random checkpoints, each in the layout of a published one."""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from sglang_omni.command_line import CommandParser
from sglang_omni.families import FAMILIES
from sglang_omni.packages import install_line

MAKERS = {family.name: family.maker for family in FAMILIES if family.maker is not None}


def main(argv: Sequence[str], *, prog: str) -> int:
    """Writes the checkpoint that the family's own maker makes."""
    argv = _family_first(argv)
    name = argv[0] if argv and not argv[0].startswith("-") else ""
    target = MAKERS.get(name) or (_maker_of_a_package(name) if name else None)
    if target is not None:
        return _make(name, target, argv[1:], prog=f"{prog} {name}")
    parser = CommandParser(
        prog=prog,
        description="Write a small random checkpoint of a model; --help after its name lists its options. "
        "`--family NAME` names it as well.",
    )
    parser.add_argument(
        "family", choices=list(MAKERS), help="the model family, as `sgl-omni models` names it"
    )
    parser.parse_args(argv)
    raise AssertionError(f"{argv} names a family")


class _Option(NamedTuple):
    name: str
    default: Any
    help: str


def _family_first(argv: Sequence[str]) -> list[str]:
    """``argv`` with the value of ``--family``, if it is there, as the first word."""
    words = list(argv)
    for index, word in enumerate(words):
        if word == "--family" and index + 1 < len(words):
            return [words[index + 1], *words[:index], *words[index + 2 :]]
        if word.startswith("--family="):
            return [word.removeprefix("--family="), *words[:index], *words[index + 1 :]]
    return words


def _maker_of_a_package(name: str) -> str | None:
    """The maker of a family that another package brings; None if it has none, or there is no such family."""
    from sglang_omni.serve.launch.registry import families

    return next((each.family.maker for each in families() if each.family.name == name), None)


def _make(name: str, target: str, argv: Sequence[str], *, prog: str) -> int:
    module_name, _, function = target.partition(":")
    module = import_module(module_name)
    make: Callable[..., Any] = getattr(module, function)
    parser = CommandParser(
        prog=prog,
        description=f"Write a random checkpoint of {name}, of a few megabytes: the files, names and data "
        "types of a published one. Equal options give equal bytes. What such a model says means nothing, and "
        "its speech is noise.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("directory", type=Path, help="output directory; created if it does not exist")
    parser.add_argument("--seed", type=int, default=0, help="of the weights")
    parser.add_argument(
        "--overwrite", action="store_true", help="replace the checkpoint that is there, whatever it is"
    )
    options = list(_options(make, getattr(module, "SHAPE", None)))
    for option in options:
        _add_flag(parser, option)
    chosen = vars(parser.parse_args(argv))
    shape = {option.name: chosen[option.name] for option in options}
    shape = {key: tuple(value) if isinstance(value, list) else value for key, value in shape.items()}
    directory: Path = chosen["directory"]
    # transformers warns of token ids that only random checkpoints have, and shows bars for a few megabytes.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    try:
        _write(make, directory, chosen["seed"], shape, overwrite=chosen["overwrite"])
    except ModuleNotFoundError as exc:
        print(_hint(exc), file=sys.stderr)
        return 1
    except (ValueError, OSError) as exc:
        print(exc, file=sys.stderr)
        return 1
    size = sum(file.stat().st_size for file in directory.rglob("*.safetensors"))
    print(
        f"{directory}: {size / 1e6:.1f} MB of random weights, seed {chosen['seed']}; its answers mean nothing"
    )
    return 0


def _hint(exc: ModuleNotFoundError) -> str:
    """What is missing, or what keeps transformers from importing its own modules."""
    if exc.name is not None:
        return f"a checkpoint is made with {exc.name}, not installed here:\n  {install_line('serve')}"
    cause: BaseException = exc
    while cause.__cause__ is not None:
        cause = cause.__cause__
    return f"a checkpoint is made with transformers, which cannot be imported here: {cause}"


def _options(make: Callable[..., Any], shape: type | None) -> Iterator[_Option]:
    """The options of a maker's shape: the fields of its dataclass, or its own named arguments."""
    if shape is not None:
        for each in dataclasses.fields(shape):
            yield _Option(each.name, each.default, each.metadata["help"])
        return
    # Without the path and the seed.
    for parameter in list(inspect.signature(make).parameters.values())[2:]:
        if parameter.kind is not parameter.VAR_KEYWORD:
            yield _Option(parameter.name, parameter.default, f"the maker's {parameter.name}")


def _add_flag(parser: CommandParser, option: _Option) -> None:
    flag = "--" + option.name.replace("_", "-")
    common: dict[str, Any] = {"default": option.default, "help": option.help}
    if isinstance(option.default, bool):
        parser.add_argument(flag, action=argparse.BooleanOptionalAction, **common)
    elif isinstance(option.default, tuple):
        parser.add_argument(flag, type=int, nargs="*", metavar="N", **common)
    elif isinstance(option.default, str):
        parser.add_argument(flag, metavar="TYPE", **common)
    else:
        kind = float if isinstance(option.default, float) else int
        parser.add_argument(flag, type=kind, metavar="N", **common)


def _write(
    make: Callable[..., Any], directory: Path, seed: int, shape: dict[str, Any], *, overwrite: bool
) -> None:
    """Has the checkpoint made beside its place, so that one that is there stays if this fails.

    Raises:
        FileExistsError: There is a checkpoint, and ``overwrite`` is false.
        ModuleNotFoundError: A package that it is made with is not installed.
        ValueError: The seed or a part of the shape is impossible.
    """
    from huggingface_hub.errors import StrictDataclassError

    if seed < 0:
        raise ValueError(f"seed must be at least 0, got {seed}")
    # Loaders would read the shards of an earlier checkpoint, too.
    old = sorted([*directory.glob("*.safetensors"), *directory.glob("*.safetensors.index.json")])
    if old and not overwrite:
        raise FileExistsError(
            f"{directory} holds a checkpoint already, {old[0].name}: give another one, or --overwrite"
        )
    parent = directory.absolute().parent
    parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=parent) as folder:
        # That folder is for its owner alone; the checkpoint is not.
        made = Path(folder) / "checkpoint"
        try:
            make(made, seed, **shape)
        except StrictDataclassError as exc:
            # What transformers' configs refuse: the reason is its cause.
            raise ValueError(f"no model has this shape: {exc.__cause__ or exc}") from exc
        for file in old:
            file.unlink()
        shutil.copytree(made, directory, dirs_exist_ok=True)
