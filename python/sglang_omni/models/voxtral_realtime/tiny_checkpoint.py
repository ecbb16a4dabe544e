"""Makes a tiny Voxtral Realtime checkpoint of random weights: for tests and measurements."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sglang_omni.models.tiny.shapes import option
from sglang_omni.models.tiny.tokenizer import WordTokenizer, write_json
from sglang_omni.preprocessing.byte_letters import byte_letters
from sglang_omni.published import published_model, shrunk
from sglang_omni.random_weights import mark_random

if TYPE_CHECKING:
    import torch

# Control tokens that a model reads or writes: the start, the end, and moments without and before a word. The
# rows of others are zero.
_USED = (1, 2, 32, 33)
# What is heard weighs most: else a token would be followed by itself, or be the same in every recording.
_TOKEN_STD, _HEARD_GAIN, _GAIN = 0.05, 3.0, 2.0


@dataclass(frozen=True)
class TinyVoxtralRealtimeShape:
    """The sizes of a checkpoint by the names of ``config.json``, those of its encoder behind ``audio_``."""

    num_mel_bins: int = option(128, "numbers of a mel frame")
    audio_hidden_size: int = option(32, "the encoder's hidden size")
    audio_intermediate_size: int = option(64, "inner size of its MLPs")
    audio_num_hidden_layers: int = option(2, "its layers")
    audio_num_attention_heads: int = option(4, "its attention heads")
    audio_head_dim: int = option(16, "size of each of these")
    audio_sliding_window: int = option(40, "its window, in steps of 20 ms")
    hidden_size: int = option(64, "the decoder's hidden size")
    intermediate_size: int = option(96, "inner size of its MLPs")
    num_hidden_layers: int = option(2, "its layers")
    num_attention_heads: int = option(4, "its attention heads")
    num_key_value_heads: int = option(2, "its key and value heads")
    head_dim: int = option(16, "size of each of these")
    sliding_window: int = option(48, "its window, in tokens of 80 ms")
    max_position_embeddings: int = option(4096, "longest recording, in tokens of 80 ms")
    text_tokens: int = option(400, "tokens of words, behind the control tokens")


SHAPE = TinyVoxtralRealtimeShape


def make(path: str | Path, seed: int = 0, **shape: Any) -> Path:
    """Writes a checkpoint.

    Args:
        path: Its directory, which is made.
        seed: The same seed makes the same weights.
        shape: Fields of ``TinyVoxtralRealtimeShape``.

    Returns:
        The directory.
    """
    tiny = TinyVoxtralRealtimeShape(**shape)
    bytes_of = {letter: byte for byte, letter in enumerate(byte_letters())}
    words = WordTokenizer(tiny.text_tokens, {}, None).vocab
    texts = [bytes(bytes_of[letter] for letter in word) for word in words]
    # Single bytes come first, in their order.
    return make_with(Path(path), seed, tiny, sorted(texts[:256]) + texts[256:])


def make_with(directory: Path, seed: int, tiny: TinyVoxtralRealtimeShape, words: Sequence[bytes]) -> Path:
    """``make`` with a vocabulary of the caller's, of ``tiny.text_tokens`` words."""
    directory.mkdir(parents=True, exist_ok=True)
    vocab_size = _write_configs(directory, tiny, words)
    _write_weights(directory, tiny, vocab_size, seed)
    mark_random(directory)
    return directory


def _write_configs(directory: Path, tiny: TinyVoxtralRealtimeShape, words: Sequence[bytes]) -> int:
    """Writes all files but the weights. Returns the size of the vocabulary."""
    published = published_model("voxtral_realtime")
    tekken = published.config("tekken.json")
    control = tekken["special_tokens"]
    vocab_size = len(control) + len(words)
    sizes = {"num_vocab_tokens": len(words), "default_vocab_size": vocab_size}
    vocabulary = [
        {"rank": rank, "token_bytes": base64.b64encode(word).decode(), "token_str": _text(word)}
        for rank, word in enumerate(words)
    ]
    audio = {"audio_encoding_config": {"num_mel_bins": tiny.num_mel_bins}}
    changes = {"config": {**sizes, "default_num_special_tokens": len(control)}, "audio": audio}
    write_json(directory / "tekken.json", {**shrunk(tekken, changes), "vocab": vocabulary})
    fields = {name: getattr(tiny, name) for name in tiny.__dataclass_fields__}
    del fields["text_tokens"]
    of_audio = {name.removeprefix("audio_"): fields.pop(name) for name in list(fields) if "audio_" in name}
    of_audio |= {"num_mel_bins": fields.pop("num_mel_bins"), "vocab_size": vocab_size}
    of_audio["num_key_value_heads"] = tiny.audio_num_attention_heads
    changes = {
        "audio_config": of_audio,
        "text_config": {**fields, "vocab_size": vocab_size},
        "hidden_size": tiny.hidden_size,
        "dtype": "float32",
    }
    write_json(directory / "config.json", shrunk(published.config(), changes))
    write_json(directory / "generation_config.json", published.config("generation_config.json"))
    processor = published.config("processor_config.json")
    features = {"feature_extractor": {"feature_size": tiny.num_mel_bins}}
    write_json(directory / "processor_config.json", shrunk(processor, features))
    return vocab_size


def _text(word: bytes) -> str | None:
    try:
        return word.decode()
    except UnicodeDecodeError:
        return None


def _write_weights(directory: Path, tiny: TinyVoxtralRealtimeShape, vocab_size: int, seed: int) -> None:
    import torch
    from safetensors.torch import save_file

    generator = torch.Generator().manual_seed(seed)
    tensors = {
        name: _weight(name, shape, generator)
        for part in (_encoder_shapes(tiny), _decoder_shapes(tiny, vocab_size))
        for name, shape in part
    }
    table = tensors["language_model.model.embed_tokens.weight"]
    unused = [token for token in range(vocab_size - tiny.text_tokens) if token not in _USED]
    table[unused] = 0
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})


def _encoder_shapes(tiny: TinyVoxtralRealtimeShape) -> Iterator[tuple[str, tuple[int, ...]]]:
    size, inner = tiny.audio_hidden_size, tiny.audio_intermediate_size
    width = tiny.audio_num_attention_heads * tiny.audio_head_dim
    for number, channels in ((1, tiny.num_mel_bins), (2, size)):
        yield f"audio_tower.embedder.conv{number}.weight", (size, channels, 3)
        yield f"audio_tower.embedder.conv{number}.bias", (size,)
    for layer in range(tiny.audio_num_hidden_layers):
        for name, shape in (
            ("self_attn_layer_norm.weight", (size,)),
            ("final_layer_norm.weight", (size,)),
            *((f"self_attn.{name}_proj.weight", (width, size)) for name in "qkv"),
            *((f"self_attn.{name}_proj.bias", (width,)) for name in "qv"),
            ("self_attn.o_proj.weight", (size, width)),
            ("self_attn.o_proj.bias", (size,)),
            *((f"mlp.{name}_proj.weight", (inner, size)) for name in ("gate", "up")),
            ("mlp.down_proj.weight", (size, inner)),
            ("mlp.down_proj.bias", (size,)),
        ):
            yield f"audio_tower.layers.{layer}.{name}", shape
    yield "audio_tower.norm.weight", (size,)
    yield "multi_modal_projector.linear_1.weight", (tiny.hidden_size, 4 * size)
    yield "multi_modal_projector.linear_2.weight", (tiny.hidden_size, tiny.hidden_size)


def _decoder_shapes(tiny: TinyVoxtralRealtimeShape, vocab_size: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    size, inner, head = tiny.hidden_size, tiny.intermediate_size, tiny.head_dim
    queries, keys = tiny.num_attention_heads * head, tiny.num_key_value_heads * head
    yield "language_model.model.embed_tokens.weight", (vocab_size, size)
    yield "language_model.model.norm.weight", (size,)
    for layer in range(tiny.num_hidden_layers):
        for name, shape in (
            ("input_layernorm", (size,)),
            ("post_attention_layernorm", (size,)),
            ("ada_rms_norm.linear1", (32, size)),
            ("ada_rms_norm.linear2", (size, 32)),
            ("self_attn.q_proj", (queries, size)),
            ("self_attn.k_proj", (keys, size)),
            ("self_attn.v_proj", (keys, size)),
            ("self_attn.o_proj", (size, queries)),
            ("mlp.gate_proj", (inner, size)),
            ("mlp.up_proj", (inner, size)),
            ("mlp.down_proj", (size, inner)),
        ):
            yield f"language_model.model.layers.{layer}.{name}.weight", shape


def _weight(name: str, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    import torch

    drawn = torch.randn(shape, generator=generator)
    if "norm.weight" in name:
        return 1.0 + 0.1 * drawn
    if "embed_tokens" in name:
        return _TOKEN_STD * drawn
    if drawn.dim() == 1:
        return 0.1 * drawn
    gain = _HEARD_GAIN if "projector" in name or "conv" in name else _GAIN
    return gain * drawn / drawn[0].numel() ** 0.5
