"""Rotary frequencies of scaled positions are transformers', in both spellings of config.json."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaConfig, Qwen3Config
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from sglang_omni.model_runner.config import DENSE_THINKER, DecoderConfig, UnsupportedDecoder
from sglang_omni.model_runner.rope import RotaryEmbedding, attention_factor, inverse_frequencies

FIELDS: dict[str, Any] = {
    "vocab_size": 9,
    "hidden_size": 256,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "max_position_embeddings": 131_072,
}
QWEN = {"factor": 4.0, "original_max_position_embeddings": 32_768}
YARN: list[dict[str, Any]] = [
    QWEN,
    {"factor": 4.0},
    {"factor": None, "original_max_position_embeddings": 4096},
    {**QWEN, "attention_factor": 0.8},
    {**QWEN, "attention_factor": 1.0, "beta_fast": 8, "beta_slow": 2},
    {**QWEN, "beta_fast": None, "beta_slow": None, "truncate": False},
    {**QWEN, "mscale": 0.707, "mscale_all_dim": 0.4},
    {**QWEN, "mscale": 1.0, "mscale_all_dim": 0},
    {**QWEN, "mscale": 0.5},
    {"factor": 1.0, "original_max_position_embeddings": 64},
    {"factor": 40.0, "original_max_position_embeddings": 40, "truncate": True},
]


def ours(**fields: Any) -> DecoderConfig:
    return DecoderConfig.from_dict({**FIELDS, **fields}, "llama")


@pytest.mark.parametrize("scaling", YARN)
@pytest.mark.parametrize(("head_dim", "theta"), [(64, 10_000.0), (128, 1_000_000.0), (80, 500.0)])
def test_yarn(scaling: dict[str, Any], head_dim: int, theta: float) -> None:
    yarn = {"rope_type": "yarn", **scaling}
    spellings = (
        {"rope_parameters": {**yarn, "rope_theta": theta}},
        {"rope_scaling": yarn, "rope_theta": theta},
        {"rope_scaling": {**scaling, "type": "yarn"}, "rope_theta": theta},
    )
    twin = Qwen3Config(**FIELDS, head_dim=head_dim, rope_parameters={**yarn, "rope_theta": theta})
    frequencies, factor = ROPE_INIT_FUNCTIONS["yarn"](twin, torch.device("cpu"))
    for spelled in spellings:
        config = ours(head_dim=head_dim, **spelled)
        assert torch.equal(inverse_frequencies(config), frequencies)
        assert attention_factor(config) == factor


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_cosines_and_sines_are_sharpened(dtype: torch.dtype) -> None:
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    parameters = {"rope_type": "yarn", "rope_theta": 10_000.0, **QWEN}
    positions = torch.tensor([0, 1, 1000, 131_071])
    twin = LlamaRotaryEmbedding(LlamaConfig(**FIELDS, rope_parameters=parameters))
    expected = twin(torch.zeros(1, dtype=dtype), positions[None])
    plain, scaled = (
        RotaryEmbedding(config, dtype).at(positions) for config in (ours(), ours(rope_parameters=parameters))
    )
    half = scaled[1].shape[-1] // 2
    assert torch.equal(scaled[0][:, 0], expected[0][0])
    assert torch.equal(scaled[1][:, 0, half:], expected[1][0][:, half:])
    assert not torch.equal(plain[0], scaled[0])


def test_the_original_length_at_the_top_goes_first() -> None:
    scaling = {"rope_type": "yarn", **QWEN}
    moved = ours(rope_scaling=scaling, original_max_position_embeddings=8192)
    assert moved.rope_scaling["original_max_position_embeddings"] == 8192
    llama3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    assert ours(rope_scaling=llama3).rope_scaling["original_max_position_embeddings"] == 131_072


def test_yarn_on_three_axes() -> None:
    """Qwen2.5-VL's spelling, of Qwen2.5-Omni's thinker."""
    rope = {"type": "yarn", "mrope_section": [8, 12, 12], **QWEN}
    config = DecoderConfig.from_dict({**FIELDS, "rope_scaling": rope}, DENSE_THINKER)
    assert config.mrope_section == (8, 12, 12)
    assert attention_factor(config) > 1
    assert torch.equal(
        inverse_frequencies(config), inverse_frequencies(ours(rope_scaling=rope, rope_theta=1_000_000.0))
    )


@pytest.mark.parametrize(
    ("rope", "words"),
    [
        ({"rope_type": "dynamic", "factor": 2.0}, "rope_type 'dynamic' is none of default, linear, llama3"),
        ({"rope_type": "longrope", "short_factor": [1.0]}, "rope_type 'longrope' is none of"),
        ({"type": "su"}, "rope_type 'su' is none of"),
        ({"rope_type": "default", "partial_rotary_factor": 0.5}, "turn only a part of the channels"),
        ({"full_attention": {"rope_type": "default"}}, "otherwise in some layers"),
    ],
)
def test_what_is_not_computed_is_named(rope: dict[str, Any], words: str) -> None:
    with pytest.raises(UnsupportedDecoder, match=words):
        ours(rope_scaling=rope)


@pytest.mark.parametrize("kind", ["linear", "llama3"])
def test_a_missing_number_is_named(kind: str) -> None:
    with pytest.raises(ValueError, match="'factor' is missing"):
        ours(rope_scaling={"rope_type": kind})
