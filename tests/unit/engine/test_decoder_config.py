"""What a decoder's shape is read from: config.json, or a part of one, as checkpoints are published."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sglang_omni.model_runner.config import DENSE_THINKER, TALKER, DecoderConfig, UnsupportedDecoder

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
    with pytest.raises(ValueError, match=r"config.json: model_type 'bert' is none of llama, qwen2"):
        read(tmp_path, {"model_type": "bert"})
    with pytest.raises(ValueError, match=r"config.json: model_type None is none of"):
        read(tmp_path, {"model_type": None})


QWEN: dict[str, Any] = {**LLAMA, "num_hidden_layers": 4, "max_position_embeddings": 8192}
SLIDING, FULL = "sliding_attention", "full_attention"


@pytest.mark.parametrize(
    ("family", "fields", "window", "layers"),
    [
        ("qwen2", {"sliding_window": 64}, None, set()),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 64}, None, set()),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 1}, 64, {1, 2, 3}),
        ("qwen2", {"use_sliding_window": True, "max_window_layers": 0}, 4096, {0, 1, 2, 3}),
        ("qwen3", {"use_sliding_window": True, "sliding_window": None, "max_window_layers": 0}, None, set()),
        ("qwen3", {"use_sliding_window": True, "sliding_window": 8192, "max_window_layers": 0}, None, set()),
        (
            "qwen3",
            {"use_sliding_window": True, "layer_types": [SLIDING, FULL, FULL, SLIDING], "sliding_window": 9},
            9,
            {0, 3},
        ),
        (DENSE_THINKER, {"use_sliding_window": True, "max_window_layers": 3, "sliding_window": 5}, 5, {3}),
        # transformers' class has it in all layers, whatever the others' fields say.
        ("qwen3_moe", {"use_sliding_window": True, "sliding_window": 5}, 5, {0, 1, 2, 3}),
        # Of Mistral; Llama's class does not read it.
        ("llama", {"use_sliding_window": True, "sliding_window": 64}, None, set()),
    ],
)
def test_the_layers_with_a_sliding_window(family: str, fields: Any, window: Any, layers: set[int]) -> None:
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8}
    config = DecoderConfig.from_dict({**QWEN, **experts, **fields}, family)
    assert (config.sliding_window, config.sliding_layers) == (window, layers)


def test_layer_types_that_say_nothing(tmp_path: Path) -> None:
    for kinds, words in (
        ([SLIDING] * 4, "use_sliding_window or sliding_window is not set"),
        ([FULL] * 3, "for each of 4 layers"),
        (["chunked_attention"] * 4, "for each of 4 layers"),
    ):
        with pytest.raises(ValueError, match=words):
            DecoderConfig.from_dict({**QWEN, "layer_types": kinds}, "qwen2")
    with pytest.raises(UnsupportedDecoder, match="these layers attend the whole context"):
        DecoderConfig.from_dict({**QWEN, "use_sliding_window": True}, TALKER)
