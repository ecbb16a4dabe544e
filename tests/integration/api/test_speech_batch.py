"""Several texts in one request: each with its own result, and none the worse for another's failure."""

from __future__ import annotations

import asyncio
import base64
import threading
from typing import Any

import httpx
import pytest
from decoded_audio import assert_sounds_like, chirp
from scripted_pipeline import ScriptedPipeline
from waiting import PATIENCE

from sglang_omni.models.speech_chat.config import SpeechChatPipelineConfig
from sglang_omni.proto import RequestError
from sglang_omni.serve.front.admission import Admission, AdmissionLimits
from sglang_omni.serve.routes.speech_batch import MAX_BATCH_CHARS, in_free_places
from sglang_omni.serve.state import Capabilities

PATH = "/v1/audio/speech/batch"


def results(http: httpx.Client, **body: Any) -> list[dict[str, Any]]:
    answer = http.post(PATH, json=body)
    assert answer.status_code == 200, answer.text
    fields = answer.json()
    found: list[dict[str, Any]] = fields["results"]
    assert [result["index"] for result in found] == list(range(len(found))) == list(range(fields["total"]))
    statuses = [result["status"] for result in found]
    assert (fields["succeeded"], fields["failed"]) == (statuses.count("success"), statuses.count("error"))
    return found


def test_each_text_has_its_file(http: httpx.Client, pipeline: ScriptedPipeline) -> None:
    pipeline.samples, pipeline.speech_usage = chirp(), {"prompt_tokens": 5, "completion_tokens": 90}
    first, second = results(
        http,
        model="scripted",
        items=[{"input": "One."}, {"input": "Two.", "response_format": "flac", "speed": 2.0, "voice": None}],
        response_format="wav",
        speed=1.5,
        voice="default",
        seed=4,
    )
    for result, kind in ((first, "audio/wav"), (second, "audio/flac")):
        assert result["media_type"] == kind
        assert (result["sample_rate"], result["finish_reason"]) == (24_000, "stop")
        assert result["usage"] == {"input_tokens": 5, "output_tokens": 90, "total_tokens": 95}
        assert_sounds_like(base64.b64decode(result["audio_data"]), pipeline.samples)
    asked = {request.inputs["text"]: request.params for _, request in pipeline.requests}
    shared = {"voice": "default", "seed": 4, "stream": False}
    assert asked == {"One.": shared | {"speed": 1.5}, "Two.": shared | {"speed": 2.0}}
    assert len({request_id for request_id, _ in pipeline.requests}) == 2


def test_a_wrong_text_is_wrong_alone(http: httpx.Client, pipeline: ScriptedPipeline) -> None:
    items: list[dict[str, Any]] = [
        {"input": "Good."},
        {"input": "  "},
        {"inptu": "x"},
        {"input": "x", "voice": "nobody"},
        {"input": "x", "speed": "fast"},
        {"input": "Good, too."},
    ]
    good, *bad, last = results(http, items=items)
    assert good["status"] == last["status"] == "success"
    assert [(result["error"]["param"], result["error"]["code"]) for result in bad] == [
        ("input", "invalid_value"),
        ("input", "missing_required_parameter"),
        ("voice", "unsupported_value"),
        ("speed", "invalid_type"),
    ]
    assert len(pipeline.requests) == 2


def test_a_failure_of_the_pipeline_is_reported_for_each(
    http: httpx.Client, pipeline: ScriptedPipeline
) -> None:
    pipeline.error = RequestError("no sound for that", param="input", code="invalid_value")
    (result,) = results(http, items=[{"input": "x"}])
    assert result["error"] == {
        "message": "no sound for that",
        "type": "invalid_request_error",
        "param": "input",
        "code": "invalid_value",
    }


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"items": []}, "items"),
        ({"items": [{"input": "x"}] * 33}, "items"),
        ({"items": [{"input": "x" * 16_000}] * 5}, "items"),
        ({}, "items"),
        ({"items": "x"}, "items"),
        ({"items": [{"input": "x"}], "stream": True}, "stream"),
        ({"items": [{"input": "x"}], "model": "gpt-9"}, "model"),
    ],
)
def test_a_wrong_batch_is_refused(http: httpx.Client, body: dict[str, Any], param: str) -> None:
    answer = http.post(PATH, json=body)
    assert answer.status_code in (400, 404), answer.text
    assert answer.json()["error"]["param"] == param
    assert MAX_BATCH_CHARS < 5 * 16_000


def test_a_batch_that_is_left_is_aborted(http: httpx.Client, pipeline: ScriptedPipeline) -> None:
    pipeline.hangs_after = 0
    with pytest.raises(httpx.ReadTimeout):
        http.post(PATH, json={"items": [{"input": "x"}] * 3}, timeout=1.0)
    assert all(pipeline.was_aborted(request_id) for request_id, _ in pipeline.requests)


class TestPlaces:
    """How much of a batch runs at once."""

    async def at_once(self, admission: Admission, works: int) -> int:
        running = most = done = 0

        async def work() -> None:
            nonlocal running, most, done
            running += 1
            most = max(most, running)
            await asyncio.sleep(0.001)
            running -= 1
            done += 1

        await in_free_places(admission, [work] * works)
        assert done == works
        return most

    async def test_all_of_it_if_there_are_places(self) -> None:
        admission = Admission(AdmissionLimits(max_running=None))
        assert await self.at_once(admission, 5) == 5
        assert admission.running == 0

    async def test_one_by_one_in_the_place_of_the_batch_itself(self) -> None:
        admission = Admission(AdmissionLimits(max_running=1))
        await admission.acquire(asyncio.Event().wait)
        assert await self.at_once(admission, 5) == 1

    async def test_what_waits_has_its_turn_first(self) -> None:
        admission = Admission(AdmissionLimits(max_running=2))
        await admission.acquire(asyncio.Event().wait)
        others = admission.acquire_if_free()
        assert others is not None
        waiting = asyncio.ensure_future(admission.acquire(asyncio.Event().wait))
        await asyncio.sleep(0)
        admission.release(others)
        assert await self.at_once(admission, 3) == 1
        assert await waiting is not None


def test_a_batch_keeps_to_the_server_limits(serve: Any) -> None:
    """Also if its own place is the only one."""
    capabilities = Capabilities.of(SpeechChatPipelineConfig())
    with serve(capabilities, "own", limits=AdmissionLimits(max_running=1)) as (pipeline, base_url):
        pipeline.hangs_after = 0
        answers: list[httpx.Response] = []
        body = {"items": [{"input": f"{n}."} for n in range(4)]}
        asking = threading.Thread(
            target=lambda: answers.append(
                httpx.post(f"{base_url}{PATH}", json=body, trust_env=False, timeout=PATIENCE)
            )
        )
        asking.start()
        while not pipeline.running:
            asking.join(0.01)
        assert len(pipeline.running) == 1
        pipeline.hangs_after = None
        (running,) = pipeline.running.values()
        running.waiter.get_loop().call_soon_threadsafe(running.waiter.set_result, None)
        asking.join(PATIENCE)
        assert answers[0].json()["succeeded"] == 4
