"""The tokenizer and chat template of a pipeline, for the server's own routes."""

from __future__ import annotations

from pathlib import Path

from sglang_omni.config.factory_args import merge_factory_args
from sglang_omni.config.schema import PipelineConfig
from sglang_omni.preprocessing.text import PromptEncoder


def encoder_of(config: PipelineConfig, checkpoint: str | Path, *, between_texts: str = "\n") -> PromptEncoder:
    """What the pipeline's ``preprocess`` stage reads texts with.

    Args:
        between_texts: What that stage puts between the texts of one message.

    Raises:
        FileNotFoundError, ValueError: As for ``PromptEncoder``.
    """
    stage = next(stage for stage in config.stages if stage.name == "preprocess")
    context_length = merge_factory_args(stage, config).get("context_length")
    return PromptEncoder(checkpoint, context_length=context_length, between_texts=between_texts)
