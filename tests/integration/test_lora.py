"""LoRA adapters: each request's tokens are those of the model with its adapter merged in."""

from __future__ import annotations

import argparse
from itertools import product
from typing import Any

import pytest
from engine_runs import run
from lora_adapters import make_adapter
from sglang_engines import assert_empty
from text_engines import greedy, prompts
from tiny_checkpoints import TinyCheckpoint, make_checkpoint
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from sglang_omni.engines import EngineRequest
from sglang_omni.engines.options import EngineOptions
from sglang_omni.engines.text import build_text_engine
from sglang_omni.model_runner.config import DecoderConfig
from sglang_omni.models.text.config import TextPipelineConfig
from sglang_omni.models.text.thinker import TextThinker
from sglang_omni.proto import OmniRequest, StagePayload
from sglang_omni.serve.launch.model_settings import apply_model_flags
from sglang_omni.serve.launch.options import add_flags
from sglang_omni.serve.state import Capabilities

Family = dict[str | None, TinyCheckpoint]


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> Family:
    """A checkpoint, and two adapters of different ranks."""
    place = tmp_path_factory.mktemp("lora")
    base = make_checkpoint(place / "base", "qwen3", 3)
    return {
        None: base,
        "polite": make_adapter(place / "polite", base, 1, rank=4),
        "rude": make_adapter(place / "rude", base, 2, rank=8),
    }


def options(family: Family, **more: Any) -> EngineOptions:
    paths = {name: str(member.path) for name, member in family.items() if name is not None}
    return EngineOptions(max_total_tokens=2048, num_threads=1, lora_paths=paths, **more)


@pytest.mark.parametrize("overlap", [False, True])
def test_each_request_has_its_adapter(family: Family, overlap: bool) -> None:
    # The default engine: only SGLang's has adapters.
    engine = build_text_engine(None, family[None].path, options(family, overlap_schedule=overlap))
    asked = list(product(prompts(0, [5, 40, 12]), family))
    expected = [family[name].greedy(prompt, 10) for prompt, name in asked]
    assert len({tuple(tokens) for tokens in expected}) == len(asked), (
        "the adapters should change every answer"
    )
    # Twice: the second time, each finds its own prefix in the cache, and none that of another adapter.
    for _ in range(2):
        requests = [greedy(str(index), prompt, 10) for index, (prompt, _) in enumerate(asked)]
        for request, (_, name) in zip(requests, asked, strict=True):
            request.adapter = name
        assert run(engine, requests) == expected
    assert all(request.cached_tokens > 0 for request in requests)
    assert_empty(engine)
    engine.close()


def test_another_engine_refuses_them(family: Family) -> None:
    with pytest.raises(ValueError, match="LoRA adapters need engine 'sglang'"):
        build_text_engine("omni", family[None].path, options(family))


def config_of(family: Family, *flags: str) -> TextPipelineConfig:
    config = TextPipelineConfig(model_path=str(family[None].path))
    parser = argparse.ArgumentParser()
    add_flags(parser)
    apply_model_flags(config, parser.parse_args(flags))
    return config


def test_the_flag_names_what_is_served(family: Family) -> None:
    polite, rude = (str(family[name].path) for name in ("polite", "rude"))
    config = config_of(family, "--lora-paths", f"polite={polite}", rude)
    assert Capabilities.of(config).adapters == {"polite": polite, rude: rude}


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (["a=/nowhere"], "no adapter there"),
        (["a=POLITE", "a=POLITE"], "two adapters are called 'a'"),
    ],
)
def test_a_wrong_flag_is_said(family: Family, values: list[str], words: str) -> None:
    values = [value.replace("POLITE", str(family["polite"].path)) for value in values]
    with pytest.raises(ValueError, match=words):
        config_of(family, "--lora-paths", *values)


@pytest.mark.parametrize(
    ("model", "adapter"),
    [(None, None), ("base", None), ("polite", "polite"), ("base:rude", "rude"), ("base:other", None)],
)
def test_a_request_names_its_adapter_as_its_model(
    family: Family, model: str | None, adapter: str | None
) -> None:
    tokenizer = Tokenizer(WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    config = DecoderConfig.from_dir(family[None].path)
    thinker = TextThinker(tokenizer, {}, config, ("polite", "rude"))
    request = OmniRequest(inputs=None, params={}, metadata={} if model is None else {"model": model})
    built = thinker.build_request(StagePayload("r", request, {"prompt_token_ids": [1]}))
    assert isinstance(built, EngineRequest)
    assert built.adapter == adapter
