"""The pipeline that serves a model, and whether it can be served here."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sglang_omni import hub
from sglang_omni.families import family_named, marked_family
from sglang_omni.packages import missing
from sglang_omni.serve.launch.registry import PipelineError, own_files, pipeline_of

if TYPE_CHECKING:
    from sglang_omni.config import PipelineConfig
    from sglang_omni.config.plan.memory_plan import MemoryPlan
    from sglang_omni.config.plan.ram import RamPlan

DEFAULT_MODEL = "speech-chat"


class LaunchError(Exception):
    """Why nothing can be served, for the person at the terminal."""


def load_pipeline(
    model_path: str | None, config_file: Path | None, revision: str | None = None, *, weights: bool = True
) -> PipelineConfig:
    """The pipeline to serve: a config file's, or the one for a checkpoint.

    A hub's id in place of a directory is downloaded, and ``model_path`` becomes the directory that it is in.

    Args:
        model_path: A checkpoint's directory, a hub's id, or the bundled model's name.
        config_file: YAML or JSON.
        revision: A hub's branch, tag or commit.
        weights: True if the weights of a hub's checkpoint are needed, not only what its configs say.

    Raises:
        ConfigError: The config breaks a rule.
        LaunchError: There is no such checkpoint, or no pipeline for it.
    """
    from sglang_omni.config import import_string, load_config
    from sglang_omni.config.imports import import_beside

    if config_file is not None:
        import_beside(config_file)
        config = load_config(config_file)
        given = model_path or config.model_path
        if model_path is not None or revision is not None or _is_wanted_from_hub(config):
            config.model_path = _local(given, revision, _own_files_if_known, weights=weights)
        return config
    given = model_path or DEFAULT_MODEL
    if given == DEFAULT_MODEL:
        speech_chat = family_named("speech_chat").config.replace(":", ".")
        path = _local(given, revision, own_files, weights=weights)
        return import_string(speech_chat)(model_path=path)
    return pipeline_for(given, revision, weights=weights)


def pipeline_for(
    given: str, revision: str | None = None, *, flag: str = "MODEL", weights: bool = True
) -> PipelineConfig:
    """The pipeline for a checkpoint.

    Args:
        given: Its directory, or a hub's id, as the command line has it.
        revision, weights: As of ``load_pipeline``.
        flag: The flag or argument that it was given as, for errors.

    Raises:
        LaunchError: There is no such checkpoint, or no pipeline for it.
    """
    path = _local(given, revision, own_files, weights=weights)
    try:
        config = pipeline_of(_checkpoint_fields(Path(path), flag)).config(path)
    except PipelineError as exc:
        raise LaunchError(f"{flag} {path!r}: {exc}") from exc
    if config.name == path:
        # Requests name a model as the command line does.
        config.name = given
    return config


def _is_wanted_from_hub(config: PipelineConfig) -> bool:
    """True if a config file's ``model_path`` is a hub's id that a stage's factory is given."""
    from sglang_omni.config.factories.overrides import takers

    try:
        return hub.is_repo_id(config.model_path) and bool(takers(config, "model_path"))
    except (ImportError, TypeError):
        # What is wrong with a factory is said when the whole config is checked.
        return False


def _own_files_if_known(fields: Mapping[str, Any]) -> Sequence[str]:
    """A config of one's own may serve a checkpoint that no family does."""
    try:
        return own_files(fields)
    except PipelineError:
        return ()


def _local(model_path: str, revision: str | None, files: hub.OwnFiles, *, weights: bool) -> str:
    """``model_path``, or the directory that a hub's id is downloaded to.

    Raises:
        LaunchError: It cannot be downloaded, or a revision is asked for of something that has none.
    """
    if not hub.is_repo_id(model_path):
        if revision is not None:
            raise LaunchError(
                f"--revision {revision!r}: {model_path!r} is no id of the hub, as org/name is; leave it out"
            )
        return model_path
    try:
        return str(hub.download(model_path, revision, weights=weights, own_files=files))
    except (hub.HubError, PipelineError) as exc:
        raise LaunchError(f"{model_path} is no directory here, so it is sought on the hub: {exc}") from exc


def _checkpoint_fields(checkpoint: Path, flag: str) -> dict[str, Any]:
    """The fields of its ``config.json``."""
    try:
        fields: dict[str, Any] = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
        if not (fields.get("model_type") or fields.get("architectures") or marked_family(fields)):
            raise KeyError("model_type")
    except (FileNotFoundError, NotADirectoryError):
        raise LaunchError(
            f"{flag} {str(checkpoint)!r}: no checkpoint there (no config.json); give the directory of "
            f"one, an id of the hub such as Qwen/Qwen3-8B, or {DEFAULT_MODEL!r}"
        ) from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as exc:
        raise LaunchError(
            f"{flag} {str(checkpoint)!r}: unreadable config.json ({exc!r}): download it again"
        ) from exc
    return fields


def check_installed(config: PipelineConfig) -> None:
    """Check that the modules are installed that the pipeline needs.

    The pipeline's class may name them in ``required_packages``, by the command that installs them.

    Raises:
        LaunchError: Some are not; the text shows the commands.
    """
    if absent := missing(getattr(config, "required_packages", {})):
        names = ", ".join(name for modules in absent.values() for name in modules)
        commands = "".join(f"\n  {command}" for command in absent)
        raise LaunchError(f"{config.name} needs {names}, not installed here:{commands}")


def check_split(config: PipelineConfig) -> None:
    """Check, before anything is loaded, that the model can be split over the ranks its stages ask for.

    The pipeline's class may give in ``decoder_fields(stage_name)`` what its checkpoint says of a stage's
    decoder, or None if nothing is known yet.

    Raises:
        LaunchError: It cannot; the text says into how many it can.
    """
    from sglang_omni.config.plan import split

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
    from sglang_omni.config.plan.memory import fit_memory
    from sglang_omni.config.plan.memory_plan import refusal
    from sglang_omni.gpus import visible_gpus, with_use

    gpus = visible_gpus()
    if not elsewhere:
        gpus = with_use(gpus)
    elif not gpus:
        return None
    # A pipeline that others are parts of counts them too.
    share = getattr(config, "share_gpus", partial(fit_memory, config))
    plan: MemoryPlan | None = share(gpus)
    if plan is not None and not plan.fits:
        raise LaunchError(refusal(plan))
    return plan


def fit_ram(config: PipelineConfig, replicas: int = 1) -> RamPlan | None:
    """Check, before anything is loaded, that the stages on the CPU fit this machine's memory.

    Args:
        config: The pipeline.
        replicas: Server replicas on this machine.

    Returns:
        What they take; None if nothing is known of it.

    Raises:
        FileNotFoundError, ValueError: The checkpoint cannot be read.
        LaunchError: They do not fit; the text says what is needed, and what to change.
    """
    from sglang_omni.config.plan.ram import plan_ram
    from sglang_omni.ram import available_ram

    ram = available_ram()
    plan = None if ram is None else plan_ram(config, ram, replicas=replicas)
    if plan is not None and not plan.fits:
        raise LaunchError(plan.refusal())
    return plan
