"""The tokenizer and chat template of a pipeline, for the server's own routes."""

from __future__ import annotations

from pathlib import Path

from sglang_omni.answers.chat import ChatPrompts
from sglang_omni.config.factory_args import merge_factory_args
from sglang_omni.config.schema import PipelineConfig
from sglang_omni.preprocessing.text import PromptEncoder


def prompts_of(config: PipelineConfig, checkpoint: str | Path, *, of_processor: bool = False) -> ChatPrompts:
    """What the pipeline's ``preprocess`` stage makes prompts with.

    Args:
        of_processor: As for ``PromptEncoder``.

    Raises:
        FileNotFoundError, ValueError: As for ``PromptEncoder`` and ``ChatPrompts``.
    """
    stage = next(stage for stage in config.stages if stage.name == "preprocess")
    args = merge_factory_args(stage, config)
    return ChatPrompts(
        PromptEncoder(
            checkpoint,
            context_length=args.get("context_length"),
            chat_template=args.get("chat_template"),
            of_processor=of_processor,
        ),
        tool_call_parser=args.get("tool_call_parser"),
        reasoning_parser=args.get("reasoning_parser"),
    )
