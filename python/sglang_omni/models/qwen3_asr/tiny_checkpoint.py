"""Makes a tiny Qwen3-ASR checkpoint of random weights, in either layout: for tests and measurements."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sglang_omni.models.qwen3_asr.components.answer import TEXT_MARK
from sglang_omni.models.tiny.shapes import option
from sglang_omni.models.tiny.tokenizer import WordTokenizer, write_json
from sglang_omni.published import published_model, shrunk
from sglang_omni.random_weights import mark_random

if TYPE_CHECKING:
    import torch

# Those that a model reads or writes; the other added tokens mean nothing, and their rows are zero.
_USED = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
    *("<|audio_start|>", "<|audio_end|>", "<|audio_pad|>", TEXT_MARK),
)
_MARKS = {"start_token": "start", "end_token": "end", "token": "pad"}
# What transformers' classes have of the published fields.
_AUDIO_FIELDS = (
    *("num_mel_bins", "d_model", "encoder_layers", "encoder_attention_heads", "encoder_ffn_dim"),
    *("downsample_hidden_size", "output_dim", "n_window", "n_window_infer", "activation_function"),
)
_TEXT_FIELDS = (
    *("model_type", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "head_dim", "max_position_embeddings", "vocab_size", "rms_norm_eps"),
    *("hidden_act", "tie_word_embeddings"),
)
# Rows of the table behind the tokenizer's, as in published checkpoints.
_SPARE_ROWS = 17
# What is heard weighs most: else a token would be followed by itself, or be the same in every recording.
_TOKEN_STD, _HEARD_GAIN, _GAIN = 0.1, 3.0, 1.5
CHAT_TEMPLATE = """\
{%- set ns = namespace(system='', user='') -%}
{%- for message in messages -%}
{%- set content = message.content -%}
{%- for part in ([{'type': 'text', 'text': content}] if content is string else content) -%}
{%- if message.role == 'system' -%}{%- set ns.system = ns.system + part.text -%}
{%- elif part.type == 'audio' -%}{%- set ns.user = ns.user + '<|audio_start|><|audio_pad|><|audio_end|>' -%}
{%- endif -%}
{%- endfor -%}
{%- endfor -%}
{{- '<|im_start|>system\\n' + ns.system + '<|im_end|>\\n<|im_start|>user\\n' + ns.user + '<|im_end|>\\n' -}}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""


@dataclass(frozen=True)
class TinyQwen3ASRShape:
    """The sizes of a checkpoint by the names of ``config.json``, those of its encoder behind ``audio_``."""

    layout: Literal["authors", "transformers"] = option("authors", "authors, as published, or transformers")
    num_mel_bins: int = option(128, "numbers of a mel frame")
    audio_d_model: int = option(32, "the encoder's hidden size")
    audio_encoder_layers: int = option(2, "its layers")
    audio_encoder_attention_heads: int = option(2, "its attention heads")
    audio_encoder_ffn_dim: int = option(64, "inner size of its MLPs")
    audio_downsample_hidden_size: int = option(8, "channels of its convolutions")
    audio_window: int = option(200, "mel frames over which it attends")
    hidden_size: int = option(64, "the decoder's hidden size")
    intermediate_size: int = option(96, "inner size of its MLPs")
    num_hidden_layers: int = option(2, "its layers")
    num_attention_heads: int = option(4, "its attention heads")
    num_key_value_heads: int = option(2, "its key and value heads")
    head_dim: int = option(16, "size of each of these")
    max_position_embeddings: int = option(4096, "longest prompt and text, in tokens")
    text_tokens: int = option(400, "tokens of words, before the control tokens")


SHAPE = TinyQwen3ASRShape


def make(path: str | Path, seed: int = 0, **shape: Any) -> Path:
    """Writes a checkpoint.

    Args:
        path: Its directory, which is made.
        seed: The same seed makes the same weights, in either layout.
        shape: Fields of ``TinyQwen3ASRShape``.

    Returns:
        The directory.
    """
    tiny, settings = TinyQwen3ASRShape(**shape), published_model("qwen3_asr").config("tokenizer_config.json")
    return make_with(Path(path), seed, tiny, WordTokenizer(tiny.text_tokens, settings, CHAT_TEMPLATE))


def make_with(directory: Path, seed: int, tiny: TinyQwen3ASRShape, words: WordTokenizer) -> Path:
    """``make`` with a tokenizer of the caller's, which has ``tiny.text_tokens`` words."""
    directory.mkdir(parents=True, exist_ok=True)
    words.write(directory, versioned=True)
    _write_configs(directory, tiny, words)
    _write_weights(directory, tiny, words, seed)
    mark_random(directory)
    return directory


def _write_configs(directory: Path, tiny: TinyQwen3ASRShape, words: WordTokenizer) -> None:
    published = published_model("qwen3_asr")
    audio = {
        "num_mel_bins": tiny.num_mel_bins,
        "d_model": tiny.audio_d_model,
        "encoder_layers": tiny.audio_encoder_layers,
        "num_hidden_layers": tiny.audio_encoder_layers,
        "encoder_attention_heads": tiny.audio_encoder_attention_heads,
        "encoder_ffn_dim": tiny.audio_encoder_ffn_dim,
        "downsample_hidden_size": tiny.audio_downsample_hidden_size,
        "output_dim": tiny.hidden_size,
        "n_window_infer": tiny.audio_window,
    }
    text: dict[str, Any] = {
        name: getattr(tiny, name)
        for name in (
            *("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
            *("num_key_value_heads", "head_dim", "max_position_embeddings"),
        )
    }
    text |= {"vocab_size": len(words) + _SPARE_ROWS, "rope_scaling": {"mrope_section": [4, 2, 2]}}
    tokens = {f"audio_{name}_id": words.id(f"<|audio_{mark}|>") for name, mark in _MARKS.items()}
    parts = {**tokens, "audio_config": audio, "text_config": text, "dtype": "float32"}
    config = shrunk(published.config(), {"thinker_config": parts})
    generation = published.config("generation_config.json")
    generation["eos_token_id"] = [words.id("<|endoftext|>"), words.id("<|im_end|>")]
    generation["pad_token_id"] = words.id("<|endoftext|>")
    preprocessor = published.config("preprocessor_config.json") | {"feature_size": tiny.num_mel_bins}
    if tiny.layout == "transformers":
        config = _resaved(config, generation)
        preprocessor = {
            "feature_extractor_type": "Qwen3ASRFeatureExtractor",
            "feature_size": tiny.num_mel_bins,
            "hop_length": 160,
            "n_fft": 400,
            "n_window": 50,
            "sampling_rate": 16_000,
        }
    write_json(directory / "config.json", config)
    write_json(directory / "generation_config.json", generation)
    write_json(directory / "preprocessor_config.json", preprocessor)


def _resaved(config: dict[str, Any], generation: dict[str, Any]) -> dict[str, Any]:
    """``config.json`` as transformers' conversion of a checkpoint writes it."""
    parts = config["thinker_config"]
    audio, text = parts["audio_config"], parts["text_config"]
    rope = {"rope_type": "default", "rope_theta": text["rope_theta"]}
    return {
        "architectures": config["architectures"],
        "model_type": config["model_type"],
        "dtype": parts["dtype"],
        "eos_token_id": generation["eos_token_id"],
        "pad_token_id": generation["pad_token_id"],
        "audio_token_id": parts["audio_token_id"],
        "audio_config": {name: audio[name] for name in _AUDIO_FIELDS}
        | {"model_type": "qwen3_asr_encoder", "max_position_embeddings": 13},
        "text_config": {name: text[name] for name in _TEXT_FIELDS} | {"rope_parameters": rope},
        "tie_word_embeddings": True,
    }


def _write_weights(directory: Path, tiny: TinyQwen3ASRShape, words: WordTokenizer, seed: int) -> None:
    import torch
    from safetensors.torch import save_file

    from sglang_omni.models.omni.audio_tower import audio_tower
    from sglang_omni.models.qwen3_asr.components.checkpoint import Qwen3ASRCheckpoint

    checkpoint = Qwen3ASRCheckpoint.from_dir(directory)
    generator = torch.Generator().manual_seed(seed)
    tensors = {
        checkpoint.stored_name(name): _weight(name, tensor.shape, generator)
        for name, tensor in audio_tower(checkpoint.audio).state_dict().items()
    }
    ids = [*range(tiny.text_tokens), *(words.id(token) for token in _USED)]
    for name, shape in _decoder_shapes(tiny, len(ids)):
        tensors[checkpoint.decoder + name] = _weight(name, torch.Size(shape), generator)
    name = f"{checkpoint.decoder}embed_tokens.weight"
    table = torch.zeros(len(words) + _SPARE_ROWS, tiny.hidden_size)
    table[ids] = tensors[name]
    tensors[name] = table
    if tiny.layout == "authors":
        # Stored, although it is tied.
        tensors[checkpoint.head] = table.clone()
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})


def _decoder_shapes(tiny: TinyQwen3ASRShape, vocab_size: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    size, inner, head = tiny.hidden_size, tiny.intermediate_size, tiny.head_dim
    queries, keys = tiny.num_attention_heads * head, tiny.num_key_value_heads * head
    yield "embed_tokens.weight", (vocab_size, size)
    yield "norm.weight", (size,)
    for layer in range(tiny.num_hidden_layers):
        for name, shape in (
            ("input_layernorm", (size,)),
            ("post_attention_layernorm", (size,)),
            ("self_attn.q_proj", (queries, size)),
            ("self_attn.k_proj", (keys, size)),
            ("self_attn.v_proj", (keys, size)),
            ("self_attn.o_proj", (size, queries)),
            ("self_attn.q_norm", (head,)),
            ("self_attn.k_norm", (head,)),
            ("mlp.gate_proj", (inner, size)),
            ("mlp.up_proj", (inner, size)),
            ("mlp.down_proj", (size, inner)),
        ):
            yield f"layers.{layer}.{name}.weight", shape


def _weight(name: str, shape: torch.Size, generator: torch.Generator) -> torch.Tensor:
    import torch

    drawn = torch.randn(shape, generator=generator)
    if "norm" in name or name.startswith("ln_post"):
        return 1.0 + 0.1 * drawn if name.endswith("weight") else 0.1 * drawn
    if name.startswith("embed_tokens"):
        return _TOKEN_STD * drawn
    if drawn.dim() == 1:
        return 0.1 * drawn
    gain = _HEARD_GAIN if "o_proj" in name or name.startswith("conv") else _GAIN
    return gain * drawn / drawn[0].numel() ** 0.5
