"""What a decoder's shape is read from: config.json, or a part of one, as checkpoints are published."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sglang_omni.model_runner.config import TALKER, DecoderConfig

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 99,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
}


def read(folder: Path, config: dict[str, Any], generation: dict[str, Any] | None = None) -> DecoderConfig:
    (folder / "config.json").write_text(json.dumps({**LLAMA, **config}))
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    return DecoderConfig.from_dir(folder)


@pytest.mark.parametrize(
    ("config", "generation", "ends"),
    [
        ({}, None, ()),
        ({"eos_token_id": 7}, None, (7,)),
        ({"eos_token_id": 7}, {}, (7,)),
        ({"eos_token_id": 0}, {"eos_token_id": None}, (0,)),
        ({}, {"eos_token_id": [8, 9]}, (8, 9)),
        ({"eos_token_id": None}, {"eos_token_id": 8}, (8,)),
        ({"eos_token_id": 7}, {"eos_token_id": [8, 7]}, (7, 8)),
        ({"eos_token_id": [7, 9]}, {"eos_token_id": 8}, (7, 9, 8)),
    ],
)
def test_a_text_ends_as_either_file_says(tmp_path: Path, config: Any, generation: Any, ends: Any) -> None:
    assert read(tmp_path, config, generation).eos_token_ids == ends


def test_a_part_is_what_its_parent_says() -> None:
    """The talker's is published without ``model_type``, and with one of two names of the interleaving."""
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8}
    rope = {"interleaved": True, "mrope_section": [24, 20, 20], "rope_type": "default", "type": "default"}
    part = {**LLAMA, **experts, "shared_expert_intermediate_size": 8, "rope_scaling": rope}
    other_name = {**rope, "mrope_interleaved": True}
    del other_name["interleaved"]
    for model_type in (None, "", "llama", TALKER):
        part |= {"model_type": model_type}
        for spelled in (rope, other_name):
            config = DecoderConfig.from_dict({**part, "rope_scaling": spelled}, TALKER)
            assert (config.model_type, config.mrope_section) == (TALKER, (24, 20, 20))
            assert config.qk_norm
            assert config.is_sparse(0)
            assert not config.tie_word_embeddings
    with pytest.raises(ValueError, match="interleaved false is not supported"):
        DecoderConfig.from_dict({**part, "rope_scaling": {**rope, "interleaved": False}}, TALKER)


def test_a_checkpoint_of_another_model(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"config.json: model_type 'bert' is not served here; known"):
        read(tmp_path, {"model_type": "bert"})
    with pytest.raises(ValueError, match=r"config.json: model_type None is not served here"):
        read(tmp_path, {"model_type": None})
