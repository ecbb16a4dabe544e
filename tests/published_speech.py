"""Repositories of models that speak as the hub has them, beside those of ``published_repositories``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import published_vocabularies
from published_repositories import QwenTokenizer, with_decoys

from sglang_omni.models.csm import tiny_checkpoint as tiny_csm
from sglang_omni.models.fish_s2_pro import tiny_checkpoint as tiny_fish
from sglang_omni.models.higgs_audio_v2 import tiny_checkpoint as tiny_higgs
from sglang_omni.models.qwen2_5_omni.tiny_checkpoint.make import make as make_qwen2_5_omni
from sglang_omni.models.qwen3_omni.tiny_checkpoint.tokenizer import CHAT_TEMPLATE
from sglang_omni.models.qwen3_tts import tiny_checkpoint as tiny_qwen3_tts
from sglang_omni.models.tiny.tokenizer import write_json
from sglang_omni.published import TOKEN, published_codec, published_model

QWEN2_5_OMNI = "Qwen/Qwen2.5-Omni-7B"
CSM = "sesame/csm-1b"
HIGGS = "bosonai/higgs-audio-v2-generation-3B-base"
FISH = "fishaudio/s2-pro"
# By kind, as of the maker's shape.
QWEN3_TTS = {
    "base": "Qwen/Qwen3-TTS-12Hz-1.7B-Base",
    "custom_voice": "Qwen/Qwen3-TTS-12Hz-1.7B-CustomVoice",
    "voice_design": "Qwen/Qwen3-TTS-12Hz-1.7B-VoiceDesign",
}
# The context of ``qwen2_5_omni``: longer than transformers' default of an answer's length, 1,024 tokens.
CONTEXT = 1280
# Of Qwen3-Omni's template, what Qwen2.5-Omni spells otherwise.
_SPELLED = {
    "<|vision_start|>": "<|vision_bos|>",
    "<|vision_end|>": "<|vision_eos|>",
    "<|image_pad|>": "<|IMAGE|>",
    "<|audio_start|>": "<|audio_bos|>",
    "<|audio_end|>": "<|audio_eos|>",
    "<|audio_pad|>": "<|AUDIO|>",
    "<|video_pad|>": "<|VIDEO|>",
}
_FLAGS = {name: value for name, value in TOKEN.items() if name != "special"}
# Parts of Qwen2.5-Omni; its codec is published in float32.
_IN_BFLOAT16 = ("thinker_config", "talker_config")
# How Qwen's tokenizer cuts a text before it merges bytes.
_QWEN_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)


def qwen2_5_omni(folder: Path, seed: int) -> Path:
    """Qwen2.5-Omni with the published vocabulary, and a template that thinks and calls."""
    template = CHAT_TEMPLATE
    for theirs, ours in _SPELLED.items():
        template = template.replace(theirs, ours)
    config = published_model("qwen2_5_omni", QWEN2_5_OMNI).config()
    rows = config["thinker_config"]["text_config"]["vocab_size"]
    tokenizer = QwenTokenizer("qwen2_5_omni", template)
    make_qwen2_5_omni(folder, seed, tokenizer=tokenizer, vocab_size=rows, context=CONTEXT, shard_kb=16_000)
    made = json.loads((folder / "config.json").read_bytes())
    for part, published in ((made, config), *((made[name], config[name]) for name in _IN_BFLOAT16)):
        part["torch_dtype"] = published["torch_dtype"]
    made["talker_config"] |= {
        name: token for name, token in config["talker_config"].items() if name.startswith("tts_text_")
    }
    write_json(folder / "config.json", made)
    for shard in folder.glob("model-*-of-*.safetensors"):
        _in_bfloat16(shard, but="token2wav.")
    return with_decoys(folder, QWEN2_5_OMNI)


def csm(folder: Path, seed: int) -> Path:
    """CSM-1B, with Sesame's own layout of its weights beside transformers'."""
    return with_decoys(tiny_csm.make(folder, seed), CSM)


def higgs(folder: Path, seed: int) -> tuple[Path, dict[str, Path]]:
    """Higgs Audio v2, and the repository of its codec, by its id."""
    tiny_higgs.make(folder, seed)
    settings = json.loads((folder / "processor_config.json").read_bytes())
    codec_id = published_codec("higgs_audio_v2").id
    settings["audio_tokenizer"]["audio_tokenizer_name_or_path"] = codec_id
    write_json(folder / "processor_config.json", settings)
    codec = (folder / "audio_tokenizer").rename(folder.with_name(f"{folder.name}-codec"))
    _in_bfloat16(folder / "model.safetensors")
    return with_decoys(folder, HIGGS), {codec_id: with_decoys(codec, codec_id)}


def qwen3_tts(folder: Path, seed: int, kind: str) -> Path:
    """Qwen3-TTS with the published vocabulary. Its codec is published in float32."""
    tiny_qwen3_tts.make(folder, seed, kind=kind, tokenizer=QwenTokenizer("qwen3_tts", None))
    _in_bfloat16(folder / "model.safetensors")
    return with_decoys(folder, QWEN3_TTS[kind])


def fish(folder: Path, seed: int, **shape: Any) -> Path:
    """Fish Audio S2-Pro with the published ids, and the vocabulary before them."""
    start = published_model("fish_s2_pro").config()["semantic_start_token_id"]
    tiny_fish.make(folder, seed, text_tokens=start, **shape)
    for shard in folder.glob("model-*-of-*.safetensors"):
        _in_bfloat16(shard)
    _write_qwen_tokenizer(folder)
    return with_decoys(folder, FISH)


def _write_qwen_tokenizer(folder: Path) -> None:
    """``tokenizer.json`` with Qwen's vocabulary, and the added tokens that ``folder`` has."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

    settings = json.loads((folder / "tokenizer_config.json").read_bytes())
    added = {token["content"]: int(token_id) for token_id, token in settings["added_tokens_decoder"].items()}
    vocabulary = published_vocabularies.qwen()
    merges = [tuple(merge.split(" ")) for merge in vocabulary.merges]
    # Added tokens have no other way to ids with gaps between them.
    tokenizer = Tokenizer(models.BPE({**vocabulary.ids, **added}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_QWEN_WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(content, **_FLAGS) for content in added])
    tokenizer.save(str(folder / "tokenizer.json"))


def _in_bfloat16(file: Path, but: str = " ") -> None:
    """Rewrites a file with weights, all but those whose names begin with ``but``, as they are published."""
    import torch
    from safetensors.torch import load_file, save_file

    weights = {
        name: tensor if name.startswith(but) else tensor.to(torch.bfloat16)
        for name, tensor in load_file(file).items()
    }
    save_file(weights, file, metadata={"format": "pt"})
