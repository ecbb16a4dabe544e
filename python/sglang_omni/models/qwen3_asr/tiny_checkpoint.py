"""Makes a tiny Qwen3-ASR checkpoint of random weights, in either layout: for tests and measurements."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sglang_omni.models.multimodal.tiny_tokenizer import WordTokenizer, write_json
from sglang_omni.models.qwen3_asr.components.answer import TEXT_MARK
from sglang_omni.models.tiny_shapes import option
from sglang_omni.random_weights import mark_random

if TYPE_CHECKING:
    import torch

_SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|audio_start|>",
    "<|audio_end|>",
    "<|audio_pad|>",
)
# What is heard weighs most: else a token would be followed by itself, or be the same in every recording.
_TOKEN_STD, _HEARD_GAIN, _GAIN = 0.1, 3.0, 1.5
_CHAT_TEMPLATE = """\
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

    layout: Literal["transformers", "authors"] = option("transformers", "transformers, or authors")
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
    directory, tiny = Path(path), TinyQwen3ASRShape(**shape)
    directory.mkdir(parents=True, exist_ok=True)
    ids = _write_tokenizer(directory, tiny)
    _write_configs(directory, tiny, ids)
    _write_weights(directory, tiny, len(ids), seed)
    mark_random(directory)
    return directory


def _write_tokenizer(directory: Path, tiny: TinyQwen3ASRShape) -> dict[str, int]:
    """Returns the ids of all tokens."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    words = WordTokenizer(tiny.text_tokens, {}, "")
    tokenizer = Tokenizer(models.BPE(words.vocab, [tuple(pair) for pair in words.merges]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in _SPECIAL])
    # Part of what the model writes.
    tokenizer.add_tokens([AddedToken(TEXT_MARK, normalized=False, special=False)])
    tokenizer.save(str(directory / "tokenizer.json"), pretty=True)
    write_json(
        directory / "tokenizer_config.json",
        {
            "tokenizer_class": "Qwen2Tokenizer",
            "eos_token": "<|im_end|>",
            "pad_token": "<|endoftext|>",
            "audio_token": "<|audio_pad|>",
            "audio_bos_token": "<|audio_start|>",
            "audio_eos_token": "<|audio_end|>",
        },
    )
    write_json(directory / "chat_template.json", {"chat_template": _CHAT_TEMPLATE})
    vocab: dict[str, int] = tokenizer.get_vocab()
    return vocab


def _write_configs(directory: Path, tiny: TinyQwen3ASRShape, ids: dict[str, int]) -> None:
    audio = {
        "num_mel_bins": tiny.num_mel_bins,
        "d_model": tiny.audio_d_model,
        "encoder_layers": tiny.audio_encoder_layers,
        "encoder_attention_heads": tiny.audio_encoder_attention_heads,
        "encoder_ffn_dim": tiny.audio_encoder_ffn_dim,
        "downsample_hidden_size": tiny.audio_downsample_hidden_size,
        "output_dim": tiny.hidden_size,
        "n_window": 50,
        "n_window_infer": tiny.audio_window,
        "activation_function": "gelu",
    }
    text: dict[str, Any] = {
        name: getattr(tiny, name)
        for name in (
            *("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
            *("num_key_value_heads", "head_dim", "max_position_embeddings"),
        )
    }
    text |= {"vocab_size": len(ids), "rms_norm_eps": 1e-6, "hidden_act": "silu", "tie_word_embeddings": True}
    ends = [ids["<|endoftext|>"], ids["<|im_end|>"]]
    top: dict[str, Any] = {
        "architectures": ["Qwen3ASRForConditionalGeneration"],
        "model_type": "qwen3_asr",
        "dtype": "float32",
        "eos_token_id": ends,
        "pad_token_id": ends[0],
    }
    if tiny.layout == "authors":
        scaling = {"rope_type": "default", "mrope_section": [4, 2, 2], "mrope_interleaved": True}
        text |= {"rope_theta": 1e6, "rope_scaling": scaling}
        parts = {"audio_config": audio, "text_config": text, "audio_token_id": ids["<|audio_pad|>"]}
        top["thinker_config"] = parts
    else:
        text |= {"model_type": "qwen3", "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}
        audio |= {"model_type": "qwen3_asr_encoder", "max_position_embeddings": 13}
        top |= {"audio_config": audio, "text_config": text, "audio_token_id": ids["<|audio_pad|>"]}
        top["tie_word_embeddings"] = True
    write_json(directory / "config.json", top)
    write_json(directory / "generation_config.json", {"eos_token_id": ends, "pad_token_id": ends[0]})
    write_json(
        directory / "preprocessor_config.json",
        {
            "feature_extractor_type": "Qwen3ASRFeatureExtractor",
            "feature_size": tiny.num_mel_bins,
            "hop_length": 160,
            "n_fft": 400,
            "n_window": 50,
            "sampling_rate": 16_000,
        },
    )


def _write_weights(directory: Path, tiny: TinyQwen3ASRShape, vocab_size: int, seed: int) -> None:
    import torch
    from safetensors.torch import save_file

    from sglang_omni.models.multimodal.audio_tower import audio_tower
    from sglang_omni.models.qwen3_asr.components.checkpoint import Qwen3ASRCheckpoint

    checkpoint = Qwen3ASRCheckpoint.from_dir(directory)
    generator = torch.Generator().manual_seed(seed)
    tensors = {
        checkpoint.stored_name(name): _weight(name, tensor.shape, generator)
        for name, tensor in audio_tower(checkpoint.audio).state_dict().items()
    }
    for name, shape in _decoder_shapes(tiny, vocab_size):
        tensors[checkpoint.decoder + name] = _weight(name, torch.Size(shape), generator)
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
