"""A random Higgs Audio v2 checkpoint of 0.6 MB, with all files of a published one: for tests and trials."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sglang_omni.models.tiny_shapes import option
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
# Positions are stretched as in the published checkpoint, within the few that tests reach.
_ROPE = {
    "rope_type": "llama3",
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
    from transformers import GenerationConfig, HiggsAudioV2Config, HiggsAudioV2ForConditionalGeneration

    from sglang_omni.models.higgs_audio_v2.tiny_tokenizer import make_tokenizer

    directory, tiny = Path(path), TinyHiggsShape(**shape)
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = _tokenizer()
    tokenizer.save_pretrained(directory)
    ids = dict(zip(_SPECIAL, tokenizer.convert_tokens_to_ids(list(_SPECIAL)), strict=True))
    config = HiggsAudioV2Config(
        vocab_size=len(tokenizer),
        hidden_size=tiny.hidden_size,
        intermediate_size=48,
        num_hidden_layers=tiny.layers,
        num_attention_heads=tiny.heads,
        num_key_value_heads=tiny.kv_heads,
        head_dim=tiny.hidden_size // tiny.heads,
        max_position_embeddings=tiny.context,
        rope_parameters=_ROPE,
        pad_token_id=ids[_END],
        bos_token_id=ids[_START],
        eos_token_id=ids[_END],
        num_codebooks=tiny.codebooks,
        codebook_size=tiny.codes + 2,
        audio_token_id=ids["<|AUDIO_OUT|>"],
        audio_bos_token_id=ids["<|audio_out_bos|>"],
        audio_delay_token_id=ids["<|reserved_special_token_6|>"],
        audio_stream_bos_id=tiny.codes,
        audio_stream_eos_id=tiny.codes + 1,
    )
    model = HiggsAudioV2ForConditionalGeneration(config).float().eval()
    _fill(model, torch.Generator().manual_seed(seed))
    generation = GenerationConfig(bos_token_id=1, eos_token_id=ids[_END], pad_token_id=ids[_END])
    generation.ras_win_len, generation.ras_win_max_num_repeat = 7, 2
    model.generation_config = generation
    model.save_pretrained(directory)
    codec = directory / "audio_tokenizer"
    make_tokenizer(codec, seed, codebooks=tiny.codebooks, codes=tiny.codes, semantic_size=tiny.semantic_size)
    processor = {
        "processor_class": "HiggsAudioV2Processor",
        "feature_extractor": json.loads((codec / "preprocessor_config.json").read_text()),
        "audio_tokenizer": {
            "audio_tokenizer_class": "HiggsAudioV2TokenizerModel",
            "audio_tokenizer_name_or_path": codec.name,
        },
        "audio_stream_bos_id": tiny.codes,
        "audio_stream_eos_id": tiny.codes + 1,
    }
    (directory / "processor_config.json").write_text(json.dumps(processor, indent=2))
    (directory / "chat_template.jinja").write_text(_TEMPLATE)
    mark_random(directory)
    return directory


def _tokenizer() -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(_SPECIAL))
    start = [(_START, tokenizer.token_to_id(_START))]
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{_START} $A", special_tokens=start)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=_START, eos_token=_END, pad_token=_END, model_max_length=2048
    )


def _fill(model: Any, chance: torch.Generator) -> None:
    """Weights large enough that codes differ from row to row."""
    import torch

    config = model.config
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if name.endswith(("norm.weight", "layernorm.weight")):
                tensor.copy_(1 + 0.1 * torch.randn(tensor.shape, generator=chance))
            elif "embed" in name:
                tensor.copy_(torch.randn(tensor.shape, generator=chance))
            else:
                tensor.copy_(torch.randn(tensor.shape, generator=chance) * tensor.shape[1] ** -0.5 * 2)
        head = model.audio_lm_head.weight.view(config.num_codebooks, config.codebook_size, -1)
        # A group's beginning is never the likeliest code; the end is one now and then, of the first group.
        head[:, config.audio_stream_bos_id] = 0
        head[1:, config.audio_stream_eos_id] = 0
        head[0, config.audio_stream_eos_id] *= 0.9
