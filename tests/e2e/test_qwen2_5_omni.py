"""Qwen2.5-Omni through HTTP: token for token, code for code what transformers says.

All stages are in one process. ``test_published_qwen2_5_omni`` has them in their default ones.
"""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from fleet import events
from qwen2_5_omni_oracle import OmniAnswer, OmniOracle
from sample_media import audio_part, image_part, picture, sound, user
from served_process import served_process
from sound_checks import check_sound
from waiting import PATIENCE, wait_until

from sglang_omni.config.schema.load import save_config
from sglang_omni.generation.audio import decode_pcm, decode_wav
from sglang_omni.models.qwen2_5_omni.config import Qwen25OmniColocatedPipelineConfig
from sglang_omni.models.qwen2_5_omni.preprocess import SPEECH_PROMPT

# Reading the oracle and starting a server may take minutes on a busy machine.
pytestmark = pytest.mark.timeout(900)
SPEAKS = {"role": "system", "content": SPEECH_PROMPT}
CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "text": [SPEAKS, {"role": "user", "content": "Hello there, who are you?"}],
    "audio": [SPEAKS, user(audio_part(sound(1)), "What do you hear?")],
    "image": [SPEAKS, user(image_part(picture(1)), "What is this?")],
}


def body_of(name: str, **fields: Any) -> dict[str, Any]:
    """Greedy, as the oracle; the answer tells tokens and codes."""
    return {
        "messages": CONVERSATIONS[name],
        "modalities": ["text", "audio"],
        "audio": {"voice": "ethan", "format": "wav"},
        "temperature": 0.0,
        "max_tokens": 12,
        "talker_temperature": 0.0,
        "talker_max_new_tokens": 20,
        "return_token_ids": True,
        **fields,
    }


@pytest.fixture(scope="module")
def oracle(qwen2_5_omni: Any) -> OmniOracle:
    return qwen2_5_omni()


@pytest.fixture(scope="module")
def expected(oracle: OmniOracle) -> dict[str, OmniAnswer]:
    return {
        name: oracle.answer(messages, max_tokens=12, max_codes=20, speaker="Ethan")
        for name, messages in CONVERSATIONS.items()
    }


@pytest.fixture(scope="module")
def api(oracle: OmniOracle, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    folder: Path = tmp_path_factory.mktemp("served")
    save_config(Qwen25OmniColocatedPipelineConfig(model_path=str(oracle.path)), folder / "config.yaml")
    with (
        served_process(folder / "server.log", "--config", str(folder / "config.yaml")) as server,
        httpx.Client(base_url=server.base_url, timeout=120) as client,
    ):
        yield client


def ask(api: httpx.Client, body: dict[str, Any]) -> dict[str, Any]:
    answer = api.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    choice: dict[str, Any] = answer.json()["choices"][0]
    return choice


def check(choice: dict[str, Any], right: OmniAnswer) -> None:
    """Tokens, text, codes and every sample."""
    assert choice["token_ids"] == right.token_ids
    assert choice["message"]["content"] == right.text
    audio = choice["message"]["audio"]
    assert audio["codes"] == [[code] for code in right.codes]
    check_sound(audio["data"], right.waveform)


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_alone(api: httpx.Client, expected: dict[str, OmniAnswer], name: str) -> None:
    check(ask(api, body_of(name)), expected[name])


def test_text_without_speech(api: httpx.Client, oracle: OmniOracle) -> None:
    asked = [{"role": "user", "content": "Hello there, who are you?"}]
    body = {"messages": asked, "temperature": 0.0, "max_tokens": 9, "return_token_ids": True}
    assert ask(api, body)["token_ids"] == oracle.answer(asked, max_tokens=9, audio=False).token_ids


def test_eight_at_once_are_each_alone(api: httpx.Client, expected: dict[str, OmniAnswer]) -> None:
    names = [*CONVERSATIONS, *CONVERSATIONS, "text", "audio"]
    with ThreadPoolExecutor(len(names)) as pool:
        for name, choice in zip(names, pool.map(lambda name: ask(api, body_of(name)), names), strict=True):
            check(choice, expected[name])


def test_what_is_streamed_is_the_answer_in_one_piece(api: httpx.Client) -> None:
    body = body_of("image", max_tokens=60, ignore_eos=True, talker_max_new_tokens=130, seed=4)
    del body["return_token_ids"]
    whole = ask(api, body)["message"]
    samples, _ = decode_wav(base64.b64decode(whole["audio"]["data"]))

    text, audio = "", []
    body["audio"] = {"voice": "ethan", "format": "pcm16"}
    for event in events(api, body):
        for choice in event["choices"]:
            text += choice["delta"].get("content") or ""
            if data := choice["delta"].get("audio", {}).get("data"):
                audio.append(decode_pcm(base64.b64decode(data)))

    assert text == whole["content"]
    assert len(audio) > 2
    # Of 16 bits, the last may round differently in another batch.
    np.testing.assert_allclose(np.concatenate(audio), samples, rtol=0, atol=1.01 / 32768)
    assert len(samples) % 480 == 0
    assert len(samples) > 48 * 480


def test_an_aborted_answer_frees_what_it_held(api: httpx.Client, expected: dict[str, OmniAnswer]) -> None:
    body = body_of("image", max_tokens=4000, ignore_eos=True, talker_max_new_tokens=4000)
    body |= {"request_id": "to-be-aborted", "audio": {"voice": "ethan", "format": "pcm16"}}
    del body["return_token_ids"]
    begun = threading.Event()

    def read() -> None:
        for event in events(api, body):
            if event["choices"] and event["choices"][0]["delta"].get("content"):
                begun.set()

    reader = threading.Thread(target=read)
    reader.start()
    assert begun.wait(60)
    assert api.post("/abort_request", json={"rid": "to-be-aborted"}).status_code == 200
    reader.join(PATIENCE)
    assert not reader.is_alive()
    wait_until(lambda: not any(running(api).values()), "it still holds something")
    assert {"thinker", "talker"} <= running(api).keys()
    check(ask(api, body_of("text")), expected["text"])


def running(api: httpx.Client) -> dict[str, float]:
    """The requests that run in each stage."""
    values = {}
    for line in api.get("/metrics").text.splitlines():
        if line.startswith("sglang_omni_stage_num_running_reqs{") and 'stage="' in line:
            values[line.partition('stage="')[2].partition('"')[0]] = float(line.rpartition(" ")[2])
    return values


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"audio": {"voice": "bob"}}, "chelsie, ethan"),
        ({"talker_top_p": 3}, "talker_top_p"),
        ({"stage_params": {"code2wav": {"chunking": "gapless"}}}, "'blocks' or 'reference'"),
        ({"max_tokens": 100_000}, "ask for at most"),
    ],
)
def test_wrong_requests_are_reported_what_is_allowed(
    api: httpx.Client, changes: dict[str, Any], said: str
) -> None:
    answer = api.post("/v1/chat/completions", json=body_of("text", **changes))
    assert answer.status_code == 400, answer.text
    assert said in answer.json()["error"]["message"]
