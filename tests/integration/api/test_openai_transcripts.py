"""OpenAI's own Python client, synchronous and asynchronous, and ours: transcripts."""

from __future__ import annotations

import openai
import pytest

from sglang_omni.client import Client, RequestError, transcription_request
from sglang_omni.serve.state import Capabilities

FILE = ("speech.wav", b"RIFF....")
WORDS = [
    {"word": "Hello", "start": 0.0, "end": 0.5},
    {"word": "there", "start": 0.5, "end": 3661.25},
]


def test_transcription(api, pipeline):
    answer = api.audio.transcriptions.create(model="scripted", file=FILE)
    assert answer.to_dict() == {"text": "Hello.", "usage": {"type": "duration", "seconds": 1.5}}
    assert pipeline.last.inputs == {"audio": b"RIFF...."}
    assert pipeline.last.metadata["task"] == "transcription"
    verbose = api.audio.transcriptions.create(
        model="scripted",
        file=FILE,
        language="en",
        response_format="verbose_json",
        timestamp_granularities=["segment"],
    )
    assert (verbose.language, verbose.duration, verbose.segments[1].text) == ("english", 1.5, " there")
    assert verbose.usage.seconds == 1.5
    assert "timings" not in verbose.to_dict()
    assert pipeline.last.params["language"] == "en"
    assert api.audio.transcriptions.create(model="scripted", file=FILE, response_format="text") == "Hello.\n"


def test_timings_of_a_transcription_that_asks_for_them(api):
    answer = api.audio.transcriptions.create(model="scripted", file=FILE, extra_body={"timings": True})
    assert answer.to_dict()["timings"] == {"thinker": {"work": 0.25, "wait": 0.5}}


def test_subtitles(api):
    srt = api.audio.transcriptions.create(model="scripted", file=FILE, response_format="srt")
    assert srt == ("1\n00:00:00,000 --> 00:00:00,500\nHello\n\n2\n00:00:00,500 --> 01:01:01,250\nthere\n\n")
    vtt = api.audio.transcriptions.create(model="scripted", file=FILE, response_format="vtt")
    assert vtt.startswith("WEBVTT\n\n00:00:00.000 --> 00:00:00.500\nHello\n\n")


@pytest.fixture
def words(pipeline):
    """The pipeline tells the words of each segment."""
    pipeline.words_of_segments = [[word] for word in WORDS]


def test_words(api, pipeline, words):
    answer = api.audio.transcriptions.create(
        model="scripted", file=FILE, response_format="verbose_json", timestamp_granularities=["word"]
    )
    assert [word.to_dict() for word in answer.words] == WORDS
    assert answer.segments is None
    assert pipeline.last.params["word_timestamps"] is True
    both = api.audio.transcriptions.create(
        model="scripted",
        file=FILE,
        response_format="verbose_json",
        timestamp_granularities=["word", "segment"],
    )
    assert len(both.words) == len(both.segments) == 2
    assert "words" not in both.segments[0].to_dict()


def test_what_guides_a_transcript(api, pipeline):
    api.audio.transcriptions.create(
        model="scripted", file=FILE, prompt="Names: Ann", temperature=0.4, chunking_strategy="auto"
    )
    assert pipeline.last.params == {"prompt": "Names: Ann", "temperature": 0.4, "stream": False}
    # What changes nothing does not bother a pipeline that may not know it.
    api.audio.transcriptions.create(model="scripted", file=FILE, prompt="", temperature=0)
    assert pipeline.last.params == {"stream": False}


def test_a_streamed_transcript(api, pipeline):
    events = list(api.audio.transcriptions.create(model="scripted", file=FILE, stream=True))
    assert [event.type for event in events] == ["transcript.text.delta"] * 3 + ["transcript.text.done"]
    assert [event.delta for event in events[:-1]] == ["Hel", "lo", "."]
    assert events[-1].text == "Hello."
    assert events[-1].usage.to_dict() == {"type": "duration", "seconds": 1.5}
    assert pipeline.last.params["stream"] is True


@pytest.mark.asyncio
async def test_an_asynchronous_client(base_url, pipeline):
    async with openai.AsyncOpenAI(base_url=f"{base_url}/v1", api_key="none", max_retries=0) as api:
        answer = await api.audio.transcriptions.create(model="scripted", file=FILE)
        assert answer.text == "Hello."
        stream = await api.audio.transcriptions.create(model="scripted", file=FILE, stream=True)
        assert [event.type async for event in stream][-1] == "transcript.text.done"


def test_a_stream_that_fails_before_its_first_text_has_its_status(api, pipeline):
    pipeline.error = RequestError("no audio", param="file", code="invalid_audio")
    with pytest.raises(openai.BadRequestError, match="no audio"):
        list(api.audio.transcriptions.create(model="scripted", file=FILE, stream=True))
    pipeline.error_after = 2
    with pytest.raises(openai.APIError, match="no audio") as failed:
        list(api.audio.transcriptions.create(model="scripted", file=FILE, stream=True))
    assert failed.value.code == "invalid_audio"


def test_a_stream_that_is_left_is_aborted(api, pipeline):
    pipeline.hangs_after = 1
    stream = api.audio.transcriptions.create(model="scripted", file=FILE, stream=True)
    assert next(stream).delta == "Hel"
    stream.close()
    assert pipeline.was_aborted(pipeline.requests[-1][0])


def test_a_model_without_times_of_words(serve):
    """It is refused by the name of OpenAI's field, not by the pipeline's."""
    with serve(Capabilities(request_params={}), "own") as (_, base_url):
        api = openai.OpenAI(base_url=f"{base_url}/v1", api_key="none", max_retries=0)
        with pytest.raises(openai.BadRequestError, match="times of words") as refused:
            api.audio.transcriptions.create(
                model="own", file=FILE, response_format="verbose_json", timestamp_granularities=["word"]
            )
        assert refused.value.param == "timestamp_granularities[]"
        for given in ({"prompt": "x"}, {"temperature": 0.5}):
            with pytest.raises(openai.BadRequestError, match="of no effect"):
                api.audio.transcriptions.create(model="own", file=FILE, **given)


@pytest.mark.asyncio
async def test_our_client(base_url, pipeline, words):
    async with Client(base_url) as client:
        result = await client.transcribe(b"RIFF", prompt="Ann", temperature=0.5, word_timestamps=True)
        assert [vars(word) for word in result.words] == WORDS
        assert [len(segment.words) for segment in result.segments] == [1, 1]
        assert pipeline.last.params["prompt"] == "Ann"
        assert pipeline.last.params["temperature"] == 0.5

        request = transcription_request(b"RIFF", word_timestamps=True, stream=True)
        *parts, whole = [chunk async for chunk in client.generate(request)]
    # This pipeline tells the segments with its end only; they come before it, without text.
    *texts, segments = parts
    assert [part.text for part in texts] == ["Hel", "lo", "."]
    assert (segments.text, [vars(s.words[0]) for s in segments.segments]) == ("", WORDS)
    assert (whole.text, whole.language, whole.duration) == ("Hello.", "en", 1.5)
    assert whole.finish_reason == "stop"
