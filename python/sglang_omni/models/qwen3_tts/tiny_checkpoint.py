"""A random Qwen3-TTS checkpoint of 1 MB, with all files of a published one: for tests and trials."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sglang_omni.models.tiny.shapes import option
from sglang_omni.models.tiny.tokenizer import WordTokenizer, write_json
from sglang_omni.published import PublishedModel, published_codec, published_model, shrunk
from sglang_omni.random_weights import mark_random

if TYPE_CHECKING:
    from sglang_omni.models.tiny.tensors import TensorSpec

# What gives a model its voices, as in config.json and as in the ids of published models.
KINDS = {"base": "Base", "custom_voice": "CustomVoice", "voice_design": "VoiceDesign"}
CODEC_FOLDER = "speech_tokenizer"
# Of the tokenizer, without the added tokens.
_WORDS = 512
_HEAD_DIM = 16
# Published configs leave these to the defaults of the authors' class, which make 6 million weights.
_SPEAKER_ENCODER = {
    "enc_channels": [16, 16, 16, 16, 48],
    "enc_attention_channels": 12,
    "enc_se_channels": 12,
}


@dataclass(frozen=True)
class TinyQwen3TTSShape:
    """The sizes of a checkpoint.

    Raises:
        ValueError: There is no such kind.
    """

    kind: str = option("base", f"what gives it a voice: {', '.join(KINDS)}")
    hidden_size: int = option(32, "hidden size of the talker, and size of a voice")
    layers: int = option(2, "its layers")
    heads: int = option(4, "its attention heads")
    kv_heads: int = option(2, "its key and value heads")
    context: int = option(2048, "longest prompt and speech together, in tokens and frames")
    codes: int = option(64, "codes of each codebook, a power of 2")
    groups: int = option(4, "codes of a frame")
    predictor_hidden: int = option(
        24, "hidden size of the decoder of a frame; the talker's in models of 0.6B"
    )
    predictor_layers: int = option(2, "its layers")

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind {self.kind!r} is none of {', '.join(KINDS)}")

    @property
    def published(self) -> PublishedModel:
        """The model whose files it has: only those of 1.7B have two hidden sizes, or a described voice."""
        small = self.predictor_hidden == self.hidden_size and self.kind != "voice_design"
        size = "0.6B" if small else "1.7B"
        return published_model("qwen3_tts", f"Qwen/Qwen3-TTS-12Hz-{size}-{KINDS[self.kind]}")

    def config(self, tokenizer: WordTokenizer) -> dict[str, Any]:
        """``config.json``: the published one with these sizes, and the ids of ``tokenizer``."""
        fields = self.published.config()
        config = shrunk(
            fields,
            {
                "assistant_token_id": tokenizer.id("assistant"),
                "im_end_token_id": tokenizer.id("<|im_end|>"),
                "im_start_token_id": tokenizer.id("<|im_start|>"),
                "tts_bos_token_id": tokenizer.id("<tts_text_bos>"),
                "tts_eos_token_id": tokenizer.id("<tts_text_eod>"),
                "tts_pad_token_id": tokenizer.id("<tts_pad>"),
                "talker_config": self._talker_config(fields["talker_config"], len(tokenizer)),
            },
        )
        if "speaker_encoder_config" in config:
            config["speaker_encoder_config"] |= {"enc_dim": self.hidden_size, **_SPEAKER_ENCODER}
        return config

    def codec_config(self) -> dict[str, Any]:
        """``config.json`` of the codec: 96 samples a frame, and of the encoder's codes half are used."""
        heads = {"num_attention_heads": 3, "num_key_value_heads": 3, "head_dim": 8}
        return shrunk(
            published_codec("qwen3_tts").config(),
            {
                "encoder_valid_num_quantizers": self.groups,
                "decode_upsample_rate": 96,
                "encode_downsample_rate": 96,
                "decoder_config": {
                    **heads,
                    "latent_dim": 20,
                    "codebook_dim": 16,
                    "codebook_size": self.codes,
                    "decoder_dim": 48,
                    "hidden_size": 16,
                    "intermediate_size": 28,
                    "num_hidden_layers": 2,
                    "num_quantizers": self.groups,
                    "semantic_codebook_size": 2 * self.codes,
                    "sliding_window": 12,
                    "upsample_rates": [3, 2, 2, 2],
                    "vector_quantization_hidden_dimension": 16,
                },
                "encoder_config": {
                    **heads,
                    "_frame_rate": 250.0,
                    "codebook_dim": 8,
                    "codebook_size": self.codes,
                    "hidden_size": 24,
                    "intermediate_size": 28,
                    "num_filters": 2,
                    "num_hidden_layers": 2,
                    "num_quantizers": 2 * self.groups,
                    "sliding_window": 12,
                    "upsample_groups": 24,
                    "upsampling_ratios": [4, 3, 2, 2],
                    "vector_quantization_hidden_dimension": 8,
                },
            },
        )

    def _talker_config(self, published: Mapping[str, Any], tokens: int) -> dict[str, Any]:
        predictor, half = published["code_predictor_config"], _HEAD_DIM // 2
        # Ids of voices, languages and others come after the codes.
        fewer = predictor["vocab_size"] - self.codes
        moved: dict[str, Any] = {
            name: value - fewer
            for name, value in published.items()
            if name.startswith("codec_") and isinstance(value, int)
        }
        for names in ("codec_language_id", "spk_id"):
            moved[names] = {name: value - fewer for name, value in published[names].items()}
        # The published split of 64 frequencies is 24 for time, 20 each for height and width.
        side = half * 20 // 64
        common = {
            "num_attention_heads": self.heads,
            "num_code_groups": self.groups,
            "num_key_value_heads": self.kv_heads,
            "max_position_embeddings": self.context,
        }
        return {
            **moved,
            **common,
            "head_dim": _HEAD_DIM,
            "hidden_size": self.hidden_size,
            "intermediate_size": 3 * self.hidden_size // 2,
            "num_hidden_layers": self.layers,
            "rope_scaling": {"mrope_section": [half - 2 * side, side, side]},
            "text_hidden_size": 40,
            # As in published models, the table has rows behind the last token's.
            "text_vocab_size": tokens + 7,
            "vocab_size": published["vocab_size"] - fewer,
            "code_predictor_config": {
                **common,
                "head_dim": 8,
                "hidden_size": self.predictor_hidden,
                "intermediate_size": 2 * self.predictor_hidden,
                "layer_types": ["full_attention"] * self.predictor_layers,
                "num_hidden_layers": self.predictor_layers,
                "vocab_size": self.codes,
            },
        }


SHAPE = TinyQwen3TTSShape


def make(path: str | Path, seed: int = 0, *, tokenizer: WordTokenizer | None = None, **shape: Any) -> Path:
    """Writes a random checkpoint with all the files of a published one, its weights in float32.

    Now and then the speech ends by itself. Equal arguments give equal bytes.

    Args:
        path: The directory, made if it is missing; files of the same names are replaced.
        seed: Of the weights.
        tokenizer: With the published added tokens; by default of a few hundred words.
        shape: Fields of ``TinyQwen3TTSShape``.

    Returns:
        The directory.

    Raises:
        TypeError: There is no such field.
        ValueError: There is no such kind.
    """
    from sglang_omni.models.qwen3_tts.tiny_weights import codec_specs, model_specs

    directory, tiny, codec = Path(path), TinyQwen3TTSShape(**shape), published_codec("qwen3_tts")
    if tokenizer is None:
        tokenizer = WordTokenizer(_WORDS, tiny.published.config("tokenizer_config.json"), None)
    folder = directory / CODEC_FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    config, codec_config = tiny.config(tokenizer), tiny.codec_config()
    write_json(directory / "config.json", config)
    for name in ("generation_config.json", "preprocessor_config.json"):
        write_json(directory / name, tiny.published.config(name))
    tokenizer.write(directory)
    _write_weights(directory, model_specs(config), seed)
    write_json(folder / "config.json", codec_config)
    for name in ("configuration.json", "preprocessor_config.json"):
        write_json(folder / name, codec.config(name))
    _write_weights(folder, codec_specs(codec_config), seed)
    mark_random(directory)
    return directory


def _write_weights(directory: Path, specs: Iterable[TensorSpec], seed: int) -> None:
    from safetensors.numpy import save_file

    from sglang_omni.models.tiny.tensors import make_tensor

    tensors = {spec.name: make_tensor(spec, seed) for spec in specs}
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
