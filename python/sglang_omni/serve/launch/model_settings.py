"""The effect of the flags about the model on a pipeline."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING

from sglang_omni.serve.launch.flags import Flag
from sglang_omni.serve.launch.options import MODEL, of_sections
from sglang_omni.serve.launch.parts import is_of_part

if TYPE_CHECKING:
    from sglang_omni.config import PipelineConfig


def apply_model_flags(config: PipelineConfig, args: argparse.Namespace) -> None:
    """Change ``config`` as the flags say.

    Raises:
        ValueError: No stage has what a flag sets, or a ``--stage`` is wrong; the text names the flag.
    """
    from sglang_omni.config.factories.overrides import override_stage, override_stages

    for argument, flag in _flags_of_arguments():
        given = getattr(args, flag.name)
        if given is None or given is False:
            continue
        if not override_stages(config, argument, flag.argument_value(given)):
            raise ValueError(f"{flag.option}: no stage of {config.name} takes it")
    for setting in args.stage:
        if is_of_part(config, setting):
            continue
        try:
            _check_setting(setting)
            override_stage(config, setting)
        except ValueError as exc:
            raise ValueError(f"--stage {exc}") from exc


def _check_setting(setting: str) -> None:
    """Raise ValueError if ``STAGE.NAME=VALUE`` has a value that NAME's own flag would refuse."""
    name, _, text = setting.partition("=")
    if text.strip() in ("", "~", "null"):
        return
    for argument, flag in _flags_of_arguments():
        if flag.type is not None and not flag.several and name.strip().endswith(f".{argument}"):
            try:
                flag.type(text.strip())
            except argparse.ArgumentTypeError as exc:
                raise ValueError(f"{setting!r}: {exc}") from None


def _flags_of_arguments() -> Iterator[tuple[str, Flag]]:
    """The flags that set an argument of stages' factories, with its name."""
    for flag in of_sections(MODEL):
        if flag.argument is not None:
            yield flag.argument, flag
