"""Makes a tiny Whisper checkpoint of random weights, in the published layout: for tests and measurements."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sglang_omni.models.multimodal.tiny_tokenizer import WordTokenizer, write_json
from sglang_omni.models.tiny_shapes import option
from sglang_omni.models.whisper.components.checkpoint import FRAMES_PER_POSITION, WhisperCheckpoint
from sglang_omni.random_weights import mark_random

if TYPE_CHECKING:
    import torch

_FRAMES_PER_SECOND = 100
_LANGUAGES = ("en", "zh", "de", "es", "fr", "ja")
# What is heard weighs most: else a token would be followed by itself, or be the same in every recording.
_TOKEN_STD, _PLACE_STD = 0.1, 0.1
_GAINS = {"encoder_attn.out_proj": 4.0, "q_proj": 3.0, "k_proj": 3.0}


@dataclass(frozen=True)
class TinyWhisperShape:
    """The sizes of a checkpoint, under the names of ``config.json``."""

    num_mel_bins: int = option(80, "numbers of a mel frame")
    d_model: int = option(64, "hidden size of encoder and decoder")
    encoder_layers: int = option(2, "the encoder's layers")
    encoder_attention_heads: int = option(2, "its attention heads")
    encoder_ffn_dim: int = option(128, "inner size of its MLPs")
    decoder_layers: int = option(2, "the decoder's layers")
    decoder_attention_heads: int = option(2, "its attention heads")
    decoder_ffn_dim: int = option(128, "inner size of its MLPs")
    max_source_positions: int = option(150, "positions of a window, 50 a second")
    max_target_positions: int = option(64, "longest prompt and text of a window, in tokens")
    text_tokens: int = option(400, "tokens of words, before the control tokens")
    multilingual: bool = option(True, "a model that knows several languages, and translates")


SHAPE = TinyWhisperShape


def make(path: str | Path, seed: int = 0, **shape: Any) -> Path:
    """Writes a checkpoint.

    Args:
        path: Its directory, which is made.
        seed: The same seed makes the same weights.
        shape: Fields of ``TinyWhisperShape``.

    Returns:
        The directory.
    """
    directory, tiny = Path(path), TinyWhisperShape(**shape)
    directory.mkdir(parents=True, exist_ok=True)
    special = _special_tokens(tiny)
    vocab_size = _write_tokenizer(directory, tiny, special)
    ids = {token: tiny.text_tokens + index for index, token in enumerate(special)}
    _write_configs(directory, tiny, ids, vocab_size)
    _write_weights(directory, seed)
    mark_random(directory)
    return directory


def _special_tokens(tiny: TinyWhisperShape) -> list[str]:
    """The published order: the end, the start, languages, tasks, and marks; then times, 20 ms apart."""
    languages = _LANGUAGES if tiny.multilingual else _LANGUAGES[:1]
    named = ["endoftext", "startoftranscript", *languages, "translate", "transcribe"]
    named += ["startoflm", "startofprev", "nospeech", "notimestamps"]
    times = [f"{step * 0.02:.2f}" for step in range(tiny.max_source_positions + 1)]
    return [f"<|{name}|>" for name in [*named, *times]]


def _write_tokenizer(directory: Path, tiny: TinyWhisperShape, special: list[str]) -> int:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    words = WordTokenizer(tiny.text_tokens, {}, "")
    tokenizer = Tokenizer(models.BPE(words.vocab, [tuple(pair) for pair in words.merges]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    tokenizer.save(str(directory / "tokenizer.json"), pretty=True)
    (directory / "merges.txt").write_text(
        "#version: 0.2\n" + "".join(f"{left} {right}\n" for left, right in words.merges), encoding="utf-8"
    )
    write_json(directory / "vocab.json", words.vocab)
    end = special[0]
    write_json(
        directory / "tokenizer_config.json",
        {"tokenizer_class": "WhisperTokenizer", "bos_token": end, "eos_token": end, "unk_token": end},
    )
    return int(tokenizer.get_vocab_size())


def _write_configs(directory: Path, tiny: TinyWhisperShape, ids: dict[str, int], vocab_size: int) -> None:
    fields = asdict(tiny)
    del fields["text_tokens"], fields["multilingual"]
    end, start = ids["<|endoftext|>"], ids["<|startoftranscript|>"]
    marks = {"bos_token_id": end, "eos_token_id": end, "pad_token_id": end, "decoder_start_token_id": start}
    write_json(
        directory / "config.json",
        {
            "architectures": ["WhisperForConditionalGeneration"],
            "model_type": "whisper",
            "vocab_size": vocab_size,
            "activation_function": "gelu",
            "is_encoder_decoder": True,
            "scale_embedding": False,
            "tie_word_embeddings": True,
            "dtype": "float32",
            **fields,
            **marks,
        },
    )
    first_space = json.loads((directory / "vocab.json").read_text(encoding="utf-8"))["\u0120"]
    generation: dict[str, Any] = {
        **marks,
        "max_length": tiny.max_target_positions,
        "suppress_tokens": [start, *range(ids["<|translate|>"], ids["<|notimestamps|>"])],
        "begin_suppress_tokens": [first_space, end],
        "is_multilingual": tiny.multilingual,
        "max_initial_timestamp_index": 50,
        "alignment_heads": [
            [layer, head]
            for layer in range(tiny.decoder_layers // 2, tiny.decoder_layers)
            for head in range(tiny.decoder_attention_heads)
        ],
        "no_timestamps_token_id": ids["<|notimestamps|>"],
        "prev_sot_token_id": ids["<|startofprev|>"],
        "return_timestamps": False,
    }
    if tiny.multilingual:
        generation["lang_to_id"] = {f"<|{code}|>": ids[f"<|{code}|>"] for code in _LANGUAGES}
        generation["task_to_id"] = {task: ids[f"<|{task}|>"] for task in ("translate", "transcribe")}
        generation["suppress_tokens"] += list(generation["lang_to_id"].values())
    write_json(directory / "generation_config.json", generation)
    frames = tiny.max_source_positions * FRAMES_PER_POSITION
    write_json(
        directory / "preprocessor_config.json",
        {
            "feature_extractor_type": "WhisperFeatureExtractor",
            "processor_class": "WhisperProcessor",
            "feature_size": tiny.num_mel_bins,
            "chunk_length": frames // _FRAMES_PER_SECOND,
            "hop_length": 160,
            "n_fft": 400,
            "sampling_rate": 16_000,
        },
    )


def _write_weights(directory: Path, seed: int) -> None:
    import torch
    from safetensors.torch import save_file

    from sglang_omni.models.whisper.components.networks import WhisperDecoder, WhisperEncoder

    shape = WhisperCheckpoint.from_dir(directory).shape
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, torch.Tensor] = {}
    parts: dict[str, torch.nn.Module] = {"encoder": WhisperEncoder(shape), "decoder": WhisperDecoder(shape)}
    for part, module in parts.items():
        for name, parameter in module.named_parameters():
            tensors[f"model.{part}.{name}"] = _weight(name, parameter.shape, generator)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})


def _weight(name: str, shape: torch.Size, generator: torch.Generator) -> torch.Tensor:
    import torch

    drawn = torch.randn(shape, generator=generator)
    if "norm" in name:
        return 1.0 + 0.1 * drawn if name.endswith("weight") else 0.1 * drawn
    if "embed" in name:
        return (_TOKEN_STD if "tokens" in name else _PLACE_STD) * drawn
    if drawn.dim() == 1:
        return 0.1 * drawn
    fan_in = drawn[0].numel()
    gain = next((gain for part, gain in _GAINS.items() if part in name), 1.5)
    return gain * drawn / fan_in**0.5
