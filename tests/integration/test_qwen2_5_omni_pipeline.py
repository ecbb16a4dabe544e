"""What Qwen2.5-Omni's pipelines do beside what the parity kit asks: voices, seeds, pipelines of some stages.

Samples agree within 1e-5: products of other sizes are summed in another order.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import numpy as np
from qwen2_5_omni_oracle import OmniAnswer, OmniOracle
from sample_media import image_part, picture, user

from sglang_omni.config import PipelineConfig
from sglang_omni.models.qwen2_5_omni.config import (
    Qwen25OmniPipelineConfig,
    Qwen25OmniTextPipelineConfig,
    Qwen25OmniThinkerPipelineConfig,
)
from sglang_omni.models.qwen2_5_omni.preprocess import SPEECH_PROMPT
from sglang_omni.models.qwen2_5_omni.tiny_checkpoint.make import make
from sglang_omni.pipeline.compile import PipelineRunner, compile_pipeline
from sglang_omni.proto import OmniRequest, RequestError
from sglang_omni.serve.launch.pipelines import load_pipeline

SPEAKS = {"role": "system", "content": SPEECH_PROMPT}
CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "text": [SPEAKS, {"role": "user", "content": "Hello there, who are you?"}],
    "images": [SPEAKS, user(image_part(picture(1)), image_part(picture(2, 64, 150)), "Which?")],
}
_ids = (f"request-{number}" for number in itertools.count())


def asked(name: str, *, spoken: bool = True, **params: Any) -> OmniRequest:
    """Greedy throughout, as the oracle."""
    params = {"temperature": 0.0, "max_new_tokens": 12, **params}
    if spoken:
        params = {"talker_temperature": 0.0, "talker_max_new_tokens": 20, **params}
    metadata = {"task": "chat", "output_modalities": ["text", "audio"] if spoken else ["text"]}
    return OmniRequest({"messages": CONVERSATIONS[name]}, params, metadata)


def answer_of(oracle: OmniOracle, name: str, **options: Any) -> OmniAnswer:
    return oracle.answer(CONVERSATIONS[name], **{"max_tokens": 12, "max_codes": 20, **options})


def check(result: dict[str, Any], expected: OmniAnswer) -> None:
    assert result["decode"]["token_ids"] == expected.token_ids
    assert result["decode"]["text"] == expected.text
    assert result["code2wav"]["codes"][:, 0].tolist() == expected.codes
    assert expected.waveform.std() > 0.01
    np.testing.assert_allclose(result["code2wav"]["audio_data"], expected.waveform, rtol=0, atol=1e-5)


async def answers(config: PipelineConfig, requests: list[OmniRequest]) -> list[Any]:
    """The results, or errors, of requests that are made at once."""
    coordinator, stages = compile_pipeline(config)
    async with PipelineRunner(coordinator, stages):
        submitted = (coordinator.submit(next(_ids), request) for request in requests)
        return await asyncio.gather(*submitted, return_exceptions=True)


async def test_seeds_voices_and_answers_that_end(qwen2_5_omni: Any) -> None:
    oracle = qwen2_5_omni(seed=3)
    requests = [
        asked("text", seed=5, voice="ethan", talker_max_new_tokens=30),
        asked("text", talker_repetition_penalty=1.5),
        asked("text", max_new_tokens=1),
        asked("text", max_new_tokens=2),
    ]
    config = Qwen25OmniPipelineConfig(model_path=str(oracle.path))
    voiced, penalised, silent, short = await answers(config, requests)
    check(voiced, answer_of(oracle, "text", seed=5, speaker="Ethan", max_codes=30))
    check(penalised, answer_of(oracle, "text", talker_repetition_penalty=1.5))
    # The last token is not spoken: of one there is nothing to say.
    assert len(silent["decode"]["token_ids"]) == 1
    assert silent["code2wav"]["audio_data"].shape == (0,)
    check(short, answer_of(oracle, "text", max_tokens=2))


async def test_answers_put_out_of_a_full_pool_come_back(qwen2_5_omni: Any) -> None:
    """A thinker's rows are told once, whether or not their tokens are computed again."""
    oracle = qwen2_5_omni()
    right = answer_of(oracle, "text", max_tokens=40)
    assert len(right.token_ids) == 40
    # Pages for two prompts and one more, so that one of two answers has to wait.
    pool = 16 * (2 * -(-len(right.prompt_token_ids) // 16) + 1)
    options = {"engine": "omni", "max_total_tokens": pool, "prefix_cache": False}
    config = Qwen25OmniPipelineConfig(model_path=str(oracle.path), runtime_overrides={"thinker": options})
    coordinator, stages = compile_pipeline(config)
    (thinker,) = (stage for stage in stages if stage.name == "thinker")
    async with PipelineRunner(coordinator, stages):
        every = (coordinator.submit(next(_ids), asked("text", max_new_tokens=40)) for _ in range(6))
        for result in await asyncio.gather(*every):
            check(result, right)
    assert thinker.scheduler.stats()["num_retracted_requests_total"] > 0


async def test_pipelines_without_all_stages(qwen2_5_omni: Any) -> None:
    oracle = qwen2_5_omni()
    path = str(oracle.path)
    config = Qwen25OmniThinkerPipelineConfig(model_path=path)
    shown, refused = await answers(config, [asked("images", spoken=False), asked("text")])
    assert shown["token_ids"] == answer_of(oracle, "images", audio=False).token_ids
    assert isinstance(refused, RequestError)
    assert "in text only" in refused.message
    requests = [asked("text", spoken=False), asked("images", spoken=False)]
    written, unseen = await answers(Qwen25OmniTextPipelineConfig(model_path=path), requests)
    assert written["token_ids"] == answer_of(oracle, "text", audio=False).token_ids
    assert isinstance(unseen, RequestError)
    assert "image_url" in unseen.message


def test_the_checkpoint_decides_whether_there_is_speech(qwen2_5_omni: Any, tmp_path: Any) -> None:
    import json

    path = qwen2_5_omni().path
    assert type(load_pipeline(str(path), None)) is Qwen25OmniPipelineConfig
    fields = json.loads((path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**fields, "enable_audio_output": False}))
    assert type(load_pipeline(str(tmp_path), None)) is Qwen25OmniThinkerPipelineConfig


def test_equal_seeds_make_equal_checkpoints(qwen2_5_omni: Any, tmp_path: Any) -> None:
    from safetensors.torch import load_file

    def weights(path: Any) -> Any:
        return {name: each for file in path.glob("*.safetensors") for name, each in load_file(file).items()}

    import torch

    first, again = weights(qwen2_5_omni().path), weights(make(tmp_path / "again", seed=0))
    assert first.keys() == again.keys()
    assert all(torch.equal(first[name], again[name]) for name in first)
