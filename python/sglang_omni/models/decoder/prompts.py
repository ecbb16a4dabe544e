"""The tokenizer and chat template of a pipeline, for its stages and for the server's own routes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sglang_omni.answers.chat import ChatPrompts
from sglang_omni.config.factories.factory_args import merge_factory_args
from sglang_omni.config.schema import PipelineConfig
from sglang_omni.config.schema.defaults import Default
from sglang_omni.preprocessing.text import PromptEncoder, context_limit


def prompts_of(config: PipelineConfig, checkpoint: str | Path, *, of_processor: bool = False) -> ChatPrompts:
    """What the pipeline's ``preprocess`` stage makes prompts with.

    Args:
        of_processor: As for ``PromptEncoder``.

    Raises:
        FileNotFoundError, ValueError: As for ``PromptEncoder`` and ``ChatPrompts``.
    """
    return chat_prompts(checkpoint, _args_of(config), of_processor=of_processor)


def chat_prompts(
    checkpoint: str | Path, args: Mapping[str, Any], *, of_processor: bool = False
) -> ChatPrompts:
    """What makes prompts, by the ``ChatArgs`` among ``args``; errors are those of ``prompts_of``."""
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


def context_of(config: PipelineConfig, checkpoint: str | Path) -> int | None:
    """The most tokens of a prompt and its answer; None if the checkpoint is not on this machine.

    Raises:
        ValueError: It names no limit.
    """
    directory = Path(checkpoint)
    if not (directory / "config.json").is_file():
        return None
    return context_limit(directory, _args_of(config).get("context_length"))


def text_lengths(config: PipelineConfig, checkpoint: str | Path) -> Iterator[Default]:
    """The context and the length of answers of what ``prompts_of`` describes.

    Raises:
        FileNotFoundError, ValueError: As of ``context_limit``.
    """
    given = _args_of(config).get("context_length")
    own, used = (context_limit(Path(checkpoint), limit) for limit in (None, given))
    source = "max_position_embeddings of config.json" if own == used else "--context-length"
    yield Default("context", f"{used:,} tokens of prompt and answer", source)
    yield Default("length", "to the end of the context", "this server's")


def _args_of(config: PipelineConfig) -> dict[str, Any]:
    return merge_factory_args(next(s for s in config.stages if s.name == "preprocess"), config)
