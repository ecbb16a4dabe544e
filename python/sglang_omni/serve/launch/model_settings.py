"""The effect of the flags about the model on a pipeline."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

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

    for flag in of_sections(MODEL):
        given = getattr(args, flag.name)
        if flag.argument is None or given is None or given is False:
            continue
        if not override_stages(config, flag.argument, flag.argument_value(given)):
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
    for flag in of_sections(MODEL):
        if flag.type is not None and not flag.several and name.strip().endswith(f".{flag.argument}"):
            try:
                flag.type(text.strip())
            except argparse.ArgumentTypeError as exc:
                raise ValueError(f"{setting!r}: {exc}") from None
