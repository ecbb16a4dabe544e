"""A random CSM checkpoint of 0.4 MB, with all files of a published one: for tests and trials."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sglang_omni.models.tiny_shapes import option
from sglang_omni.random_weights import mark_random

if TYPE_CHECKING:
    import torch

_TEMPLATE = (
    "{%- for message in messages -%}{%- for part in message['content'] -%}"
    "{%- if part['type'] == 'text' -%}"
    "{{- '<|begin_of_text|>[' + message['role'] + ']' + part['text'] + '<|end_of_text|>' -}}"
    "{%- elif part['type'] == 'audio' -%}{{- '<|AUDIO|><|audio_eos|>' -}}{%- endif -%}"
    "{%- endfor -%}{%- endfor -%}"
)
_SPECIAL = ("<|begin_of_text|>", "<|end_of_text|>", "<|AUDIO|>", "<|audio_eos|>")
# Positions are stretched as in the published checkpoint, within the few that tests reach.
_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 5000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 2.0,
}


@dataclass(frozen=True)
class TinyCsmShape:
    """The sizes of a checkpoint."""

    hidden_size: int = option(32, "hidden size of the decoder over time")
    layers: int = option(2, "its layers")
    heads: int = option(4, "its attention heads")
    kv_heads: int = option(2, "its key and value heads")
    context: int = option(512, "longest prompt and speech together, in tokens and frames")
    codebooks: int = option(4, "codes of a frame")
    codes: int = option(64, "codes of each codebook")
    depth_layers: int = option(2, "layers of the decoder of a frame")
    depth_heads: int = option(3, "its attention heads")
    depth_kv_heads: int = option(1, "its key and value heads")


SHAPE = TinyCsmShape


def make(path: str | Path, seed: int = 0, **shape: Any) -> Path:
    """Writes a checkpoint of transformers' ``CsmForConditionalGeneration`` and its processor.

    Now and then a frame begins with code 0; all its other codes are then 0 too, which ends the speech.

    Args:
        path: The directory, made if it is missing.
        seed: Of the weights.
        shape: Fields of ``TinyCsmShape``.

    Returns:
        The directory.
    """
    import torch
    from transformers import (
        CsmConfig,
        CsmForConditionalGeneration,
        CsmProcessor,
        EncodecFeatureExtractor,
        GenerationConfig,
    )

    directory, tiny = Path(path), TinyCsmShape(**shape)
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = _tokenizer()
    CsmProcessor(EncodecFeatureExtractor(sampling_rate=24_000), tokenizer, _TEMPLATE).save_pretrained(
        directory
    )
    ids = dict(zip(_SPECIAL, tokenizer.convert_tokens_to_ids(list(_SPECIAL)), strict=True))
    both = {"num_codebooks": tiny.codebooks, "vocab_size": tiny.codes + 3}
    config = CsmConfig(
        **both,
        text_vocab_size=len(tokenizer),
        hidden_size=tiny.hidden_size,
        intermediate_size=48,
        num_hidden_layers=tiny.layers,
        num_attention_heads=tiny.heads,
        num_key_value_heads=tiny.kv_heads,
        max_position_embeddings=tiny.context,
        rope_parameters={**_ROPE, "original_max_position_embeddings": 64},
        pad_token_id=ids["<|AUDIO|>"],
        codebook_pad_token_id=tiny.codes + 2,
        bos_token_id=ids["<|begin_of_text|>"],
        audio_token_id=ids["<|AUDIO|>"],
        audio_eos_token_id=ids["<|audio_eos|>"],
        depth_decoder_config={
            **both,
            "backbone_hidden_size": tiny.hidden_size,
            "hidden_size": 24,
            "intermediate_size": 40,
            "num_hidden_layers": tiny.depth_layers,
            "num_attention_heads": tiny.depth_heads,
            "num_key_value_heads": tiny.depth_kv_heads,
            "head_dim": 8,
            "max_position_embeddings": tiny.codebooks + 1,
            "rope_parameters": {**_ROPE, "original_max_position_embeddings": tiny.codebooks},
        },
        codec_config={
            "model_type": "mimi",
            "hidden_size": 16,
            "num_filters": 2,
            "codebook_size": tiny.codes,
            "codebook_dim": 8,
            "num_quantizers": tiny.codebooks,
            "vector_quantization_hidden_dimension": 8,
            "upsample_groups": 16,
            "num_hidden_layers": 2,
            "intermediate_size": 24,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "sliding_window": 12,
            "use_cache": False,
        },
    )
    model = CsmForConditionalGeneration(config).float().eval()
    _fill(model, torch.Generator().manual_seed(seed))
    model.generation_config = GenerationConfig(
        do_sample=True, temperature=0.9, top_k=50, max_new_tokens=125, pad_token_id=ids["<|AUDIO|>"]
    )
    residual = {"min_new_tokens": tiny.codebooks - 1, "max_new_tokens": tiny.codebooks - 1}
    model.depth_decoder.generation_config.update(do_sample=True, temperature=0.9, top_k=50, **residual)
    model.save_pretrained(directory)
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
    start, end = _SPECIAL[:2]
    ends = [(token, tokenizer.token_to_id(token)) for token in (start, end)]
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{start} $A {end}", special_tokens=ends)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=start, eos_token=end, pad_token=end, model_max_length=2048
    )


def _fill(model: Any, chance: torch.Generator) -> None:
    """Weights large enough that codes differ from frame to frame, and samples from code to code."""
    import torch

    codes = int(model.config.codec_config.codebook_size)
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.codec_model.named_buffers()]:
            if name.endswith(("norm.weight", "layernorm.weight")):
                tensor.copy_(1 + 0.1 * torch.randn(tensor.shape, generator=chance))
            elif name.endswith("embed_sum"):
                tensor.copy_(torch.randn(tensor.shape, generator=chance))
            elif name.endswith("_layer_scale.scale"):
                tensor.fill_(0.3)
            elif "embed" in name:
                tensor.copy_(torch.randn(tensor.shape, generator=chance))
            elif name.endswith(".bias"):
                tensor.copy_(0.1 * torch.randn(tensor.shape, generator=chance))
            elif tensor.dim() > 1:
                fan_in = tensor[0].numel()
                tensor.copy_(torch.randn(tensor.shape, generator=chance) * fan_in**-0.5 * 2)
        heads, depth = model.depth_decoder.codebooks_head.weight, model.depth_decoder.model
        heads.copy_(torch.randn(heads.shape, generator=chance) * 2 * heads.shape[1] ** -0.5)
        # Sound within [-1, 1].
        groups = model.config.num_codebooks
        wave = model.codec_model.decode(torch.randint(codes, (8, groups, 30), generator=chance)).audio_values
        convolutions = [m for m in model.codec_model.modules() if isinstance(m, torch.nn.Conv1d)]
        last = [m for m in convolutions if m.out_channels == 1][-1]
        last.weight *= 0.6 / wave.abs().max()
        last.bias *= 0.6 / wave.abs().max()
        # Codes that the codec has not are never the likeliest.
        model.lm_head.weight[codes:] = 0
        heads[..., codes:] = 0
        # After code 0 comes code 0: a direction of the depth decoder's rows, longer than all else in them.
        model.lm_head.weight[0] *= 1.3
        table = depth.embed_tokens.weight.view(-1, model.config.vocab_size, depth.embed_tokens.embedding_dim)
        projected = depth.inputs_embeds_projector.weight @ table[0, 0]
        table[:, 0] = table[0, 0] * 30
        heads[..., 0] = projected / projected.norm() * 3
