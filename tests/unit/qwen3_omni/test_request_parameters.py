"""The effect of request parameters on each stage, and refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from test_checkpoint_settings import CONFIG

from sglang_omni.models.omni.request import requested_voice, talker_sampling, thinker_sampling
from sglang_omni.models.qwen3_omni.components.checkpoint import Qwen3OmniCheckpoint
from sglang_omni.models.qwen3_omni.family import FAMILY
from sglang_omni.models.qwen3_omni.request import code2wav_chunking
from sglang_omni.proto import OmniRequest, RequestError
from sglang_omni.scheduling.code2wav_scheduler import REFERENCE_CHUNKING, Chunking


def checkpoint(folder: Path, **generation: Any) -> Qwen3OmniCheckpoint:
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "generation_config.json").write_text(json.dumps(generation))
    return Qwen3OmniCheckpoint.from_dir(folder)


@pytest.mark.parametrize(
    ("stored", "drawn"),
    [
        # What is published, and what its authors recommend.
        (
            {
                "talker_max_new_tokens": 4096,
                "talker_repetition_penalty": 1.05,
                "talker_temperature": 0.9,
                "talker_top_k": 50,
                "talker_top_p": 1.0,
            },
            (0.6, 0.95, 20),
        ),
        ({"repetition_penalty": 1.1, "eos_token_id": 3}, (0.6, 0.95, 20)),
        # The checkpoint's own are complete.
        ({"temperature": 0.7, "top_k": 20}, (0.7, 1.0, 20)),
        ({"thinker_top_p": 0.8}, (1.0, 0.8, -1)),
        ({"do_sample": True}, (1.0, 1.0, -1)),
        ({"do_sample": False}, (0.0, 1.0, -1)),
    ],
)
def test_how_the_thinker_draws_unless_asked_otherwise(
    tmp_path: Path, stored: dict[str, Any], drawn: tuple[float, float, int]
) -> None:
    settings = checkpoint(tmp_path, **stored)
    own = thinker_sampling(OmniRequest(None), settings)
    assert (own.temperature, own.top_p, own.top_k) == drawn
    assert own.repetition_penalty == stored.get("repetition_penalty", 1.0)
    # As much as the context has room for.
    assert own.max_new_tokens is None
    asked = {"temperature": 0.1, "max_new_tokens": 9, "stage_params": {"thinker": {"top_k": 3}}}
    reported = thinker_sampling(OmniRequest(None, asked), settings)
    assert (reported.temperature, reported.top_p, reported.top_k, reported.max_new_tokens) == (
        0.1,
        drawn[1],
        3,
        9,
    )


def test_the_checkpoint_may_limit_an_answer(tmp_path: Path) -> None:
    assert thinker_sampling(OmniRequest(None), checkpoint(tmp_path, max_new_tokens=77)).max_new_tokens == 77


def test_the_talker_has_parameters_of_its_own(tmp_path: Path) -> None:
    settings = checkpoint(tmp_path, temperature=0.7, talker_top_k=5)
    request = OmniRequest(None, {"temperature": 0.0, "top_p": 0.5, "seed": 7, "talker_top_p": 0.8})

    sampling = talker_sampling(request, settings)

    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.9, 0.8, 5)
    assert (sampling.repetition_penalty, sampling.max_new_tokens, sampling.seed) == (1.05, 4096, 7)


@pytest.mark.parametrize(
    ("params", "param"),
    [
        ({"talker_temperature": -1.0}, "talker_temperature"),
        ({"stage_params": {"talker": {"top_p": 2.0}}}, "stage_params.talker.top_p"),
        ({"stage_params": {"talker": 3}}, "stage_params.talker"),
        # A code that ends the speech makes no frame, and there is nothing to go on from.
        ({"stage_params": {"talker": {"ignore_eos": True}}}, "stage_params.talker.ignore_eos"),
    ],
)
def test_a_wrong_talker_parameter_is_named_as_the_request_does(
    tmp_path: Path, params: dict[str, Any], param: str
) -> None:
    with pytest.raises(RequestError) as error:
        talker_sampling(OmniRequest(None, params), checkpoint(tmp_path))
    assert error.value.param == param


@pytest.mark.parametrize(
    ("params", "said", "param"),
    [
        ({"temperature": -1.0}, "temperature: must be a number from 0 to 2", "temperature"),
        (
            {"stage_params": {"thinker": {"top_k": -5}}},
            "stage_params.thinker.top_k: must be a whole number from -1",
            "stage_params.thinker.top_k",
        ),
        (
            {"stage_params": {"thinker": {"topk": 5}}},
            "takes temperature, .* not 'topk'",
            "stage_params.thinker.topk",
        ),
        (
            {"stage_params": {"talker": {"depth": 5}}},
            "takes temperature, .* not 'depth'",
            "stage_params.talker.depth",
        ),
        (
            {"stage_params": {"preprocess": {"fps": 2}}},
            "takes video_fps, use_audio_in_video, not 'fps'",
            "stage_params.preprocess.fps",
        ),
        ({"stage_params": {"decode": {"x": 2}}}, "takes no parameters, so not 'x'", "stage_params.decode.x"),
    ],
)
def test_every_stages_parameters_are_looked_at_first(
    tmp_path: Path, params: dict[str, Any], said: str, param: str
) -> None:
    with pytest.raises(RequestError, match=said) as error:
        FAMILY.check_params(OmniRequest(None, params), checkpoint(tmp_path), has_talker=True)
    assert error.value.param == param


def test_speakers_by_any_case_of_their_names(tmp_path: Path) -> None:
    settings = checkpoint(tmp_path)
    assert requested_voice(OmniRequest(None), settings) == 70  # Ethan, as in transformers
    assert requested_voice(OmniRequest(None, {"voice": "CHELSIE"}), settings) == 71
    with pytest.raises(RequestError, match="no speaker 'nova'; this checkpoint has chelsie, ethan"):
        requested_voice(OmniRequest(None, {"voice": "nova"}), settings)


def chunking(**own: Any) -> Chunking:
    default = Chunking(10, None, 2)
    return code2wav_chunking(OmniRequest(None, {"stage_params": {"code2wav": own}}), default)


def test_chunking() -> None:
    assert chunking() == Chunking(10, None, 2)
    assert chunking(chunk_size=5) == Chunking(5, None, 2)
    assert chunking(left_context_size=72) == Chunking(10, 72, 2)
    assert chunking(chunking="reference") == REFERENCE_CHUNKING
    assert chunking(chunking="reference", chunk_size=50, left_context_size=10) == Chunking(50, 10, 50, False)


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ({"chunking": "none"}, "must be 'gapless' or 'reference'"),
        ({"chunk_size": 0}, "must be an integer from 1"),
        ({"left_context_size": True}, "must be an integer from 0"),
        ({"chunks": 3}, "takes chunking, chunk_size, left_context_size, not 'chunks'"),
    ],
)
def test_chunking_that_makes_no_sense(own: dict[str, Any], said: str) -> None:
    with pytest.raises(RequestError, match=said):
        chunking(**own)
