"""The tokenizer and chat template of a pipeline, for the server's own routes."""

from __future__ import annotations

from pathlib import Path

from sglang_omni.answers.chat import ChatPrompts
from sglang_omni.config.factory_args import merge_factory_args
from sglang_omni.config.schema import PipelineConfig
from sglang_omni.preprocessing.text import PromptEncoder


def prompts_of(config: PipelineConfig, checkpoint: str | Path, *, between_texts: str = "\n") -> ChatPrompts:
    """What the pipeline's ``preprocess`` stage makes prompts with.

    Args:
        between_texts: What that stage puts between the texts of one message.

    Raises:
        FileNotFoundError, ValueError: As for ``PromptEncoder`` and ``ChatPrompts``.
    """
    stage = next(stage for stage in config.stages if stage.name == "preprocess")
    args = merge_factory_args(stage, config)
    return ChatPrompts(
        PromptEncoder(checkpoint, context_length=args.get("context_length"), between_texts=between_texts),
        tool_call_parser=args.get("tool_call_parser"),
        reasoning_parser=args.get("reasoning_parser"),
    )
