"""Text models that only SGLang knows: its own class is found, and gives transformers' tokens."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from engine_runs import run
from sglang_engines import assert_empty
from text_engines import greedy, prompts
from tiny_checkpoints import VOCAB_SIZE, TinyCheckpoint

from sglang_omni.engines.options import EngineOptions
from sglang_omni.engines.text import build_text_engine

OPTIONS = EngineOptions(max_total_tokens=1024, chunked_prefill_size=64, num_threads=1)


@pytest.fixture(scope="module")
def mistral(tmp_path_factory: pytest.TempPathFactory) -> TinyCheckpoint:
    from transformers import MistralConfig, MistralForCausalLM

    torch.manual_seed(0)
    model = MistralForCausalLM(
        MistralConfig(
            vocab_size=VOCAB_SIZE,
            hidden_size=64,
            intermediate_size=96,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=256,
            sliding_window=None,
            bos_token_id=None,
            eos_token_id=5,
        )
    ).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.uniform_(0.5, 1.5) if "norm" in name else weight.normal_(std=0.25)
    path = tmp_path_factory.mktemp("mistral")
    model.save_pretrained(path)
    model.generation_config.eos_token_id = [5, 6, 7]
    (path / "generation_config.json").write_text('{"eos_token_id": [6, 7]}')
    return TinyCheckpoint(path, model)


def test_its_tokens_and_its_end(mistral: TinyCheckpoint) -> None:
    engine = build_text_engine(None, mistral.path, OPTIONS)
    many = prompts(0, [3, 20, 70])
    requests = [greedy(str(index), prompt, 12) for index, prompt in enumerate(many)]
    expected = [mistral.greedy(prompt, 12) for prompt in many]
    assert len({token for tokens in expected for token in tokens}) > 15, "the oracle's tokens should vary"
    assert run(engine, requests) == expected
    # As long as the context: nothing else limits it.
    ended = [request.finish_reason for request in requests]
    assert ended == ["stop" if tokens[-1] in (5, 6, 7) else "length" for tokens in expected]
    assert_empty(engine)
    engine.close()


def test_an_architecture_of_no_one(mistral: TinyCheckpoint, tmp_path: Path) -> None:
    fields = json.loads((mistral.path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(fields | {"architectures": ["NewestForCausalLM"]}))
    with pytest.raises(ValueError, match="'NewestForCausalLM', for which neither SGLang nor sgl-omni has a"):
        build_text_engine(None, tmp_path, OPTIONS)
