"""Random checkpoints in the hub's layout, made at test time, with transformers as the oracle."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

VOCAB_SIZE = 199

# The features in which the families' decoders differ, each present and absent somewhere.
SHAPES: dict[str, dict[str, Any]] = {
    "llama": {"num_attention_heads": 6, "num_key_value_heads": 2, "tie_word_embeddings": True},
    "llama-rope3-untied": {
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "tie_word_embeddings": False,
        "attention_bias": True,
        "mlp_bias": True,
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 5000.0,
            "factor": 4.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
    },
    "llama-yarn": {
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 5000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    },
    # All that SGLang's own classes leave out, and a factor that the lengths imply.
    "qwen3-yarn-odd": {
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 10_000.0,
            "factor": None,
            "attention_factor": 1.5,
            "beta_fast": 16.0,
            "beta_slow": 2.0,
            "truncate": False,
            "original_max_position_embeddings": 32,
        },
    },
    "qwen2": {"num_attention_heads": 4, "num_key_value_heads": 1, "tie_word_embeddings": True},
    "qwen2-untied": {"num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": False},
    "qwen3": {
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "tie_word_embeddings": False,
    },
    "qwen3-tied": {
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 16,
        "tie_word_embeddings": True,
    },
    "qwen3moe": {
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "num_experts": 8,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 24,
        "norm_topk_prob": True,
        "mlp_only_layers": [1],
    },
    # Widths that fill no whole 16 bytes, and sparse layers every second.
    "qwen3moe-odd": {
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "head_dim": 16,
        "hidden_size": 50,
        "num_experts": 5,
        "num_experts_per_tok": 1,
        "moe_intermediate_size": 21,
        "norm_topk_prob": False,
        "decoder_sparse_step": 2,
    },
}

# Windows of the last tokens, in some layers or all. SGLang's classes of these families leave them out.
SLIDING = {
    "qwen2-sliding": {**SHAPES["qwen2"], "max_window_layers": 1, "sliding_window": 16},
    "qwen3-sliding": {
        **SHAPES["qwen3"],
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "sliding_window": 7,
    },
    "qwen3moe-sliding": {**SHAPES["qwen3moe"], "sliding_window": 30},
}


@dataclass
class TinyCheckpoint:
    """A saved model and its transformers twin."""

    path: Path
    model: Any
    _answers: dict[tuple[Any, ...], list[int]] = field(default_factory=dict)

    def greedy(self, prompt: Sequence[int], max_new_tokens: int, **options: Any) -> list[int]:
        """What ``generate`` appends to ``prompt``, computed alone, in float32 and once."""
        import torch

        asked = (*prompt, "for", max_new_tokens, *options.items())
        if asked not in self._answers:
            output = self.model.generate(
                torch.tensor([list(prompt)]), max_new_tokens=max_new_tokens, do_sample=False, **options
            )
            self._answers[asked] = output[0, len(prompt) :].tolist()
        return list(self._answers[asked])


def make_checkpoint(directory: Path, shape: str, seed: int, **save_options: Any) -> TinyCheckpoint:
    """A model of ``SHAPES`` or ``SLIDING``. Its seeded weights are spread so widely that tokens vary."""
    import torch
    from transformers import (
        LlamaConfig,
        LlamaForCausalLM,
        Qwen2Config,
        Qwen2ForCausalLM,
        Qwen3Config,
        Qwen3ForCausalLM,
        Qwen3MoeConfig,
        Qwen3MoeForCausalLM,
    )

    config_class, model_class = {
        "llama": (LlamaConfig, LlamaForCausalLM),
        "qwen2": (Qwen2Config, Qwen2ForCausalLM),
        "qwen3": (Qwen3Config, Qwen3ForCausalLM),
        "qwen3moe": (Qwen3MoeConfig, Qwen3MoeForCausalLM),
    }[shape.split("-", maxsplit=1)[0]]
    config = config_class(
        **{
            "vocab_size": VOCAB_SIZE,
            "hidden_size": 48 if shape == "llama" else 64,
            "intermediate_size": 96,
            "num_hidden_layers": 3,
            "max_position_embeddings": 256,
            "bos_token_id": None,
            "eos_token_id": None,
            "pad_token_id": None,
            **(SLIDING[shape] | {"use_sliding_window": True} if shape in SLIDING else SHAPES[shape]),
        }
    )
    torch.manual_seed(seed)
    model = model_class(config).eval()
    # transformers' faster ways refuse widths that fill no whole 16 bytes.
    model.set_experts_implementation("eager")
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("norm.weight"):
                weight.uniform_(0.5, 1.5)
            else:
                weight.normal_(std=0.25)
    model.save_pretrained(directory, **save_options)
    return TinyCheckpoint(directory, model)


def with_tokenizer(checkpoint: TinyCheckpoint, directory: Path, **generation: Any) -> Path:
    """A copy of a checkpoint with a tokenizer, whose words are ``t0``, ``t1``, ..., and a chat template.

    Args:
        checkpoint: The model.
        directory: Where it is copied to.
        generation: Fields of its ``generation_config.json``.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers

    shutil.copytree(checkpoint.path, directory)
    vocabulary = {f"t{token}": token for token in range(VOCAB_SIZE)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="t0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "chat_template.jinja").write_text("t1 {{ messages[-1].content }} t2")
    (directory / "generation_config.json").write_text(json.dumps(generation))
    return directory
