"""Conversion of requests for stages, and of stages' results to chunks and results."""

from __future__ import annotations

import asyncio
import base64
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from sglang_omni.client import (
    Client,
    ClientError,
    GenerateChunk,
    GenerateRequest,
    Message,
    NoAudioError,
    SamplingParams,
    transcription_request,
)
from sglang_omni.client.http.chunks import delta_chunk
from sglang_omni.client.http.connection import HttpConnection
from sglang_omni.generation.answer import Delivered, read_chunk, read_result, token_part
from sglang_omni.generation.audio import decode_pcm, decode_wav
from sglang_omni.generation.request import to_omni_request
from sglang_omni.proto import CompleteMessage, RequestError, StreamMessage


class Coordinator:
    """Only what a coordinator must have."""

    def __init__(self, *messages, result=None):
        self.messages, self.result = messages, result

    async def submit(self, request_id, request):
        return self.result

    async def stream(self, request_id, request):
        for message in self.messages:
            yield message


def text(value, **more):
    return StreamMessage("r", "thinker", {"modality": "text", "text": value, **more})


def done(result):
    return CompleteMessage("r", "decode", True, result)


def test_request_as_stages_read_it():
    request = GenerateRequest(
        model="m",
        messages=[Message("user", "Hi")],
        sampling=SamplingParams(temperature=0.0, top_k=5, stop=["x"], max_new_tokens=9),
        stage_sampling={"talker": SamplingParams(temperature=0.5, top_p=0.9)},
        stage_params={"talker": {"temperature": 0.7}, "code2wav": {"chunking": "reference"}},
        extra_params={"voice": "v"},
        stream=False,
        max_tokens=4,
        output_modalities=["text", "audio"],
        metadata={"session": "s"},
        timeout=3.0,
    )
    omni = to_omni_request(request)
    assert omni.inputs == {"messages": [{"role": "user", "content": "Hi"}]}
    assert omni.params == {
        "temperature": 0.0,
        "top_k": 5,
        "stop": ["x"],
        "max_new_tokens": 4,
        "stage_params": {"talker": {"temperature": 0.7, "top_p": 0.9}, "code2wav": {"chunking": "reference"}},
        "voice": "v",
        "stream": False,
    }
    assert omni.metadata == {
        "task": "chat",
        "session": "s",
        "model": "m",
        "output_modalities": ["text", "audio"],
        "timeout": 3.0,
    }


@pytest.mark.parametrize(
    ("fields", "inputs", "task"),
    [
        ({"prompt": "p"}, {"prompt": "p"}, "completion"),
        ({"prompt": "p", "metadata": {"task": "speech"}}, {"text": "p"}, "speech"),
        ({"prompt": {"text": "p", "references": []}}, {"text": "p", "references": []}, "completion"),
        ({"prompt_token_ids": [1]}, {"prompt_token_ids": [1]}, "completion"),
        ({"audio": b"RIFF"}, {"audio": b"RIFF"}, "transcription"),
    ],
)
def test_inputs_and_task(fields, inputs, task):
    omni = to_omni_request(GenerateRequest(**fields))
    assert omni.inputs == inputs
    assert omni.metadata["task"] == task


def test_a_transcription_says_what_is_set():
    request = transcription_request(
        b"RIFF", temperature=0.0, word_timestamps=False, translate=True, model="m"
    )
    assert (request.extra_params, request.task, request.model) == ({"temperature": 0.0}, "translation", "m")
    with pytest.raises(TypeError, match="tempo"):
        transcription_request(b"RIFF", tempo=1)


def test_several_terminal_stages_become_one_chunk():
    chunk = read_result(
        "r",
        {
            "code2wav": {"audio_data": [0.0, 0.5], "sample_rate": 16_000, "text": "spoken"},
            "decode": {"text": "written", "finish_reason": "length", "usage": {"prompt_tokens": 1}},
        },
    )
    assert (chunk.text, chunk.audio_data, chunk.sample_rate) == ("written", [0.0, 0.5], 16_000)
    assert (chunk.finish_reason, chunk.usage.prompt_tokens) == ("length", 1)


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        ("plain", "plain"),
        ({"text": "t"}, "t"),
        ({"text": {"nested": 1}}, ""),
        (3.5, "3.5"),
        (None, ""),
        (GenerateChunk("other", text="own"), "own"),
    ],
)
def test_text_of_any_result(result, expected):
    chunk = read_result("r", result)
    assert (chunk.request_id, chunk.text, chunk.finish_reason) == ("r", expected, "stop")


def test_users_own_result_is_kept():
    chunk = read_result("r", {"score": 3})
    assert (chunk.text, chunk.result) == ("", {"score": 3})


class Behind(Coordinator):
    """Its caller reads each of these batches at once."""

    async def stream_batches(self, request_id, request):
        for batch in self.messages:
            yield batch


async def test_text_that_came_at_once_is_one_part_and_nothing_of_it_is_lost():
    spoken = StreamMessage("r", "talker", {"audio_data": np.zeros(3, np.float32), "sample_rate": 8000})
    own = [4]
    client = Client(
        Behind(
            [
                text("a", token_ids=[1], logprobs=LOGPROBS[:1]),
                text("b", token_ids=[2], logprobs=LOGPROBS[1:]),
            ],
            [
                text("c"),
                spoken,
                text("d", token_ids=own),
                text("e", token_ids=[5], finish_reason="length"),
                text("f", reasoning="because"),
            ],
            # A pipeline's own text stays as it came.
            [text("g"), text("h")],
            done({"text": "abcdefghi"}),
        )
    )
    parts = [part async for part in client.generate(GenerateRequest(prompt="p"))]
    assert [part.text for part in parts] == ["ab", "c", "", "de", "f", "g", "h", "abcdefghi"]
    assert [part.token_ids for part in parts[:2]] == [[1, 2], []]
    assert [token.token_id for token in parts[0].logprobs] == [1, 2]
    assert own == [4]
    assert [part.modality for part in parts] == ["text", "text", "audio", *["text"] * 5]
    assert [part.finish_reason for part in parts] == [None] * 7 + ["length"]


LOGPROBS = [{"token": "a", "token_id": 1, "logprob": -0.5}, {"token": "b", "token_id": 2, "logprob": -1.0}]


@pytest.mark.parametrize(("interval", "expected"), [(1, list("abcdefg")), (3, ["a", "bcd", "efg"])])
async def test_a_part_has_as_many_tokens_as_the_request_wants_after_the_first(interval, expected):
    messages = [text(letter, token_ids=[index]) for index, letter in enumerate("abcdefg")]
    client = Client(Coordinator(*messages, done({"text": "abcdefgh"})))
    request = GenerateRequest(prompt="p", stream_interval=interval)
    chunks = [chunk async for chunk in client.completion_stream(request)]
    assert [chunk.text for chunk in chunks] == [*expected, "h"]


async def test_too_few_tokens_for_a_part_come_before_the_end():
    messages = [text(letter, token_ids=[index]) for index, letter in enumerate("abcd")]
    for end in (done({"text": "abcd"}), None):
        client = Client(Coordinator(*messages, *filter(None, [end])))
        chunks = [
            chunk async for chunk in client.completion_stream(GenerateRequest(prompt="p", stream_interval=9))
        ]
        assert [chunk.text for chunk in chunks] == ["a", "bcd", ""]


async def test_streamed_text_is_not_reported_twice():
    client = Client(Coordinator(text("Hel"), text("lo"), done({"text": "Hello!", "finish_reason": "stop"})))
    chunks = [chunk async for chunk in client.completion_stream(GenerateRequest(prompt="p"))]
    assert [chunk.text for chunk in chunks] == ["Hel", "lo", "!"]
    assert (await client.completion(GenerateRequest(prompt="p"))).text == "Hello!"


async def test_streamed_audio_is_not_reported_twice():
    audio = np.arange(6, dtype=np.float32) / 10

    def piece(samples):
        chunk = {"modality": "audio", "audio_data": samples, "sample_rate": 8_000}
        return StreamMessage("r", "speak", chunk, modality="audio")

    client = Client(Coordinator(piece(audio[:2]), piece(audio[2:4]), done({"audio_data": audio})))
    request = GenerateRequest(prompt="p", metadata={"task": "speech"})
    chunks = [chunk async for chunk in client.generate(request)]
    assert [chunk.samples.tolist() for chunk in chunks] == [
        pytest.approx(samples.tolist()) for samples in (audio[:2], audio[2:4], audio)
    ]
    parts = [part async for part in client.transport.parts(request)]
    assert [part.samples.tolist() for part in parts] == [
        pytest.approx(audio[a : a + 2].tolist()) for a in (0, 2, 4)
    ]


@pytest.mark.parametrize("result", [{"text": "hello"}, {"text": ""}, {}, {"text": "hello", "usage": None}])
async def test_a_part_that_says_why_it_ended_is_still_a_part(result):
    """Its text is new, and the end is told once, with the whole result."""
    last = text("llo", finish_reason="length", usage={"prompt_tokens": 1, "completion_tokens": 2})
    client = Client(Coordinator(text("he"), last, done(result)))
    chunks = [chunk async for chunk in client.completion_stream(GenerateRequest(prompt="p"))]
    assert "".join(chunk.text for chunk in chunks) == "hello"
    assert [chunk.finish_reason for chunk in chunks] == [None, None, "length"]
    completion = await client.completion(GenerateRequest(prompt="p"))
    assert (completion.text, completion.finish_reason) == ("hello", "length")
    assert completion.usage.total_tokens == 3


async def test_sound_of_a_part_that_says_why_it_ended_is_heard():
    audio = np.arange(6, dtype=np.float32) / 8

    def piece(samples, **more):
        return StreamMessage("r", "speak", {"audio_data": samples, "sample_rate": 8_000, **more})

    client = Client(Coordinator(piece(audio[:2]), piece(audio[2:], finish_reason="stop"), done({})))
    request = GenerateRequest(prompt="p", metadata={"task": "speech"})
    chunks = [c async for c in client.completion_stream(request, audio_format="pcm16")]
    pieces = [c.audio_b64 for c in chunks]
    assert [c.audio_seconds * 8_000 for c in chunks] == [2, 4, 0]
    assert decode_pcm(base64.b64decode("".join(filter(None, pieces)))).tolist() == audio.tolist()


async def test_a_stream_without_a_result_ends_with_what_was_streamed():
    client = Client(Coordinator(text("he"), text("llo", finish_reason="length")))
    chunks = [chunk async for chunk in client.generate(GenerateRequest(prompt="p"))]
    assert [(chunk.text, chunk.finish_reason) for chunk in chunks] == [
        ("he", None),
        ("llo", None),
        ("hello", "length"),
    ]


async def test_whole_audio_of_another_rate_than_the_streamed_is_cut_at_the_same_time():
    """Whatever the rates, a second that was streamed is not told again."""
    streamed = StreamMessage("r", "speak", {"audio_data": np.zeros(8_000, np.float32), "sample_rate": 8_000})
    whole = done({"audio_data": np.ones(32_000, np.float32), "sample_rate": 16_000})
    client = Client(Coordinator(streamed, whole))
    result = await client.completion(GenerateRequest(prompt="p"))
    samples, rate = decode_wav(base64.b64decode(result.audio.data))
    assert (rate, len(samples)) == (8_000, 16_000)


async def test_words_are_timed_from_where_the_answer_begins():
    """Each chunk's count from its own sound, a result's from all of it; and none is told twice."""
    one, two, three = ({"word": word, "start": 0.25, "end": 0.5} for word in ("one", "two", "three"))
    sound = {"audio_data": np.zeros(8_000, np.float32), "sample_rate": 8_000}
    streamed = [StreamMessage("r", "speak", {**sound, "words": words}) for words in ([one], [two])]
    whole = done(
        {**sound, "audio_data": None, "words": [one, two, {"word": "three", "start": 1.75, "end": 2}]}
    )
    client = Client(Coordinator(*streamed, whole))
    parts = [part async for part in client.transport.parts(GenerateRequest(prompt="p"))]
    found = [[(each.word, each.start, each.end) for each in part.words] for part in parts]
    assert found == [[("one", 0.25, 0.5)], [("two", 1.25, 1.5)], [("three", 1.75, 2.0)]]
    assert [each.word for each in (await client.transport.whole(GenerateRequest(prompt="p"))).words] == [
        "one",
        "two",
        "three",
    ]
    merged = {"thinker": {"text": "t"}, "speak": {**sound, "words": [three]}}
    client = Client(Coordinator(result=merged))
    assert [
        each.start for each in (await client.transport.whole(GenerateRequest(prompt="p", stream=False))).words
    ] == [0.25]


def test_final_text_that_differs_from_the_streamed_adds_nothing():
    delivered = Delivered()
    delivered.add(GenerateChunk("r", text=" Paris"))
    assert delivered.rest_of(GenerateChunk("r", text="Paris", finish_reason="stop")).text == ""


async def test_aborted_request_ends_with_what_there_was():
    class Aborted(Coordinator):
        async def stream(self, request_id, request):
            yield text("Hel")
            raise asyncio.CancelledError

        async def submit(self, request_id, request):
            raise asyncio.CancelledError

    client = Client(Aborted())
    result = await client.completion(GenerateRequest(prompt="p"))
    assert (result.text, result.finish_reason) == ("Hel", "abort")
    result = await client.completion(GenerateRequest(prompt="p", stream=False))
    assert (result.text, result.finish_reason) == ("", "abort")


async def test_stream_without_an_end_is_an_error():
    with pytest.raises(ClientError, match="no result"):
        await Client(Coordinator()).completion(GenerateRequest(prompt="p"))


async def test_speech_without_audio_is_an_error():
    with pytest.raises(NoAudioError, match="try another seed"):
        await Client(Coordinator(result={"text": "only"})).speech(GenerateRequest(prompt="p"))


async def test_id_in_use_is_the_callers_fault():
    class Full(Coordinator):
        async def submit(self, request_id, request):
            raise ValueError(f"request {request_id!r} already exists")

    with pytest.raises(RequestError, match="'r1' already exists") as caught:
        await Client(Full()).completion(GenerateRequest(prompt="p", stream=False), request_id="r1")
    assert (caught.value.status, caught.value.param) == (409, "request_id")


def test_sampling_params_leave_out_what_is_not_set():
    assert SamplingParams().to_dict() == {}
    assert SamplingParams(temperature=0, seed=0, ignore_eos=True).to_dict() == {
        "temperature": 0,
        "seed": 0,
        "ignore_eos": True,
    }


def test_an_event_with_several_answers_is_the_first_ones():
    choices = [{"index": index, "delta": {"content": text}} for index, text in enumerate(("Paris", "Rome"))]
    assert delta_chunk("r", {"choices": choices}).text == "Paris"
    assert delta_chunk("r", {"choices": choices[1:]}).text == ""


async def test_tokens_without_text_are_not_lost_over_http(monkeypatch):
    """The text of a token may be held back: it may begin a stop text."""

    @asynccontextmanager
    async def opened(*args, **kwargs):
        yield SimpleNamespace(headers={})

    async def events(response):
        for tokens, text in (([1], "a"), ([2], ""), ([3], ""), ([4], "bc")):
            yield {"choices": [{"index": 0, "delta": {"content": text}, "token_ids": tokens}]}
        yield {"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]}
        yield {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 4}}

    monkeypatch.setattr(HttpConnection, "open", opened)
    monkeypatch.setattr("sglang_omni.client.http.transport.events_of", events)
    async with Client("http://127.0.0.1:1") as client:
        request = GenerateRequest(messages=[Message("user", "Hi")])
        *parts, whole = [chunk async for chunk in client.generate(request)]
    assert [part.token_ids for part in parts] == [[1], [2], [3], [4]]
    assert (whole.token_ids, whole.text, whole.finish_reason) == ([1, 2, 3, 4], "abc", "length")
    assert whole.usage.total_tokens == 5


@pytest.mark.parametrize(
    ("data", "is_token"),
    [
        ({"modality": "text", "text": "é", "token_ids": [3]}, True),
        ({"modality": "text", "text": "", "token_ids": []}, True),
        ({"modality": "audio", "text": "a", "token_ids": [3]}, False),
        ({"modality": "text", "text": 5, "token_ids": [3]}, False),
        ({"modality": "text", "text": "a", "token_ids": np.array([3])}, False),
        ({"modality": "text", "text": "a", "token_ids": [3], "logprobs": []}, False),
        ({"text": "a", "token_ids": [3]}, False),
        ("a", False),
    ],
)
def test_a_token_is_read_as_any_chunk(data, is_token):
    part = token_part("r", data, "thinker")
    assert (part is not None) == is_token
    if part is not None:
        assert part == replace(read_chunk("r", data), stage_name="thinker")
