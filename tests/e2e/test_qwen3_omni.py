"""Qwen3-Omni through HTTP, the router and real processes: token for token what the oracle says.

One engine's stages run in their default processes, the other's all in one.
"""

from __future__ import annotations

import base64
import io
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx
import numpy as np
import pytest
from fleet import events
from qwen3_omni_cases import Case, all_cases
from qwen3_omni_oracle import Oracle, OracleAnswer
from sample_media import audio_part, image_part, picture, silence, user
from served_process import ServedProcess, served_process
from sound_checks import check_sound
from waiting import PATIENCE, wait_until

from sglang_omni.config import PipelineConfig
from sglang_omni.config.schema.load import save_config
from sglang_omni.generation.audio import decode_pcm, decode_wav
from sglang_omni.models.qwen3_omni.config import Qwen3OmniColocatedPipelineConfig, Qwen3OmniPipelineConfig

CASES = {case.name: case for case in all_cases()}
CONFIGS: dict[str, type[PipelineConfig]] = {
    "omni": Qwen3OmniPipelineConfig,
    "sglang": Qwen3OmniColocatedPipelineConfig,
}


@dataclass
class Served:
    """A replica behind a router of its own."""

    api: httpx.Client
    replica: ServedProcess


@pytest.fixture(scope="module")
def oracle(qwen3_omni: Callable[..., Oracle]) -> Oracle:
    return qwen3_omni()


@pytest.fixture(scope="module")
def expected(oracle: Oracle) -> dict[str, OracleAnswer]:
    return {name: case.expected(oracle) for name, case in CASES.items()}


@pytest.fixture(scope="module", params=CONFIGS)
def served(request: pytest.FixtureRequest, oracle: Oracle, tmp_path_factory: Any) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp(request.param)
    engine = {"engine": request.param, "chunked_prefill_size": 24, "num_threads": 1}
    config = CONFIGS[request.param](
        model_path=str(oracle.path),
        runtime_overrides={
            "thinker": engine,
            "talker": engine,
            "preprocess": {"max_images": 8, "max_image_pixels": 10_000_000, "max_audio_seconds": 60.0},
        },
    )
    save_config(config, folder / "config.yaml")
    with (
        served_process(folder / "server.log", "--config", str(folder / "config.yaml")) as replica,
        ServedProcess(
            folder / "router.log", "--worker-urls", replica.base_url, module="launch_router"
        ) as router,
        httpx.Client(base_url=router.base_url, timeout=120) as api,
    ):
        router.wait_for(lambda: is_up(router.base_url), "the router has no worker")
        yield Served(api, replica)


@pytest.fixture(scope="module")
def api(served: Served) -> httpx.Client:
    return served.api


def is_up(url: str) -> bool:
    return httpx.get(f"{url}/health", timeout=PATIENCE).status_code == 200


def ask(api: httpx.Client, body: dict[str, Any]) -> dict[str, Any]:
    answer = api.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def check(answer: dict[str, Any], right: OracleAnswer) -> None:
    """Tokens, text, codes and every sample."""
    choice = answer["choices"][0]
    assert choice["token_ids"] == right.token_ids
    assert choice["message"]["content"] == right.text
    audio = choice["message"]["audio"]
    assert audio["codes"] == right.codes
    check_sound(audio["data"], right.waveform)
    assert answer["usage"]["prompt_tokens"] == len(right.prompt_token_ids)
    assert answer["usage"]["completion_tokens"] == len(right.token_ids)


@pytest.mark.parametrize("name", CASES)
def test_alone(api: httpx.Client, expected: dict[str, OracleAnswer], name: str) -> None:
    check(ask(api, CASES[name].chat_body), expected[name])


def test_all_at_once_with_their_prompts_in_the_cache(
    api: httpx.Client, expected: dict[str, OracleAnswer]
) -> None:
    with ThreadPoolExecutor(len(CASES)) as pool:
        for _ in range(2):
            answers = list(pool.map(lambda case: ask(api, case.chat_body), CASES.values()))
            for name, answer in zip(CASES, answers, strict=True):
                check(answer, expected[name])
    cached = [answer["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in answers]
    assert all(cached), cached


def test_a_changed_picture_is_no_cache_hit(api: httpx.Client, oracle: Oracle) -> None:
    """Its placeholders are the same tokens; what they stand for is not."""
    case = Case("changed", [user(image_part(picture(77)), "What is this?")], speaker="Chelsie")
    check(ask(api, case.chat_body), case.expected(oracle))


def test_what_is_streamed_is_the_answer_in_one_piece(api: httpx.Client) -> None:
    body = CASES["image+audio"].chat_body
    body |= {"max_tokens": 512, "ignore_eos": True, "talker_max_new_tokens": 34}
    body |= {"stage_params": {}, "return_token_ids": False}
    body["audio"] = {"voice": "ethan", "format": "wav"}
    whole = ask(api, body)["choices"][0]["message"]
    samples, _ = decode_wav(base64.b64decode(whole["audio"]["data"]))

    text, audio, order = "", [], []
    body["audio"] = {"voice": "ethan", "format": "pcm16"}
    for event in events(api, body):
        for choice in event["choices"]:
            text += choice["delta"].get("content") or ""
            order += ["text"] if choice["delta"].get("content") else []
            if data := choice["delta"].get("audio", {}).get("data"):
                audio.append(decode_pcm(base64.b64decode(data)))
                order.append("audio")

    assert text == whole["content"]
    assert len(audio) > 2
    np.testing.assert_array_equal(np.concatenate(audio), samples)
    # 33 frames without a gap; only the end of the last one is cut.
    assert 33 * 1920 - 1920 < len(samples) <= 33 * 1920
    # The text, long enough for a busy machine, is not complete when the voice begins.
    assert order.index("audio") < len(order) - 1 - order[::-1].index("text")


def png_of(width: int, height: int) -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    Image.new("1", (width, height)).save(buffer, "PNG")
    return buffer.getvalue()


WRONG = {
    "a corrupted picture": (lambda: [image_part(picture(1)[:200])], {}, "image"),
    "a huge picture": (lambda: [image_part(png_of(10_000, 10_000))], {}, "pixels"),
    "hours of sound": (lambda: [audio_part(silence(3 * 3600))], {}, "60"),
    "fifty pictures": (lambda: [image_part(picture(1, 32, 32))] * 50, {}, "8"),
    "an unknown speaker": (lambda: ["Hello"], {"audio": {"voice": "bob"}}, "aiden, chelsie, ethan"),
    "a wrong talker parameter": (lambda: ["Hello"], {"talker_top_p": 3}, "talker_top_p"),
    "a wrong chunking": (lambda: ["Hello"], {"stage_params": {"code2wav": {"chunking": "x"}}}, "gapless"),
    "a stage's parameter misspelled": (
        lambda: ["Hello"],
        {"stage_params": {"thinker": {"temprature": 1}}},
        "did you mean 'temperature'?",
    ),
    "a talker's parameter for a text": (
        lambda: ["Hello"],
        {"modalities": ["text"], "talker_top_k": 3},
        "only for a spoken answer",
    ),
    "an answer beyond the context": (lambda: ["Hello"], {"max_tokens": 100_000}, "ask for at most"),
    "a stop token of another vocabulary": (lambda: ["Hello"], {"stop_token_ids": [10**7]}, "vocabulary"),
}


def test_wrong_inputs_are_reported_what_is_allowed_and_disturb_nobody(
    api: httpx.Client, expected: dict[str, OracleAnswer]
) -> None:
    with ThreadPoolExecutor(2) as pool:
        others = [pool.submit(ask, api, CASES[name].chat_body) for name in ("image", "audio", "three turns")]
        for what, (content, changes, said) in WRONG.items():
            body = {"messages": [user(*content())], "modalities": ["text", "audio"], **changes}
            answer = api.post("/v1/chat/completions", json=body)
            assert 400 <= answer.status_code < 500, (what, answer.text)
            assert said in answer.json()["error"]["message"], (what, answer.text)
        for name, other in zip(("image", "audio", "three turns"), others, strict=True):
            check(other.result(), expected[name])


def stage_metric(api: httpx.Client, name: str) -> dict[str, float]:
    """A number of each stage that has it."""
    values = {}
    for line in api.get("/metrics").text.splitlines():
        if line.startswith(name + "{") and 'stage="' in line:
            stage = line.partition('stage="')[2].partition('"')[0]
            values[stage] = float(line.rpartition(" ")[2])
    return values


def test_an_aborted_answer_frees_what_it_held(served: Served) -> None:
    worker = httpx.Client(base_url=served.replica.base_url, timeout=60)
    body = CASES["image"].chat_body | {
        "request_id": "to-be-aborted",
        "max_tokens": 4000,
        "talker_max_new_tokens": 4000,
        "ignore_eos": True,
        "stage_params": {},
        "return_token_ids": False,
    }
    body["audio"] = {"voice": "ethan", "format": "pcm16"}
    begun = threading.Event()

    def read() -> None:
        for event in events(served.api, body):
            if event["choices"] and event["choices"][0]["delta"].get("content"):
                begun.set()

    reader = threading.Thread(target=read)
    reader.start()
    assert begun.wait(60)
    assert worker.post("/abort_request", json={"rid": "to-be-aborted"}).status_code == 200
    reader.join(PATIENCE)
    assert not reader.is_alive()

    def is_free() -> bool:
        running = stage_metric(worker, "sglang_omni_stage_num_running_reqs")
        used = stage_metric(worker, "sglang_omni_stage_kv_used_tokens")
        return {"thinker", "talker"} <= running.keys() and not any((*running.values(), *used.values()))

    wait_until(is_free, "it still holds something")
