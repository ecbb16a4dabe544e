"""What is accepted is honoured or refused: every field that this server, or one of its pipelines, has no use
for is answered with a 400 that names it, before anything is computed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from sglang_omni.models.qwen3_omni.config import Qwen3OmniPipelineConfig, speech_stages
from sglang_omni.models.speech_chat.config import SpeechChatPipelineConfig
from sglang_omni.serve.models.chat import ChatCompletionRequest
from sglang_omni.serve.models.completions import CompletionRequest
from sglang_omni.serve.models.generate import NativeRequest
from sglang_omni.serve.models.speech import CreateSpeechRequest
from sglang_omni.serve.state import Capabilities

HELLO = {"messages": [{"role": "user", "content": "Hi"}]}
CHAT, SPEECH = "/v1/chat/completions", "/v1/audio/speech"
ALOUD = {"modalities": ["text", "audio"]}


class Served:
    def __init__(self, pipeline: Any, http: httpx.Client) -> None:
        self.pipeline, self.http = pipeline, http

    def refusal(self, path: str, body: dict) -> tuple[str, str, str]:
        """The field, the code and the message of a 400; nothing reached the pipeline."""
        self.pipeline.reset()
        answer = self.http.post(path, json=body)
        assert answer.status_code == 400, answer.text
        assert self.pipeline.requests == []
        error = answer.json()["error"]
        return error["param"], error["code"], error["message"]

    def takes(self, path: str, body: dict) -> httpx.Response:
        answer = self.http.post(path, json=body)
        assert answer.status_code == 200, answer.text
        return answer


@contextmanager
def asked(serve: Any, capabilities: Capabilities, name: str) -> Iterator[Served]:
    with (
        serve(capabilities, name) as (pipeline, base_url),
        httpx.Client(base_url=base_url, trust_env=False, timeout=60) as http,
    ):
        yield Served(pipeline, http)


@pytest.fixture(scope="module")
def speech_chat(serve: Any) -> Iterator[Served]:
    with asked(serve, Capabilities.of(SpeechChatPipelineConfig()), "speech-chat") as served:
        yield served


@pytest.fixture(scope="module")
def qwen(serve: Any) -> Iterator[Served]:
    kind = Qwen3OmniPipelineConfig
    # All that the config says but for the voices, which are a checkpoint's.
    config = SimpleNamespace(
        stages=speech_stages(),
        tasks=kind.tasks,
        input_modalities=kind.input_modalities,
        output_modalities=kind.output_modalities,
        voices=("ethan",),
        request_params=kind.request_params,
    )
    with asked(serve, Capabilities.of(config), "qwen3-omni") as served:
        yield served


@pytest.fixture(scope="module")
def own(serve: Any) -> Iterator[Served]:
    """A pipeline that says nothing of itself."""
    with asked(serve, Capabilities(), "own") as served:
        yield served


@pytest.mark.parametrize(
    ("stage_params", "param", "said"),
    [
        ({"thinker": {"temprature": 0.5, "foo": 1}}, "thinker.temprature", "did you mean 'temperature'?"),
        ({"decode": {"temperature": 0.5}}, "decode.temperature", "takes no parameters"),
        ({"speak": {"pitch": 2}}, "speak.pitch", "takes voice, speed, seed, not 'pitch'"),
        ({"transcribe": {"prompt": "x"}}, "transcribe.prompt", "takes no parameters"),
        ({"speak": {"speed": 2}}, "speak", "only for a spoken answer"),
        ({"spek": {}}, "spek", "did you mean 'speak'?"),
    ],
)
def test_stage_params_of_speech_chat(speech_chat, stage_params, param, said):
    named, code, message = speech_chat.refusal(CHAT, HELLO | {"stage_params": stage_params})
    assert named == f"stage_params.{param}"
    assert said in message
    assert code in ("unknown_parameter", "unsupported_parameter")


@pytest.mark.parametrize(
    ("path", "body"), [("/v1/completions", {"prompt": "x"}), ("/generate", {"text": "x"}), (CHAT, HELLO)]
)
def test_stage_params_on_every_route(speech_chat, qwen, path, body):
    wrong = {"stage_params": {"thinker": {"temprature": 0.5}}}
    for served in (speech_chat, qwen):
        assert served.refusal(path, body | wrong)[0] == "stage_params.thinker.temprature"
        right = {"stage_params": {"thinker": {"temperature": 0.5, "max_new_tokens": 3}, "decode": {}}}
        served.takes(path, body | right)


def test_stage_params_of_speech(speech_chat):
    body = {"input": "Hello."}
    named = speech_chat.refusal(SPEECH, body | {"stage_params": {"thinker": {"temperature": 1}}})[0]
    assert named == "stage_params.thinker.temperature"
    speech_chat.takes(SPEECH, body | {"stage_params": {"speak": {"speed": 2.0}}})


@pytest.mark.parametrize("name", ["talker_temperature", "talker_top_p", "talker_top_k"])
def test_a_talkers_parameters_without_a_talker(speech_chat, qwen, name):
    assert speech_chat.refusal(CHAT, HELLO | {name: 1})[:2] == (name, "unsupported_parameter")
    assert speech_chat.refusal(CHAT, HELLO | ALOUD | {name: 1})[0] == name
    named, _, message = qwen.refusal(CHAT, HELLO | {name: 1})
    assert named == name
    assert "only for a spoken answer" in message
    qwen.takes(CHAT, HELLO | ALOUD | {name: 1})


def test_what_only_speech_has_a_use_for(qwen):
    for stage, own in (("talker", {"top_k": 3}), ("code2wav", {"chunk_size": 3})):
        wanted = {"stage_params": {stage: own}}
        assert qwen.refusal(CHAT, HELLO | wanted)[0] == f"stage_params.{stage}"
        qwen.takes(CHAT, HELLO | ALOUD | wanted)


def test_use_audio_in_video_without_video(speech_chat, qwen):
    assert speech_chat.refusal(CHAT, HELLO | {"use_audio_in_video": True})[0] == "use_audio_in_video"
    speech_chat.takes(CHAT, HELLO | {"use_audio_in_video": False})
    qwen.takes(CHAT, HELLO | {"use_audio_in_video": True})


def test_what_a_pipeline_does_not_say_is_not_refused(own):
    body = HELLO | {"talker_top_k": 3, "use_audio_in_video": True, "stage_params": {"any": {"x": 1}}}
    own.takes(CHAT, body)
    assert own.pipeline.last.params["stage_params"] == {"any": {"x": 1}}
    own.takes(SPEECH, {"input": "Hello.", "language": "fr", "seed": 3, "voice": "me"})
    assert own.pipeline.last.params["language"] == "fr"
    own.takes(SPEECH, {"input": "Hello.", "temperature": 0, "max_tokens": 7})
    params = own.pipeline.last.params
    assert (params["temperature"], params["max_new_tokens"]) == (0, 7)


@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        ({"modalities": ["text", "text"]}, "modalities", "names 'text' twice"),
        ({"service_tier": "flex"}, "service_tier", '"auto" or "default"'),
        ({"prediction": {}}, "prediction", "not supported here; leave it out"),
        ({"request_id": "a b"}, "request_id", "visible ASCII characters only"),
        (
            {"messages": [{"role": "user", "content": "x", "tool_call_id": "c"}]},
            "messages[0].tool_call_id",
            "a user message has none",
        ),
        (
            {"messages": [{"role": "assistant", "content": "x", "refusal": "y"}]},
            "messages[0].refusal",
            "instead of content",
        ),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [{"type": "video_url", "video_url": {"url": "data:,", "detail": "low"}}],
                    }
                ]
            },
            "messages[0].content[0].video_url.detail",
            "unknown field",
        ),
    ],
)
def test_fields_of_a_chat(qwen, fields, param, said):
    named, _, message = qwen.refusal(CHAT, HELLO | fields)
    assert named == param
    assert said in message


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/completions", {"prompt": "x", "stream_options": {}}, "stream_options"),
        ("/v1/completions", {"prompt": "x", "max_new_tokens": 4}, "max_new_tokens"),
        ("/generate", {"text": "x", "rid": "a", "request_id": "b"}, "rid"),
        (
            "/generate",
            {"text": "x", "sampling_params": {"min_new_tokens": 4}},
            "sampling_params.min_new_tokens",
        ),
        (
            "/generate",
            {"text": "x", "sampling_params": {"skip_special_tokens": False}},
            "sampling_params.skip_special_tokens",
        ),
        (SPEECH, {"input": "x", "temperature": 1}, "temperature"),
        (SPEECH, {"input": "x", "max_tokens": 9}, "max_tokens"),
        (SPEECH, {"input": "x", "max_tokens": 9, "max_new_tokens": 8}, "max_new_tokens"),
        (SPEECH, {"input": "x", "stream": True, "timings": True}, "timings"),
        ("/abort_request", {"rid": "a", "request_id": "b"}, "rid"),
    ],
)
def test_fields_of_other_routes(speech_chat, path, body, param):
    assert speech_chat.refusal(path, body)[0] == param


@pytest.mark.parametrize(
    ("form", "param", "said"),
    [
        ({"stream": "true", "response_format": "srt"}, "stream", "only with json, text, verbose_json"),
        ({"temperature": "1.5"}, "temperature", "must be at most 1"),
        ({"include[]": "logprobs"}, "include", "'logprobs' is not supported here; leave it out"),
        ({"chunking_strategy[type]": "server_vad"}, "chunking_strategy", 'the only value is "auto"'),
        ({"known_speaker_names[]": "Ann"}, "known_speaker_names[]", "unknown field"),
        (
            {"timestamp_granularities[]": "letter"},
            "timestamp_granularities[0]",
            "must be 'segment' or 'word'",
        ),
        ({"languag": "en"}, "languag", "did you mean 'language'?"),
        ({"timestamp_granularities[]": "segment"}, "timestamp_granularities[]", "only with response_format"),
        ({"language": ["en", "fr"]}, "language", "more than once"),
    ],
)
def test_fields_of_a_transcription(speech_chat, form, param, said):
    answer = speech_chat.http.post("/v1/audio/transcriptions", files={"file": b"RIFF"}, data=form)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == param
    assert said in error["message"]


def test_a_second_recording_is_not_dropped(speech_chat):
    files = [("file", b"RIFF"), ("file", b"RIFF")]
    answer = speech_chat.http.post("/v1/audio/transcriptions", files=files)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "file")


def test_a_null_is_a_field_left_out(qwen, speech_chat):
    """OpenAI's clients send nulls for what their callers left out."""
    for served, path, model, body in (
        (qwen, CHAT, ChatCompletionRequest, HELLO),
        (qwen, "/v1/completions", CompletionRequest, {"prompt": "x"}),
        (qwen, "/generate", NativeRequest, {"text": "x"}),
        (speech_chat, SPEECH, CreateSpeechRequest, {"input": "x"}),
    ):
        nulls = {name: None for name in model.model_fields if name not in body}
        plain = served.takes(path, body)
        assert served.takes(path, body | nulls).headers["content-type"] == plain.headers["content-type"]
    nested = (
        HELLO | ALOUD | {"audio": {"voice": None, "format": None}, "stream_options": None, "stream": None}
    )
    qwen.takes(CHAT, nested)


def test_special_tokens_of_a_prompt_are_parsed_on_demand(qwen, speech_chat, own):
    for served in (qwen, speech_chat, own):
        for path, body in (("/v1/completions", {"prompt": "x"}), ("/generate", {"text": "x"})):
            served.takes(path, body | {"parse_special_tokens": False})
            assert "parse_special_tokens" not in served.pipeline.last.params
            served.takes(path, body | {"parse_special_tokens": True})
            assert served.pipeline.last.params["parse_special_tokens"] is True
            assert served.refusal(path, body | {"parse_special_tokens": 1})[0] == "parse_special_tokens"
    assert qwen.refusal(CHAT, HELLO | {"parse_special_tokens": True})[0] == "parse_special_tokens"


def test_no_limit_on_top_k(qwen):
    for value in (0, -1, 5):
        qwen.takes(CHAT, HELLO | {"top_k": value})
        assert qwen.pipeline.last.params["top_k"] == value


def test_a_refusal_is_what_was_said(qwen):
    turns = [*HELLO["messages"], {"role": "assistant", "content": None, "refusal": "No."}, *HELLO["messages"]]
    qwen.takes(CHAT, {"messages": turns})
    assert qwen.pipeline.last.inputs["messages"][1] == {"role": "assistant", "content": "No."}


def test_the_timings_of_a_speech_file(speech_chat):
    answer = speech_chat.takes(SPEECH, {"input": "x", "timings": True})
    assert json.loads(answer.headers["x-sglang-omni-timings"]) == speech_chat.pipeline.timings("")
    assert "x-sglang-omni-timings" not in speech_chat.takes(SPEECH, {"input": "x"}).headers


def test_timings_are_in_every_kind_of_answer(qwen):
    streamed = qwen.takes("/generate", {"text": "x", "timings": True, "stream": True})
    last = json.loads(streamed.text.split("\n\n")[-3].removeprefix("data: "))
    assert last["meta_info"]["timings"] == qwen.pipeline.timings("")
    several = qwen.takes("/v1/completions", {"prompt": ["a", "b"], "timings": True}).json()
    assert [choice["timings"] for choice in several["choices"]] == [qwen.pipeline.timings("")] * 2
    assert "timings" not in several


@pytest.mark.parametrize("reported", [True, False])
def test_streamed_token_ids_are_those_of_the_whole_answer(qwen, reported):
    """Also of a pipeline whose chunks have none: then all are in the last event."""
    qwen.pipeline.reset()
    qwen.pipeline.sends_tokens = reported
    whole = qwen.takes(CHAT, HELLO | {"return_token_ids": True}).json()["choices"][0]["token_ids"]
    text = qwen.takes(CHAT, HELLO | {"return_token_ids": True, "stream": True}).text
    events = [json.loads(line[6:]) for line in text.splitlines() if line and "DONE" not in line]
    streamed = [event["choices"][0].get("token_ids", []) for event in events]
    assert [token for tokens in streamed for token in tokens] == whole == [1, 2, 3]
    assert (streamed[0] == [1]) is reported
    plain = qwen.takes(CHAT, HELLO | {"stream": True}).text
    assert "token_ids" not in plain
