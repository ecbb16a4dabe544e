"""Repositories of speech recognition as the hub has them: published vocabularies, small weights."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import published_vocabularies
from published_repositories import QwenTokenizer, with_decoys
from scripted_weights import make_begin_with

from sglang_omni.models.qwen3_asr import tiny_checkpoint as tiny_qwen3_asr
from sglang_omni.models.qwen3_asr.components.answer import TEXT_MARK
from sglang_omni.models.qwen3_asr.components.checkpoint import Qwen3ASRCheckpoint
from sglang_omni.models.voxtral_realtime import tiny_checkpoint as tiny_voxtral
from sglang_omni.models.voxtral_realtime.tiny_checkpoint import TinyVoxtralRealtimeShape
from sglang_omni.models.whisper import tiny_checkpoint as tiny_whisper
from sglang_omni.preprocessing.text import load_tokenizer
from sglang_omni.published import published_model

WHISPER, QWEN3_ASR = "openai/whisper-base", "Qwen/Qwen3-ASR-0.6B"
VOXTRAL = "mistralai/Voxtral-Mini-4B-Realtime-2602"


class _Words(NamedTuple):
    vocab: dict[str, int]
    merges: list[tuple[str, str]]


def whisper(folder: Path, seed: int, **shape: Any) -> Path:
    """whisper-base with its vocabulary and windows, and the heads that follow what is said.

    Its decoder is as sure of a token as a trained one, and writes another one at each place: a random one is
    sure of none, and all its windows would be written again.
    """
    model = published_model("whisper", WHISPER)
    vocabulary, config = published_vocabularies.whisper(multilingual=True), model.config()
    words = _Words(vocabulary.ids, [_pair(merge) for merge in vocabulary.merges])
    sizes = ("num_mel_bins", "decoder_layers", "decoder_attention_heads")
    windows = ("max_source_positions", "max_target_positions")
    shape = {**{name: config[name] for name in (*sizes, *windows)}, "text_tokens": len(words.vocab), **shape}
    tiny_whisper.make_with(folder, seed, tiny_whisper.TinyWhisperShape(**shape), words)
    _scale(folder / "model.safetensors", r"decoder\.(layer_norm|embed_positions)\.", 10.0)
    _scale(folder / "model.safetensors", r"decoder\.layers\..*(out_proj|fc2)\.", 0.3)
    return with_decoys(folder, WHISPER)


def _scale(file: Path, names: str, factor: float) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(file)
    for name in weights:
        if re.search(names, name):
            weights[name] *= factor
    save_file(weights, file, metadata={"format": "pt"})


def qwen3_asr(folder: Path, seed: int, **shape: Any) -> Path:
    """Qwen3-ASR-0.6B with the published vocabulary. Where a request names no language, it hears English."""
    words = QwenTokenizer("qwen3_asr", tiny_qwen3_asr.CHAT_TEMPLATE)
    shape = {"text_tokens": len(words.vocab), **shape}
    tiny_qwen3_asr.make_with(folder, seed, tiny_qwen3_asr.TinyQwen3ASRShape(**shape), words)
    # A prompt ends with a line break.
    script = load_tokenizer(folder).encode(f"\nlanguage English{TEXT_MARK}", add_special_tokens=False).ids
    decoder = Qwen3ASRCheckpoint.from_dir(folder).decoder
    make_begin_with(folder, script, decoder=f"{decoder}layers.", embeddings=f"{decoder}embed_tokens.weight")
    return with_decoys(folder, QWEN3_ASR)


def voxtral(folder: Path, seed: int, **shape: Any) -> Path:
    """Voxtral Realtime with the published windows and words."""
    model = published_model("voxtral_realtime", VOXTRAL)
    config, words = model.config(), published_vocabularies.tekken()[: model.vocabulary]
    windows = {
        "audio_sliding_window": config["audio_config"]["sliding_window"],
        "sliding_window": config["text_config"]["sliding_window"],
    }
    tiny = TinyVoxtralRealtimeShape(**{**windows, "text_tokens": len(words), **shape})
    return with_decoys(tiny_voxtral.make_with(folder, seed, tiny, words), VOXTRAL)


def _pair(merge: str) -> tuple[str, str]:
    left, right = merge.split(" ")
    return left, right
