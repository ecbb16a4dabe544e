"""An engine's options, under SGLang's names, and the description of the decoder it computes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from sglang_omni.model_runner.added_rows import RowSource
from sglang_omni.model_runner.config import DecoderConfig
from sglang_omni.model_runner.decoder import WeightNames
from sglang_omni.model_runner.feedback import FeedbackStrategy
from sglang_omni.model_runner.loader import Checkpoint, OpenCheckpoint

EngineKind = Literal["sglang", "omni"]
Dtype = Literal["float32", "bfloat16", "float16"]
# As users give it: "auto" depends on the device and the checkpoint.
DtypeChoice = Literal["auto", "float32", "bfloat16", "float16"]


@dataclass(frozen=True)
class TensorParallel:
    """One rank of a tensor parallel group, whose ranks meet at ``port`` on this host."""

    rank: int = 0
    size: int = 1
    port: int | None = None


@dataclass(frozen=True)
class EngineOptions:
    """
    Attributes:
        max_running_requests: Sequences decoded together.
        max_total_tokens: Size of the KV pool that all sequences share. With ``mem_fraction_static``, SGLang
            builds a smaller one if memory is short; ``stats()`` has its size.
        chunked_prefill_size: The most prompt tokens in one step; longer prompts take several. -1 for whole
            prompts.
        context_length: The most tokens of prompt and answer together; None for the checkpoint's own limit.
        page_size: Tokens in a page of the KV pool, the unit of sharing; None for the engine's own choice.
        prefix_cache: True if requests share the keys and values of common prefixes.
        kv_events_config: Where the engine publishes what enters and leaves that cache, in the JSON of
            ``KvEventsConfig``; None for nowhere.
        num_threads: Threads that torch uses in this process; None leaves its choice.
        quantization: SGLang's name of a quantization; None for the one that the checkpoint names, if any.
        kv_cache_dtype: SGLang's name; ``"auto"`` is ``dtype``.
        attention_backend: SGLang's name; None for its choice by the hardware.
        cuda_graph: True if steps on a GPU are captured as CUDA graphs if they can be.
        prefill_cuda_graph: True if prompts are, too, by SGLang's own model classes.
        overlap_schedule: True if SGLang launches a step before it reads the tokens of the last one, of a
            decoder that ``steps_ahead``; None for yes on a GPU.
        device: ``"cpu"`` or ``"cuda:N"``.
        mem_fraction_static: Share of a GPU's memory for weights and KV pool; SGLang then sizes the pool by
            the memory that it finds free.
        lora_paths: Directories of LoRA adapters in PEFT's layout, by the names that requests give them.
        max_loras_per_batch: Adapters in one step, the bare model counted as one.
        memory_bytes: What this process may take of its device; None for no limit but the device's.
        workspace_bytes: What it will take beside weights and KV pool, and beside what it took to start.
    """

    dtype: Dtype = "float32"
    max_running_requests: int = 16
    max_total_tokens: int = 16384
    chunked_prefill_size: int = 512
    context_length: int | None = None
    page_size: int | None = None
    prefix_cache: bool = True
    kv_events_config: str | None = None
    num_threads: int | None = None
    quantization: str | None = None
    kv_cache_dtype: str = "auto"
    attention_backend: str | None = None
    cuda_graph: bool = True
    prefill_cuda_graph: bool = True
    overlap_schedule: bool | None = None
    device: str = "cpu"
    mem_fraction_static: float | None = None
    lora_paths: Mapping[str, str] = field(default_factory=dict)
    max_loras_per_batch: int = 8
    memory_bytes: int | None = None
    workspace_bytes: int = 0
    tp: TensorParallel = field(default_factory=TensorParallel)

    def __post_init__(self) -> None:
        """
        Raises:
            ValueError: An option with which no request could ever be computed.
        """
        for name in (
            "max_running_requests",
            "max_total_tokens",
            "context_length",
            "page_size",
            "num_threads",
            "max_loras_per_batch",
            "memory_bytes",
        ):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if self.chunked_prefill_size < 1 and self.chunked_prefill_size != -1:
            raise ValueError(
                f"chunked_prefill_size must be at least 1, or -1 for whole prompts, "
                f"got {self.chunked_prefill_size}"
            )
        if self.mem_fraction_static is not None and not 0.0 < self.mem_fraction_static <= 1.0:
            raise ValueError(
                f"mem_fraction_static must be more than 0 and at most 1, got {self.mem_fraction_static}"
            )


@dataclass(frozen=True)
class DecoderSpec:
    """An autoregressive decoder of a checkpoint directory.

    Attributes:
        weights: Its tensors' names; every other tensor of the checkpoint belongs to other components.
        component: Prefix of the names of the decoder's tensors. One that is not used is an error.
        capture_layer: ``hidden_states[capture_layer]`` (transformers' numbering) of prompts is kept, for
            states that want it.
        captures_all: True if these are kept of all tokens, also of those that are generated, and not of
            prompts with media alone.
        strategy: For models whose input rows are not embeddings of their tokens.
        added_rows: Rows that are added to the embeddings of all tokens, for engine "omni" alone.
        suppress_token_ids: Tokens that are never chosen.
        open_checkpoint: Reads checkpoints whose tensors have other names or layouts.
        takes_media: True if prompts may have rows of media; always so for positions on three axes.
    """

    model_path: Path
    config: DecoderConfig
    weights: WeightNames = field(default_factory=WeightNames)
    component: str = ""
    capture_layer: int | None = None
    captures_all: bool = False
    strategy: FeedbackStrategy | None = None
    added_rows: RowSource | None = None
    suppress_token_ids: tuple[int, ...] = ()
    open_checkpoint: OpenCheckpoint = Checkpoint
    takes_media: bool = False

    @property
    def steps_ahead(self) -> bool:
        """True if the inputs of a step are on the device, or on the host since before the last one.

        A strategy makes them of the last step's tokens. Hidden states that are kept for a talker leave with
        the tokens that they belong to.
        """
        return self.strategy is None and self.capture_layer is None

    @classmethod
    def from_dir(cls, model_path: str | Path) -> DecoderSpec:
        """The decoder of a checkpoint directory that holds nothing but a language model.

        Raises:
            FileNotFoundError: There is no ``config.json``.
            ValueError: The model is of a family, or has a feature, that is not supported.
        """
        return cls(Path(model_path), DecoderConfig.from_dir(model_path))
