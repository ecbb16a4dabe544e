"""A random CSM checkpoint of 0.4 MB, with all files of a published one: for tests and trials."""

from __future__ import annotations

import copy
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

_TEMPLATE = (
    "{%- for message in messages -%}{%- for part in message['content'] -%}"
    "{%- if part['type'] == 'text' -%}"
    "{{- '<|begin_of_text|>[' + message['role'] + ']' + part['text'] + '<|end_of_text|>' -}}"
    "{%- elif part['type'] == 'audio' -%}{{- '<|AUDIO|><|audio_eos|>' -}}{%- endif -%}"
    "{%- endfor -%}{%- endfor -%}"
)
_START, _END, _AUDIO, _AUDIO_END = "<|begin_of_text|>", "<|end_of_text|>", "<|AUDIO|>", "<|audio_eos|>"
# Positions are stretched as in the published checkpoint, within the few that tests reach.
_ROPE_THETA, _ROPE = 5000, {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 2.0}
# The same weights in Sesame's own layout, which lies beside in the file that most checkpoints are read from.
_SESAME = (
    "audio_embeddings.weight",
    "audio_head",
    "backbone.layers.0.attn.q_proj.weight",
    "backbone.norm.scale",
    "codebook0_head.weight",
    "decoder.layers.0.mlp.w1.weight",
    "projection.weight",
    "text_embeddings.weight",
)
_SHARDS = 2


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

    def config(self, ids: Mapping[str, int], text_vocab_size: int) -> dict[str, Any]:
        """``config.json``: the published one with these sizes, and the ids of a tokenizer."""
        both = {"num_codebooks": self.codebooks, "vocab_size": self.codes + 3}
        return shrunk(
            published_model("csm").config(),
            {
                **both,
                "audio_num_codebooks": self.codebooks,
                "audio_vocab_size": self.codes + 3,
                "text_vocab_size": text_vocab_size,
                "hidden_size": self.hidden_size,
                "head_dim": self.hidden_size // self.heads,
                "intermediate_size": 48,
                "num_hidden_layers": self.layers,
                "num_attention_heads": self.heads,
                "num_key_value_heads": self.kv_heads,
                "max_position_embeddings": self.context,
                **_rope(64),
                "pad_token_id": ids[_AUDIO],
                "codebook_pad_token_id": self.codes + 2,
                "bos_token_id": ids[_START],
                "audio_token_id": ids[_AUDIO],
                "audio_eos_token_id": ids[_AUDIO_END],
                "depth_decoder_config": {
                    **both,
                    "backbone_hidden_size": self.hidden_size,
                    "hidden_size": 24,
                    "intermediate_size": 40,
                    "num_hidden_layers": self.depth_layers,
                    "num_attention_heads": self.depth_heads,
                    "num_key_value_heads": self.depth_kv_heads,
                    "head_dim": 8,
                    "max_position_embeddings": self.codebooks + 1,
                    **_rope(self.codebooks),
                },
                "codec_config": {
                    "hidden_size": 16,
                    "head_dim": 8,
                    "num_filters": 2,
                    "codebook_size": self.codes,
                    "codebook_dim": 8,
                    "num_quantizers": self.codebooks,
                    "vector_quantization_hidden_dimension": 8,
                    "upsample_groups": 16,
                    "num_hidden_layers": 2,
                    "intermediate_size": 24,
                    "num_attention_heads": 2,
                    "num_key_value_heads": 2,
                    "sliding_window": 12,
                },
            },
        )


SHAPE = TinyCsmShape


def make(path: str | Path, seed: int = 0, **shape: Any) -> Path:
    """Writes a checkpoint with all the files of the published one but its prompts.

    Now and then a frame begins with code 0; all its other codes are then 0 too, which ends the speech.

    Args:
        path: The directory, made if it is missing.
        seed: Of the weights.
        shape: Fields of ``TinyCsmShape``.

    Returns:
        The directory.
    """
    import torch
    from transformers import CsmConfig, CsmForConditionalGeneration

    directory, tiny, published = Path(path), TinyCsmShape(**shape), published_model("csm")
    tokenizer = byte_tokenizer(published.added_tokens)
    put_around(tokenizer, _START, _END)
    ids = {token: int(tokenizer.token_to_id(token)) for token in published.added_tokens}
    fields = tiny.config(ids, int(tokenizer.get_vocab_size()))
    # transformers changes what it is given.
    model = CsmForConditionalGeneration(CsmConfig(**copy.deepcopy(fields))).float().eval()
    # Behind these come reserved tokens, which mean nothing.
    _fill(model, ids[_AUDIO_END] + 1, torch.Generator().manual_seed(seed))
    directory.mkdir(parents=True, exist_ok=True)
    write_json(directory / "config.json", fields)
    generation = {"bos_token_id": ids[_START], "pad_token_id": ids[_AUDIO]}
    write_json(
        directory / "generation_config.json", shrunk(published.config("generation_config.json"), generation)
    )
    write_json(directory / "preprocessor_config.json", published.config("preprocessor_config.json"))
    _write_tokenizer(directory, tokenizer, ids)
    _write_weights(directory, model.state_dict())
    mark_random(directory)
    return directory


def _rope(positions: int) -> dict[str, Any]:
    return {
        "rope_theta": _ROPE_THETA,
        "rope_scaling": {**_ROPE, "original_max_position_embeddings": positions},
    }


def _write_weights(directory: Path, weights: Mapping[str, torch.Tensor]) -> None:
    """transformers' layout in the files that config.json names, Sesame's in ``model.safetensors``."""
    import torch
    from safetensors.torch import save_file

    names = sorted(weights)
    files = [f"transformers-{shard + 1:05}-of-{_SHARDS:05}.safetensors" for shard in range(_SHARDS)]
    for shard, file in enumerate(files):
        # Tied tables are stored twice.
        save_file({name: weights[name].clone() for name in names[shard::_SHARDS]}, directory / file)
    weight_map = {name: files[place % _SHARDS] for place, name in enumerate(names)}
    size = sum(tensor.nbytes for tensor in weights.values())
    index = {"metadata": {"total_size": size}, "weight_map": weight_map}
    write_json(directory / "transformers.safetensors.index.json", index)
    save_file({name: torch.zeros(1) for name in _SESAME}, directory / "model.safetensors")


def _write_tokenizer(directory: Path, tokenizer: Any, ids: Mapping[str, int]) -> None:
    settings = renumbered(published_model("csm").config("tokenizer_config.json"), ids)
    tokenizer.save(str(directory / "tokenizer.json"))
    write_json(directory / "tokenizer_config.json", settings)
    named = {name: settings[name] for name in ("bos_token", "eos_token", "pad_token")}
    write_json(directory / "special_tokens_map.json", named)
    (directory / "chat_template.jinja").write_text(_TEMPLATE)


def _fill(model: Any, text_tokens: int, chance: torch.Generator) -> None:
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
            elif name == "embed_text_tokens.weight":
                tensor.zero_()
                tensor[:text_tokens] = torch.randn(text_tokens, tensor.shape[1], generator=chance)
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
