"""What a thinker, a talker and encoders of media take of a GPU. Estimates are rounded up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from sglang_omni.config.plan.memory import MemoryDemand
from sglang_omni.config.plan.memory_plan import MIB
from sglang_omni.config.plan.weights import ITEM_BYTES, loaded_bytes, tensor_sizes
from sglang_omni.model_runner.config import DecoderConfig
from sglang_omni.models.decoder.memory import decoder_demand, dtype_of, weights_and_loading
from sglang_omni.models.omni.checkpoint import MediaCheckpoint

Checkpoint = MediaCheckpoint[Any, Any]

# KV pools on a CPU, in tokens.
CPU_THINKER_TOKENS, CPU_TALKER_TOKENS = 32_768, 65_536
# Rows of waiting and running requests that may lie joined on the thinker's GPU; more are joined on the host.
MAX_JOINED_BYTES = 512 * MIB
# Answers of a thinker at once whose pipeline has a talker.
_SPOKEN_REQUESTS = 64
# Speeches of a talker at once, by default.
_SPEECHES = 32
# cuDNN, cuBLAS and what an allocator keeps.
LIBRARIES = 256 * MIB
_THINKER = ("thinker.model.", "thinker.lm_head.")
_TALKER, _TALKER_LAYERS = "talker.", "talker.model.layers."
# The talker's prompts are short, and its workspace is better spent on the thinker's KV.
_TALKER_STEPS = (2048,)
# Codes or frames that a request may ask for unless the checkpoint or the request says otherwise.
_TOKENS_PER_SPEECH = 4096


class StageDemands(NamedTuple):
    """What a family's stages differ in.

    Attributes:
        thinker_config, talker_config: The decoders' shapes, by the checkpoint.
        inner_rows: As in ``image_encoder_demand``.
        audio_elements: Numbers that the encoder of sound computes with at the same time, by the checkpoint
            and what its factory gets.
        code2wav: The demand of the codec, by the same.
        talker_graphs: Bytes of the CUDA graphs that a talker captures beside its engine's.
    """

    thinker_config: Callable[[Any], DecoderConfig]
    talker_config: Callable[[Any], DecoderConfig]
    inner_rows: int
    audio_elements: Callable[[Any, Mapping[str, Any]], int]
    code2wav: Callable[[Any, Mapping[str, Any]], MemoryDemand]
    talker_graphs: int = 0

    def of(
        self, checkpoint: Checkpoint, stage: str, args: Mapping[str, Any], stored_item: float | None = None
    ) -> MemoryDemand | None:
        """The demand of one rank of a stage on a GPU; None for a stage that uses none.

        Args:
            checkpoint: The model.
            stage: The stage's name.
            args: What its factory gets.
            stored_item: If set, of a checkpoint that holds the weights of thinker and talker quantized to so
                many bytes a number.

        Raises:
            FileNotFoundError, ValueError: The checkpoint's weights or config cannot be read.
        """
        match stage:
            case "thinker":
                return thinker_demand(checkpoint, self.thinker_config(checkpoint), args, stored_item)
            case "talker":
                config = self.talker_config(checkpoint)
                demand = talker_demand(checkpoint, config, args, stored_item)
                return replace(demand, workspace=demand.workspace + self.talker_graphs)
            case "image_encoder":
                return image_encoder_demand(checkpoint, args, inner_rows=self.inner_rows)
            case "audio_encoder":
                return audio_encoder_demand(checkpoint, args, self.audio_elements(checkpoint, args))
            case "code2wav":
                return self.code2wav(checkpoint, args)
            case _:
                return None


def thinker_demand(
    checkpoint: Checkpoint, config: DecoderConfig, args: Mapping[str, Any], stored_item: float | None
) -> MemoryDemand:
    """The demand of one rank of a thinker. If there is a talker (``speech``), hidden states are kept beside
    the KV.

    Args:
        checkpoint: The model.
        config: The thinker's shape.
        args: What its factory gets, and ``joins_media``: False if no rows of media lie on its GPU.
        stored_item: As in ``weights_and_loading``.
    """
    weights, loading = weights_and_loading(tensor_sizes(checkpoint.path), _THINKER, args, stored_item)
    hidden = config.hidden_size * ITEM_BYTES[dtype_of(args)] if args.get("speech") else 0
    demand = decoder_demand(
        config,
        args,
        weights,
        loading=loading,
        extra_token_bytes=hidden,
        # The talker speaks fewer at once.
        max_running_requests=_SPOKEN_REQUESTS if args.get("speech") else None,
        weight=4,
        cpu_tokens=CPU_THINKER_TOKENS,
    )
    joined = MAX_JOINED_BYTES if args.get("joins_media", True) else 0
    return replace(demand, workspace=demand.workspace + joined)


def talker_demand(
    checkpoint: Checkpoint,
    config: DecoderConfig,
    args: Mapping[str, Any],
    stored_item: float | None,
) -> MemoryDemand:
    """The demand of a talker, with all of its weights. The thinker's embeddings stay in the checkpoint's
    file.

    Args:
        checkpoint: The model.
        config: The talker's shape.
        args: What its factory gets.
        stored_item: As in ``weights_and_loading``, of its layers.
    """
    sizes = tensor_sizes(checkpoint.path)
    layers, loading = weights_and_loading(sizes, (_TALKER_LAYERS,), args, stored_item)
    whole = loaded_bytes(sizes, (_TALKER,), dtype=dtype_of(args))
    others = whole - loaded_bytes(sizes, (_TALKER_LAYERS,), dtype=dtype_of(args))
    running = int(args.get("max_running_requests") or _SPEECHES)
    return decoder_demand(
        config,
        args,
        layers + others,
        loading=loading + others if loading else 0,
        max_running_requests=_SPEECHES,
        steps=_TALKER_STEPS,
        most_tokens=running * _TOKENS_PER_SPEECH,
        cpu_tokens=CPU_TALKER_TOKENS,
    )


def image_encoder_demand(checkpoint: Checkpoint, args: Mapping[str, Any], *, inner_rows: int) -> MemoryDemand:
    """The demand of the encoder of images and videos.

    Args:
        checkpoint: The model.
        args: What its factory gets.
        inner_rows: Rows of an MLP's inner size that exist for a patch at the same time.
    """
    vision = checkpoint.thinker_config["vision_config"]
    patches = int(args.get("max_batch_patches") or 16_384)
    # The residual, the norm, q, k, v, their rotated copies and the attention's output; the MLP's inner rows.
    width = 8 * int(vision["hidden_size"]) + inner_rows * int(vision["intermediate_size"])
    return _encoder(checkpoint, args, "thinker.visual.", 3 * patches * width // 2, 512_000_000)


def audio_encoder_demand(checkpoint: Checkpoint, args: Mapping[str, Any], elements: int) -> MemoryDemand:
    """The demand of the encoder of sound.

    Args:
        checkpoint: The model.
        args: What its factory gets.
        elements: Numbers that it computes with at the same time.
    """
    return _encoder(checkpoint, args, "thinker.audio_tower.", elements, 256_000_000)


def _encoder(
    checkpoint: Checkpoint, args: Mapping[str, Any], prefix: str, elements: int, cache_bytes: int
) -> MemoryDemand:
    cache = args.get("cache_bytes")
    return MemoryDemand(
        weights=loaded_bytes(tensor_sizes(checkpoint.path), (prefix,), dtype=dtype_of(args)),
        # The cached outputs stay on the GPU.
        workspace=LIBRARIES
        + elements * ITEM_BYTES[dtype_of(args)]
        + (cache_bytes if cache is None else int(cache)),
    )
