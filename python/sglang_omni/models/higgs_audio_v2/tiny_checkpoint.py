"""A random Higgs Audio v2 checkpoint of 0.6 MB, with all files of a published one: for tests and trials."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sglang_omni.models.tiny.shapes import option
from sglang_omni.models.tiny.tokenizer import byte_tokenizer, put_around, renumbered, write_json
from sglang_omni.published import published_model, shrunk
from sglang_omni.random_weights import mark_random

if TYPE_CHECKING:
    import torch

_START, _END = "<|begin_of_text|>", "<|eot_id|>"
_SPECIAL = (
    *(_START, _END, "<|start_header_id|>", "<|end_header_id|>", "<|scene_desc_start|>", "<|scene_desc_end|>"),
    *("<|audio_out_bos|>", "<|AUDIO_OUT|>", "<|reserved_special_token_6|>", "<|audio_eos|>"),
)
# What the published one writes for a system's message, a scene's, users' and assistants'.
_TEMPLATE = (
    "{{- bos_token -}}{%- for message in messages -%}{%- set said = message['content'][0] -%}"
    "{%- if message['role'] == 'scene' -%}"
    "{{- '\n\n<|scene_desc_start|>\n' + said['text'] | trim + '\n<|scene_desc_end|>' -}}"
    "{%- else -%}"
    "{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' -}}"
    "{%- if said['type'] == 'audio' -%}{{- '<|audio_out_bos|><|AUDIO_OUT|><|audio_eos|>' -}}"
    "{%- else -%}{{- said['text'] | trim -}}{%- endif -%}"
    "{%- endif -%}"
    "{%- if loop.last or messages[loop.index]['role'] != 'scene' -%}{{- '<|eot_id|>' -}}{%- endif -%}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}"
    "{{- '<|start_header_id|>assistant<|end_header_id|>\n\n<|audio_out_bos|>' -}}{%- endif -%}"
)
# The files of the authors' own layout, which lie beside transformers'.
_AUTHORS = (
    "audio_codebook_embeddings.weight",
    "audio_decoder_proj.audio_lm_head.weight",
    "embed_tokens.weight",
)
# Positions are stretched as in the published checkpoint, within the few that tests reach.
_ROPE = {
    "rope_theta": 5000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 2.0,
    "original_max_position_embeddings": 64,
}


@dataclass(frozen=True)
class TinyHiggsShape:
    """The sizes of a checkpoint."""

    hidden_size: int = option(32, "hidden size of the decoder")
    layers: int = option(2, "its layers")
    heads: int = option(4, "its attention heads")
    kv_heads: int = option(2, "its key and value heads")
    context: int = option(1024, "longest prompt and speech together, in tokens and rows of codes")
    codebooks: int = option(4, "codes of a frame")
    codes: int = option(32, "codes of each codebook")
    semantic_size: int = option(16, "hidden size of the codec's HuBERT, a multiple of 4")

    def config(self, ids: Mapping[str, int]) -> dict[str, Any]:
        """``config.json``: the published one with these sizes, and the ids of a tokenizer."""
        return shrunk(
            published_model("higgs_audio_v2").config(),
            {
                "dtype": "float32",
                "vocab_size": 256 + len(ids),
                "hidden_size": self.hidden_size,
                "intermediate_size": 48,
                "num_hidden_layers": self.layers,
                "num_attention_heads": self.heads,
                "num_key_value_heads": self.kv_heads,
                "head_dim": self.hidden_size // self.heads,
                "max_position_embeddings": self.context,
                "rope_parameters": _ROPE,
                "pad_token_id": ids["<|end_of_text|>"],
                "eos_token_id": ids[_END],
                "num_codebooks": self.codebooks,
                "codebook_size": self.codes + 2,
                "audio_token_id": ids["<|AUDIO_OUT|>"],
                "audio_bos_token_id": ids["<|audio_out_bos|>"],
                "audio_delay_token_id": ids["<|reserved_special_token_6|>"],
                "audio_stream_bos_id": self.codes,
                "audio_stream_eos_id": self.codes + 1,
            },
        )


SHAPE = TinyHiggsShape


def make(path: str | Path, seed: int = 0, **shape: Any) -> Path:
    """Writes a checkpoint of transformers' ``HiggsAudioV2ForConditionalGeneration``, with its codec.

    Now and then the first code of a row is the one that ends its group, and so the speech.

    Args:
        path: The directory, made if it is missing.
        seed: Of the weights.
        shape: Fields of ``TinyHiggsShape``.

    Returns:
        The directory.
    """
    import torch
    from transformers import HiggsAudioV2Config, HiggsAudioV2ForConditionalGeneration

    from sglang_omni.models.higgs_audio_v2.tiny_tokenizer import make_tokenizer

    directory, tiny, published = Path(path), TinyHiggsShape(**shape), published_model("higgs_audio_v2")
    ids = {token: 256 + place for place, token in enumerate(published.added_tokens)}
    fields = tiny.config(ids)
    # transformers changes what it is given.
    model = HiggsAudioV2ForConditionalGeneration(HiggsAudioV2Config(**copy.deepcopy(fields))).float().eval()
    chance = torch.Generator().manual_seed(seed)
    _fill(model, [*range(256), *(ids[token] for token in _SPECIAL)], chance)
    directory.mkdir(parents=True, exist_ok=True)
    write_json(directory / "config.json", fields)
    generation = {"eos_token_id": ids[_END], "pad_token_id": ids["<|end_of_text|>"]}
    write_json(
        directory / "generation_config.json", shrunk(published.config("generation_config.json"), generation)
    )
    _write_tokenizer(directory, ids)
    _write_weights(directory, model.state_dict(), chance)
    codec = directory / "audio_tokenizer"
    make_tokenizer(codec, seed, codebooks=tiny.codebooks, codes=tiny.codes, semantic_size=tiny.semantic_size)
    processor = {
        "feature_extractor": json.loads((codec / "preprocessor_config.json").read_text()),
        # Published ones name a repository.
        "audio_tokenizer": {"audio_tokenizer_name_or_path": codec.name},
        "audio_stream_bos_id": tiny.codes,
        "audio_stream_eos_id": tiny.codes + 1,
    }
    write_json(
        directory / "processor_config.json", shrunk(published.config("processor_config.json"), processor)
    )
    (directory / "chat_template.jinja").write_text(_TEMPLATE)
    mark_random(directory)
    return directory


def _write_weights(directory: Path, weights: Mapping[str, torch.Tensor], chance: torch.Generator) -> None:
    """transformers' layout in ``model.safetensors``, with the unused head of text; in the shards
    and their index the authors'."""
    import torch
    from safetensors.torch import save_file

    text_head = torch.randn(weights["model.embed_tokens.weight"].shape, generator=chance)
    tensors = {**weights, "text_lm_head.weight": text_head}
    save_file(
        {name: tensor.contiguous() for name, tensor in tensors.items()},
        directory / "model.safetensors",
        metadata={"format": "pt"},
    )
    shards = {
        name: f"model-{shard:05}-of-{len(_AUTHORS):05}.safetensors"
        for shard, name in enumerate(_AUTHORS, start=1)
    }
    for name, file in shards.items():
        save_file({name: torch.zeros(1)}, directory / file)
    write_json(directory / "model.safetensors.index.json", {"weight_map": shards})


def _write_tokenizer(directory: Path, ids: Mapping[str, int]) -> None:
    tokenizer = byte_tokenizer(ids)
    put_around(tokenizer, _START)
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = renumbered(published_model("higgs_audio_v2").config("tokenizer_config.json"), ids)
    write_json(directory / "tokenizer_config.json", settings)


def _fill(model: Any, used: list[int], chance: torch.Generator) -> None:
    """Weights large enough that codes differ from row to row; zeros for tokens that are not used."""
    import torch

    config = model.config
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if name.endswith(("norm.weight", "layernorm.weight")):
                tensor.copy_(1 + 0.1 * torch.randn(tensor.shape, generator=chance))
            elif name == "model.embed_tokens.weight":
                tensor.zero_()
                tensor[used] = torch.randn(len(used), tensor.shape[1], generator=chance)
            elif "embed" in name:
                tensor.copy_(torch.randn(tensor.shape, generator=chance))
            else:
                tensor.copy_(torch.randn(tensor.shape, generator=chance) * tensor.shape[1] ** -0.5 * 2)
        head = model.audio_lm_head.weight.view(config.num_codebooks, config.codebook_size, -1)
        # A group's beginning is never the likeliest code; the end is one now and then, of the first group.
        head[:, config.audio_stream_bos_id] = 0
        head[1:, config.audio_stream_eos_id] = 0
        head[0, config.audio_stream_eos_id] *= 0.9
