"""The pipeline that serves a model, and whether it can be served here."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sglang_omni.config import PipelineConfig
    from sglang_omni.config.memory import MemoryPlan

DEFAULT_MODEL = "speech-chat"
_SPEECH_CHAT = "sglang_omni.models.speech_chat.config.SpeechChatPipelineConfig"
# model_type of a checkpoint's config.json -> the pipeline that serves it, called with model_path.
_PIPELINES = {
    "llama": _SPEECH_CHAT,
    "qwen2": _SPEECH_CHAT,
    "qwen3": _SPEECH_CHAT,
    "qwen3_omni_moe": "sglang_omni.models.qwen3_omni.config.default_config",
}


class LaunchError(Exception):
    """Why nothing can be served, for the person at the terminal."""


def load_pipeline(model_path: str | None, config_file: Path | None) -> PipelineConfig:
    """The pipeline to serve: a config file's, or the one for a checkpoint.

    Raises:
        ConfigError: The config breaks a rule.
        LaunchError: There is no such checkpoint, or no pipeline for it.
    """
    from sglang_omni.config import import_string, load_config
    from sglang_omni.config.imports import import_beside

    if config_file is not None:
        import_beside(config_file)
        config = load_config(config_file)
        if model_path is not None:
            config.model_path = model_path
        return config
    path = model_path or DEFAULT_MODEL
    dotted = _SPEECH_CHAT if path == DEFAULT_MODEL else _pipeline_of(Path(path))
    return import_string(dotted)(model_path=path)


def _pipeline_of(checkpoint: Path) -> str:
    try:
        kind = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))["model_type"]
    except (FileNotFoundError, NotADirectoryError):
        fetch = ""
        if len(checkpoint.parts) == 2 and not checkpoint.is_absolute() and not checkpoint.exists():
            # Two names, as a model of the hub has; nothing is downloaded here.
            fetch = f":\n  hf download {checkpoint} --local-dir {checkpoint.name}"
        raise LaunchError(
            f"--model-path {str(checkpoint)!r}: no checkpoint there (no config.json); give the directory of "
            f"one, or {DEFAULT_MODEL!r}{fetch}"
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as exc:
        raise LaunchError(f"--model-path {str(checkpoint)!r}: unreadable config.json: {exc!r}") from exc
    if kind not in _PIPELINES:
        raise LaunchError(
            f"--model-path {str(checkpoint)!r}: no pipeline for model_type {kind!r}; there is one for "
            f"{', '.join(_PIPELINES)}; others need a --config"
        )
    return _PIPELINES[kind]


def check_installed(config: PipelineConfig) -> None:
    """Check that the modules are installed that the pipeline needs.

    The pipeline's class may name them in ``required_packages``, by the command that installs them.

    Raises:
        LaunchError: Some are not; the text shows the commands.
    """
    required: dict[str, Sequence[str]] = getattr(config, "required_packages", {})
    missing = {
        command: [name for name in modules if importlib.util.find_spec(name) is None]
        for command, modules in required.items()
    }
    if any(missing.values()):
        names = ", ".join(name for modules in missing.values() for name in modules)
        commands = "".join(f"\n  {command}" for command, modules in missing.items() if modules)
        raise LaunchError(f"{config.name} needs {names}, not installed here:{commands}")


def check_split(config: PipelineConfig) -> None:
    """Check, before anything is loaded, that the model can be split over the ranks its stages ask for.

    The pipeline's class may give in ``decoder_fields(stage_name)`` what its checkpoint says of a stage's
    decoder, or None if nothing is known yet.

    Raises:
        LaunchError: It cannot; the text says into how many it can.
    """
    from sglang_omni.config import split

    decoder_fields = getattr(config, "decoder_fields", None)
    for stage in config.stages:
        if stage.tp_size == 1 or decoder_fields is None or (fields := decoder_fields(stage.name)) is None:
            continue
        try:
            split.check_split(fields, stage.tp_size)
        except ValueError as exc:
            possible = ", ".join(map(str, split.possible_splits(fields)))
            raise LaunchError(f"stage {stage.name!r}: {exc}; it can be {possible}") from None


def fit_gpus(config: PipelineConfig, *, elsewhere: bool = False) -> MemoryPlan | None:
    """Give the stages on this machine's GPUs their shares of the memory, before anything is loaded.

    Args:
        config: The pipeline, which is changed.
        elsewhere: True if the stages may be meant for other machines: then a machine without any GPU is not
            a mistake.

    Returns:
        What each takes; None if no stage is on a GPU, or nothing is known of what it takes.

    Raises:
        FileNotFoundError, ValueError: The checkpoint cannot be read.
        LaunchError: The models do not fit; the text is a table with what is needed, and what to change.
    """
    from sglang_omni.config.memory import fit_memory, refusal
    from sglang_omni.gpus import visible_gpus

    gpus = visible_gpus()
    if elsewhere and not gpus:
        return None
    plan = fit_memory(config, gpus)
    if plan is not None and not plan.fits:
        raise LaunchError(refusal(plan))
    return plan
