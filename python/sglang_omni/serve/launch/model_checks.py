"""What a checkpoint is and holds, for `sgl-omni check`: stages are built from the headers of its weights."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sglang_omni.config.schema.defaults import NO_ENDS, HasDefaults
from sglang_omni.families import marked_family
from sglang_omni.model_runner.headers import HeaderReport, NotCompared, headers_only
from sglang_omni.serve.launch.checks import Checks, sentence

if TYPE_CHECKING:
    from sglang_omni.config import PipelineConfig
    from sglang_omni.hub import DownloadPlan

_HELLO = [{"role": "user", "content": "Hello"}]
_SHOWN_CHARS = 120
# Of a config.json, what says the family.
_NAMES = ("architectures", "model_type")


def describe_family(config: PipelineConfig, checks: Checks) -> None:
    """Which pipeline serves the model, and what of its config.json says so."""
    where = type(config).__module__.removesuffix(".config").rpartition(".")[2]
    path = Path(config.model_path) / "config.json"
    fields: dict[str, Any] = json.loads(path.read_bytes()) if path.is_file() else {}
    why = ", ".join(f"{name} {fields[name]!r}" for name in _NAMES if fields.get(name))
    if (family := marked_family(fields)) is not None:
        why = ", ".join(family.marks)
    checks.tell("family", f"{where}{f', because config.json has {why}' if why else ''}")


def describe_download(plan: DownloadPlan, checks: Checks) -> None:
    """What serving a hub's checkpoint fetches."""
    cached = plan.size - plan.missing_size
    checks.tell(
        "files",
        f"{plan.repo_id} at {plan.commit[:12]}: {len(plan.files)} files, {plan.size / 1e9:.2f} GB; "
        f"{plan.missing_size / 1e9:.2f} GB to be fetched"
        + (f", {cached / 1e9:.2f} GB here" if cached else ""),
    )


def check_model(config: PipelineConfig, checks: Checks, *, unseen: Sequence[Path] = ()) -> None:
    """Builds every stage as a server does, from the headers of the weights, and reads what answers depend on.

    Args:
        config: The pipeline.
        checks: What was found is noted here.
        unseen: Files that are not here, of which nothing is known.
    """
    with headers_only() as report:
        # Without readable weights each stage would fail, and tell nothing new.
        for stage in () if checks.failed("weights") else config.stages:
            _build(config, stage.name, report, checks, unseen)
    _tell_tensors(report, checks)
    if report.engine:
        checks.tell("engine", report.engine)
    if (chat_prompts := getattr(config, "chat_prompts", None)) is not None:
        with checks.of("tokenizer"):
            _tell_prompts(chat_prompts(), checks)
    if isinstance(config, HasDefaults):
        with checks.of("defaults"):
            for default in config.defaults():
                endless = default.value == NO_ENDS
                checks.tell(default.name, f"{default.value} ({default.source})", "warn" if endless else "ok")


def _build(
    config: PipelineConfig, name: str, report: HeaderReport, checks: Checks, unseen: Sequence[Path]
) -> None:
    from sglang_omni.config import import_callable, resolve_stage_factory_args
    from sglang_omni.config.factories.factory_args import stage_factory_path

    stage = config.stage(name)
    path, field = stage_factory_path(stage)
    try:
        factory = import_callable(path, stage=name, field=field)
        factory(**resolve_stage_factory_args(stage, config))
    except NotCompared as exc:
        checks.tell("tensors", f"those of {name} are not compared: {exc}")
    except Exception as exc:  # noqa: BLE001
        text = sentence(exc)
        far = [file.name for file in unseen if file.name in text]
        if far:
            checks.tell(
                "tensors", f"those of {name} are not compared: {', '.join(far)} is not fetched", "missing"
            )
        else:
            checks.tell(f"stage {name}", text, "fail")


def _tell_tensors(report: HeaderReport, checks: Checks) -> None:
    faults = report.faults()
    for text in faults:
        checks.tell("tensors", text, "fail")
    if report.taken and not faults:
        checks.tell("tensors", f"all {report.taken:,} that are read have the names and shapes of config.json")


def _tell_prompts(prompts: Any, checks: Checks) -> None:
    from sglang_omni.proto import OmniRequest, RequestError

    encoder = prompts.prompts
    checks.tell("tokenizer", f"{encoder.vocab_size:,} tokens")
    try:
        text, _ = prompts.render(_HELLO, OmniRequest(_HELLO))
        tokens = encoder.encode_text(text, param="messages")
    except RequestError as exc:
        checks.tell("template", f"chats are refused: {exc}", "warn")
        return
    shown = text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}..."
    checks.tell("template", f"'Hello' becomes {len(tokens)} tokens: {shown!r}")
