"""The pipeline of a language model: its stages and their processes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from sglang_omni.answers.chat import ChatPrompts
from sglang_omni.config.factories.factory_args import merge_factory_args
from sglang_omni.config.plan.memory import MemoryDemand
from sglang_omni.config.schema import PipelineConfig, StageConfig
from sglang_omni.config.schema.defaults import GENERATION, Default, ends_of_text, in_words
from sglang_omni.gpus import visible_gpus
from sglang_omni.model_runner.config import end_tokens
from sglang_omni.models.decoder.memory import text_model_demand
from sglang_omni.models.decoder.pipelines import two_stages
from sglang_omni.models.decoder.prompts import context_of, prompts_of, text_lengths
from sglang_omni.models.text.request_params import REQUEST_PARAMS
from sglang_omni.preprocessing.request_params import RequestParams
from sglang_omni.preprocessing.text import read_json

_PACKAGE = "sglang_omni.models.text"


class TextPipelineConfig(PipelineConfig):
    """Text in, text out. ``model_path`` is the directory of a checkpoint in the hub's layout.

    The name, which requests give the model, is ``model_path`` by default.
    """

    # The server refuses everything else with a 400.
    tasks: ClassVar[tuple[str, ...]] = ("chat", "completion")
    input_modalities: ClassVar[tuple[str, ...]] = ("text",)
    output_modalities: ClassVar[tuple[str, ...]] = ("text",)
    request_params: ClassVar[RequestParams] = REQUEST_PARAMS

    stages: list[StageConfig] = Field(default_factory=partial(two_stages, _PACKAGE, "thinker"))
    entry_stage: str | None = "preprocess"
    # Several processes share few cores: idle threads must sleep instead of spinning.
    env_defaults: dict[str, str] = Field(default_factory=lambda: {"OMP_WAIT_POLICY": "PASSIVE"})

    @property
    def adapters(self) -> dict[str, str]:
        """The directories of LoRA adapters, by the names that the server knows them by."""
        return dict(merge_factory_args(self.stage("thinker"), self).get("lora_paths") or {})

    def chat_prompts(self) -> ChatPrompts:
        """The checkpoint's tokenizer and chat template."""
        return prompts_of(self, self.model_path)

    @property
    def max_model_len(self) -> int | None:
        """The most tokens of a prompt and its answer; None if it is not known here."""
        return context_of(self, self.model_path)

    def defaults(self) -> Iterator[Default]:
        """How a request is answered that says nothing of it."""
        # Imported late: it brings torch.
        from sglang_omni.models.text.thinker import sampling_defaults

        directory = Path(self.model_path)
        stored = sampling_defaults(directory)
        yield (
            Default("sampling", in_words(stored), GENERATION)
            if stored
            else Default("sampling", "temperature 1, of all tokens", f"{GENERATION} says nothing")
        )
        yield from text_lengths(self, directory)
        ends = end_tokens(*(read_json(directory / name) for name in ("config.json", GENERATION)))
        yield ends_of_text(ends)

    def decoder_fields(self, stage: str) -> dict[str, Any] | None:
        """The decoder's fields in the checkpoint's ``config.json``; None for a stage without a decoder."""
        if stage != "thinker":
            return None
        fields: dict[str, Any] = json.loads(
            (Path(self.model_path) / "config.json").read_text(encoding="utf-8")
        )
        return fields

    def memory_demand(self, stage: StageConfig, args: Mapping[str, Any]) -> MemoryDemand | None:
        """What one rank of a stage wants of a GPU; ``config.memory`` asks."""
        if stage.name != "thinker":
            return None
        return text_model_demand(self.model_path, {"tp_size": stage.tp_size, **args})

    def smaller_variants(self) -> Iterator[tuple[str, PipelineConfig]]:
        """Pipelines that take less memory, each with what to change for it."""
        thinker = self.stage("thinker")
        if isinstance(thinker.gpu, int) and thinker.tp_size == 1:
            for ranks in (2, 4, 8):
                split = self.model_copy(deep=True)
                split.stage("thinker").gpu = list(range(thinker.gpu, thinker.gpu + ranks))
                split.stage("thinker").tp_size = ranks
                yield f"--tp-size {ranks}", split
        if "quantization_config" not in (self.decoder_fields("thinker") or {}):
            smaller = self.model_copy(deep=True)
            smaller.stage("thinker").factory_args["quantization"] = "fp8"
            yield "--quantization fp8", smaller


def default_config(model_path: str) -> PipelineConfig:
    """The pipeline for a checkpoint, on the first GPU if there is one."""
    config = TextPipelineConfig(model_path=model_path)
    if visible_gpus():
        config.stage("thinker").gpu = 0
    return config
