"""The sizes of a tiny checkpoint, and its ``config.json``: the published one, with these sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sglang_omni.models.tiny.shapes import option
from sglang_omni.models.tiny.tokenizer import WordTokenizer
from sglang_omni.published import published_model, shrunk

DTYPES = ("float32", "bfloat16", "float16")
SPEAKERS = ("chelsie", "ethan", "aiden")
# The talker's published vocabulary has 2048 codes and then 1024 special ids, of which these are used.
_CODEC_IDS = {
    "codec_pad_id": 100,
    "codec_bos_id": 101,
    "codec_eos_token_id": 102,
    "codec_nothink_id": 107,
    "codec_think_bos_id": 108,
    "codec_think_eos_id": 109,
}
_FIRST_SPEAKER = 253
NUM_CODEC_SPECIALS = 1024


@dataclass(frozen=True)
class TinyShape:
    """The sizes of a checkpoint; each is an option of ``make-tiny-checkpoint``.

    Raises:
        ValueError: The sizes contradict each other.
    """

    vocab_size: int = option(640, "tokens of the thinker's vocabulary")
    layers: int = option(2, "the thinker's layers")
    hidden: int = option(64, "the thinker's hidden size")
    heads: int = option(4, "attention heads of thinker and talker")
    kv_heads: int = option(2, "their key and value heads")
    head_dim: int = option(32, "size of each of these heads")
    experts: int = option(4, "experts in each layer of thinker and talker")
    top_k: int = option(2, "experts that compute each token")
    context: int = option(32768, "longest prompt and answer, in tokens")
    vision_depth: int = option(3, "layers of the vision encoder")
    deepstack: tuple[int, ...] = option(
        (0, 1),
        "vision layers whose features are added inside the thinker, one after each of its first layers",
    )
    audio_layers: int = option(2, "layers of the audio encoder")
    talker_layers: int = option(2, "the talker's layers")
    talker_hidden: int = option(48, "the talker's hidden size")
    accept_hidden_layer: int | None = option(
        None, "thinker layer whose input the talker reads (default: about the middle)"
    )
    codes: int = option(64, "codes of each codebook")
    code_groups: int = option(4, "codebooks, and so codes of each frame")
    codec_dim: int = option(64, "channels of the codec's decoder, a multiple of 16")
    talker: bool = option(True, "whether there is a talker; without, the model only writes")
    shards: int = option(3, "safetensors files")
    dtype: str = option("float32", f"data type of the weights: {', '.join(DTYPES)}")

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype {self.dtype!r} is none of {', '.join(DTYPES)}")
        sizes = {name: value for name, value in vars(self).items() if isinstance(value, int)}
        for name, value in sizes.items():
            if name != "talker" and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if self.heads % self.kv_heads:
            raise ValueError(f"heads ({self.heads}) must be a multiple of kv_heads ({self.kv_heads})")
        if self.head_dim % 8:
            raise ValueError(f"head_dim must be a multiple of 8, got {self.head_dim}")
        if self.top_k > self.experts:
            raise ValueError(f"top_k ({self.top_k}) is more than there are experts ({self.experts})")
        if list(self.deepstack) != sorted(set(self.deepstack)) or not all(
            0 <= layer < self.vision_depth for layer in self.deepstack
        ):
            raise ValueError(
                f"deepstack must name layers 0 to {self.vision_depth - 1} in ascending order, "
                f"got {list(self.deepstack)}"
            )
        if len(self.deepstack) > self.layers:
            raise ValueError(f"{len(self.deepstack)} deepstack layers need as many layers, not {self.layers}")
        if self.codec_dim % 16:
            raise ValueError(f"codec_dim must be a multiple of 16, got {self.codec_dim}")
        if self.code_groups < 2:
            raise ValueError(
                "code_groups must be at least 2: the first is the talker's, the rest are predicted"
            )
        if not 0 <= self.tap_layer <= self.layers:
            raise ValueError(f"accept_hidden_layer must be 0 to {self.layers}, got {self.tap_layer}")

    @property
    def tap_layer(self) -> int:
        """``accept_hidden_layer``. The default is not just after the last deepstack layer, where tests would
        not see a capture that is one addition off."""
        if self.accept_hidden_layer is not None:
            return self.accept_hidden_layer
        middle = max(1, self.layers // 2)
        return middle if middle != len(self.deepstack) else min(middle + 1, self.layers)

    def config(self, tokenizer: WordTokenizer) -> dict[str, Any]:
        """``config.json``: the published one with these sizes, and the ids of ``tokenizer``."""
        ids = {
            "audio_end_token_id": tokenizer.id("<|audio_end|>"),
            "audio_start_token_id": tokenizer.id("<|audio_start|>"),
            "audio_token_id": tokenizer.id("<|audio_pad|>"),
            "image_token_id": tokenizer.id("<|image_pad|>"),
            "video_token_id": tokenizer.id("<|video_pad|>"),
            "vision_start_token_id": tokenizer.id("<|vision_start|>"),
        }
        changes: dict[str, Any] = {
            "dtype": self.dtype,
            "enable_audio_output": self.talker,
            "im_start_token_id": tokenizer.id("<|im_start|>"),
            "im_end_token_id": tokenizer.id("<|im_end|>"),
            "system_token_id": tokenizer.id("system"),
            "user_token_id": tokenizer.id("user"),
            "assistant_token_id": tokenizer.id("assistant"),
            "tts_pad_token_id": tokenizer.id("<tts_pad>"),
            "tts_bos_token_id": tokenizer.id("<tts_text_bos>"),
            "tts_eos_token_id": tokenizer.id("<tts_text_eod>"),
            "thinker_config": {
                **ids,
                "dtype": self.dtype,
                "user_token_id": tokenizer.id("user"),
                "vision_end_token_id": tokenizer.id("<|vision_end|>"),
                "audio_config": self._audio_config(),
                "vision_config": self._vision_config(),
                "text_config": {
                    "vocab_size": self.vocab_size,
                    "hidden_size": self.hidden,
                    "intermediate_size": 3 * self.hidden // 2,
                    "moe_intermediate_size": 3 * self.hidden // 4,
                    "num_hidden_layers": self.layers,
                    **self._decoder_config(),
                },
            },
            "talker_config": self._talker_config(ids),
            "code2wav_config": self._code2wav_config(),
        }
        config = shrunk(published_model("qwen3_omni").config(), changes)
        if not self.talker:
            # As in the models that only write.
            del config["talker_config"], config["code2wav_config"]
        return config

    def _decoder_config(self) -> dict[str, Any]:
        half = self.head_dim // 2
        # The published split of 64 frequencies is 24 for time, 20 each for height and width.
        side = half * 20 // 64
        return {
            "head_dim": self.head_dim,
            "max_position_embeddings": self.context,
            "num_attention_heads": self.heads,
            "num_experts": self.experts,
            "num_experts_per_tok": self.top_k,
            "num_key_value_heads": self.kv_heads,
            "rope_scaling": {"mrope_section": [half - 2 * side, side, side]},
        }

    def _audio_config(self) -> dict[str, Any]:
        return {
            "d_model": 32,
            "downsample_hidden_size": 16,
            "encoder_attention_heads": 4,
            "encoder_ffn_dim": 64,
            "encoder_layers": self.audio_layers,
            "num_hidden_layers": self.audio_layers,
            "output_dim": self.hidden,
        }

    def _vision_config(self) -> dict[str, Any]:
        return {
            "deepstack_visual_indexes": list(self.deepstack),
            "depth": self.vision_depth,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_heads": 4,
            "out_hidden_size": self.hidden,
        }

    def _talker_config(self, ids: dict[str, int]) -> dict[str, Any]:
        hidden = self.talker_hidden
        return {
            **ids,
            # Not the thinker's value, on purpose: a test notices if one is used for the other.
            "position_id_per_seconds": 26,
            "accept_hidden_layer": self.tap_layer,
            **{name: self.codes + offset for name, offset in _CODEC_IDS.items()},
            "num_code_groups": self.code_groups,
            "speaker_id": {name: self.codes + _FIRST_SPEAKER + i for i, name in enumerate(SPEAKERS)},
            "thinker_hidden_size": self.hidden,
            "code_predictor_config": {
                "head_dim": 16,
                "hidden_size": hidden,
                "intermediate_size": 4 * hidden // 3,
                "layer_types": ["full_attention"] * 2,
                "max_position_embeddings": self.context,
                "num_attention_heads": 4,
                "num_code_groups": self.code_groups,
                "num_hidden_layers": 2,
                "num_key_value_heads": 2,
                "vocab_size": self.codes,
            },
            "text_config": {
                "vocab_size": self.codes + NUM_CODEC_SPECIALS,
                "hidden_size": hidden,
                "intermediate_size": 2 * hidden,
                "moe_intermediate_size": 2 * hidden // 3,
                "shared_expert_intermediate_size": 5 * hidden // 6,
                "num_hidden_layers": self.talker_layers,
                **self._decoder_config(),
            },
        }

    def _code2wav_config(self) -> dict[str, Any]:
        return {
            "codebook_size": self.codes,
            "decoder_dim": self.codec_dim,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_attention_heads": 4,
            "num_hidden_layers": 2,
            "num_key_value_heads": 4,
            "num_quantizers": self.code_groups,
        }
