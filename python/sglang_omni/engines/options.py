"""How an engine is set up, under SGLang's names."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from sglang_omni.model_runner.config import DecoderConfig
from sglang_omni.model_runner.decoder import WeightNames
from sglang_omni.model_runner.feedback import FeedbackStrategy
from sglang_omni.model_runner.loader import Checkpoint, OpenCheckpoint

EngineKind = Literal["sglang", "omni"]
Dtype = Literal["float32", "bfloat16", "float16"]


@dataclass(frozen=True)
class TensorParallel:
    """One rank of a group. ``port`` is where its ranks meet, on this host."""

    rank: int = 0
    size: int = 1
    port: int | None = None


@dataclass(frozen=True)
class EngineOptions:
    """
    Attributes:
        max_running_requests: Sequences decoded together.
        max_total_tokens: Size of the KV pool that all sequences share. What memory leaves of it is what the
            engine goes by, and says in ``stats()``.
        chunked_prefill_size: Tokens of prompts in one step; longer prompts are computed in several. -1 for
            whole prompts.
        context_length: Tokens of prompt and answer together; the checkpoint's own limit where None.
        page_size: Tokens of a page of the KV pool, within which nothing is shared; the engine's own choice
            where None.
        prefix_cache: Whether requests share what they have in common.
        num_threads: Threads torch uses in this process; None leaves its choice.
        device: ``"cpu"`` or ``"cuda:N"``.
        mem_fraction_static: Share of the GPU's memory for weights and KV pool, where there is one.
    """

    dtype: Dtype = "float32"
    max_running_requests: int = 16
    max_total_tokens: int = 16384
    chunked_prefill_size: int = 512
    context_length: int | None = None
    page_size: int | None = None
    prefix_cache: bool = True
    num_threads: int | None = None
    device: str = "cpu"
    mem_fraction_static: float | None = None
    tp: TensorParallel = field(default_factory=TensorParallel)

    def __post_init__(self) -> None:
        """
        Raises:
            ValueError: With such an option no request could ever be computed.
        """
        for name in (
            "max_running_requests",
            "max_total_tokens",
            "context_length",
            "page_size",
            "num_threads",
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
        component: Prefix of all the tensors that are this decoder's; one of them left over is an error.
        capture_layer: ``hidden_states[capture_layer]`` of prompts is kept for states that
            ask for it.
        strategy: For models whose input rows are not embeddings of their tokens.
        suppress_token_ids: Never chosen.
        open_checkpoint: How its tensors are read where they are named or laid out in another way.
    """

    model_path: Path
    config: DecoderConfig
    weights: WeightNames = field(default_factory=WeightNames)
    component: str = ""
    capture_layer: int | None = None
    strategy: FeedbackStrategy | None = None
    suppress_token_ids: tuple[int, ...] = ()
    open_checkpoint: OpenCheckpoint = Checkpoint

    @classmethod
    def from_dir(cls, model_path: str | Path) -> DecoderSpec:
        """A checkpoint directory that holds a language model and nothing else.

        Raises:
            FileNotFoundError, ValueError: As ``DecoderConfig.from_dir``.
        """
        return cls(Path(model_path), DecoderConfig.from_dir(model_path))
