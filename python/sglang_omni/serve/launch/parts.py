"""A cascade from flags: which models, pipelines or servers hear, answer and speak."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from sglang_omni.serve.launch.options import CASCADE, PARTS, of_sections

if TYPE_CHECKING:
    from sglang_omni.cascade.part import PartName
    from sglang_omni.config import PipelineConfig

_CONFIG = "sglang_omni.cascade.config.CascadePipelineConfig"
_TEXT = "sglang_omni.models.text.config.TextPipelineConfig"
_BUNDLED = "speech-chat"
# What says by itself what is served.
_OTHERS = {
    "--model-path": "model_path",
    "--config": "config",
    "a config file": "file",
    "--revision": "revision",
}


def given_parts(args: argparse.Namespace) -> list[str]:
    """The flags of parts that were given."""
    return [flag.option for flag in of_sections(CASCADE) if getattr(args, flag.name) is not None]


def check_part_flags(args: argparse.Namespace) -> str | None:
    """What is wrong with the flags of parts, beside others; None if nothing is."""
    given = given_parts(args)
    if not given:
        return None
    for other, name in _OTHERS.items():
        if vars(args).get(name) is not None:
            return (
                f"{given[0]} and {other} exclude each other: parts make a pipeline of their own. A config "
                "file names them as its fields asr, llm and tts (docs/cascade.md)"
            )
    for name in PARTS:
        of_server = [flag for flag in given if flag in (f"--{name}-model", f"--{name}-api-key-env")]
        if of_server and not is_url(getattr(args, name)):
            return f"{of_server[0]} is of a server: give its URL with --{name}"
    return None


def is_url(given: str | None) -> bool:
    return given is not None and given.startswith(("http://", "https://"))


def load_cascade(args: argparse.Namespace, *, weights: bool = True) -> PipelineConfig:
    """The cascade that the flags describe.

    Args:
        args: Flags that ``check_part_flags`` has passed.
        weights: True if the weights of a hub's checkpoint are needed, not only what its configs say.

    Raises:
        LaunchError: A part cannot be what is given.
    """
    from pydantic import ValidationError

    from sglang_omni.cascade.part import checked_url
    from sglang_omni.config import import_string
    from sglang_omni.config.schema.load import describe_errors
    from sglang_omni.serve.launch.pipelines import LaunchError, pipeline_for

    fields: dict[str, Any] = {}
    gpu: Any = None
    for name in PARTS:
        given = getattr(args, name)
        part = {
            field: value
            for field in ("model", "api_key_env", "voice")
            if (value := getattr(args, f"{name}_{field}", None)) is not None
        }
        if is_url(given):
            try:
                part["url"] = checked_url(given)
            except ValueError as exc:
                raise LaunchError(f"--{name}: {exc}") from None
        elif given is not None and given != _BUNDLED:
            config = pipeline_for(given, flag=f"--{name}", weights=weights)
            if name == "llm":
                _check_language_model(given, config)
                fields["model_path"] = config.model_path
                gpu = config.stage("thinker").gpu
            else:
                part["pipeline"] = _as_part(name, config, args)
        if part:
            fields[name] = part
    try:
        cascade: PipelineConfig = import_string(_CONFIG)(**fields)
    except ValidationError as exc:
        # The fields were flags; nothing else is wrong with them.
        raise LaunchError(
            "; ".join(f"--asr, --llm, --tts: {said}" for said in describe_errors(exc))
        ) from None
    if gpu is not None:
        cascade.stage("thinker").gpu = gpu
    return cascade


def _as_part(name: PartName, config: PipelineConfig, args: argparse.Namespace) -> dict[str, Any]:
    """The pipeline of a part, with the settings of ``--stage asr.STAGE.NAME=VALUE``."""
    from sglang_omni.cascade.local import as_part
    from sglang_omni.config.factories.overrides import override_stage
    from sglang_omni.serve.launch.pipelines import LaunchError

    try:
        for setting in vars(args).get("stage") or ():
            part, _, of_stage = setting.partition(".")
            if part == name:
                override_stage(config, of_stage)
        return as_part(name, config)
    except ValueError as exc:
        raise LaunchError(f"--{name} {getattr(args, name)}: {exc}") from exc


def is_of_part(config: PipelineConfig, setting: str) -> bool:
    """True if a setting of ``--stage`` is of a stage in a part's pipeline, which has it already."""
    part = getattr(config, setting.partition(".")[0], None)
    return getattr(part, "pipeline", None) is not None


def _check_language_model(given: str, config: PipelineConfig) -> None:
    from sglang_omni.serve.launch.pipelines import LaunchError

    if config.config_cls != _TEXT:
        raise LaunchError(
            f"--llm {given}: {config.config_cls} is no pipeline of a language model; serve it by itself, and "
            "give its URL here"
        )


def check_keys(config: PipelineConfig) -> None:
    """Check that the environment has the keys that the config's parts name.

    Raises:
        PartError: It does not.
    """
    from sglang_omni.cascade.part import PartConfig, server_key

    for name in PARTS:
        part = getattr(config, name, None)
        if isinstance(part, PartConfig) and part.url is not None:
            server_key(name, part)
