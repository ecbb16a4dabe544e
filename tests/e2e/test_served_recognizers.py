"""Whisper and Qwen3-ASR through ``sgl-omni serve`` and OpenAI's client: formats, streams, batches, aborts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from fleet import Fleet, wait_until
from transcription_runs import recording, tones

from sglang_omni.models.qwen3_asr.tiny_checkpoint import make as make_qwen3_asr
from sglang_omni.models.whisper.tiny_checkpoint import make

pytestmark = pytest.mark.long
SOUNDS = [tones(seed, 1.5 + seed) for seed in range(8)]
FILES = [(f"{seed}.wav", recording(sound)) for seed, sound in enumerate(SOUNDS)]


@pytest.fixture(scope="module")
def whisper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("whisper-served")
    server = Fleet.launch(folder / "log", "--model-path", str(make(folder / "tiny-whisper", seed=3)))
    yield server
    server.stop()


@pytest.fixture
def client(whisper: Fleet) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{whisper.base_url}/v1", api_key="none", max_retries=0, timeout=180)


def transcribe(client: openai.OpenAI, index: int, **options: Any) -> Any:
    model = client.models.list().data[0].id
    return client.audio.transcriptions.create(model=model, file=FILES[index], **options)


def test_all_formats_say_the_same(client: openai.OpenAI) -> None:
    plain = transcribe(client, 5)
    verbose = transcribe(client, 5, response_format="verbose_json")
    assert len(plain.text) > 5
    assert plain.usage.seconds == pytest.approx(6.5, abs=0.01)
    assert (verbose.text, verbose.duration, verbose.task) == (plain.text, plain.usage.seconds, "transcribe")
    assert verbose.language in ("english", "chinese", "german", "spanish", "french", "japanese")
    starts = [segment.start for segment in verbose.segments]
    assert starts == sorted(starts)
    assert len(starts) > 2
    assert all(segment.tokens and segment.end >= segment.start for segment in verbose.segments)
    assert transcribe(client, 5, response_format="text") == plain.text + "\n"
    for kind, arrow in (("srt", ","), ("vtt", ".")):
        subtitles = transcribe(client, 5, response_format=kind)
        assert subtitles.count(" --> ") == len(starts)
        assert f"00:00:{starts[-1]:06.3f}".replace(".", arrow) in subtitles


def test_eight_recordings_at_once_are_as_alone(client: openai.OpenAI) -> None:
    options = {"language": "en", "response_format": "verbose_json"}
    alone = [transcribe(client, index, **options).to_dict() for index in range(8)]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda index: transcribe(client, index, **options).to_dict(), range(8)))
    assert without_logprobs(together) == without_logprobs(alone)


def without_logprobs(answers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rounding depends on the batch; nothing else does."""
    for answer in answers:
        for segment in answer["segments"]:
            del segment["avg_logprob"], segment["no_speech_prob"]
    return answers


@pytest.mark.parametrize("response_format", ["json", "verbose_json"])
def test_streams_join_to_the_whole(client: openai.OpenAI, response_format: Any) -> None:
    for index in (0, 4, 7):
        whole = transcribe(client, index, language="de", response_format="verbose_json")
        events = list(transcribe(client, index, language="de", response_format=response_format, stream=True))
        assert [event.type for event in events[:-1]] == ["transcript.text.delta"] * (len(events) - 1)
        assert events[-1].type == "transcript.text.done"
        assert "".join(event.delta for event in events[:-1]) == events[-1].text == whole.text
        if response_format == "verbose_json":
            assert not any("words" in event.to_dict() for event in events)
            told = [segment for event in events[:-1] for segment in event.to_dict().get("segments", ())]
            assert [segment["text"] for segment in told] == [segment.text for segment in whole.segments]


def test_words_are_told_if_they_are_wanted(client: openai.OpenAI) -> None:
    plain = transcribe(client, 4, language="en", response_format="verbose_json")
    options: dict[str, Any] = {"language": "en", "response_format": "verbose_json"}
    words = transcribe(client, 4, timestamp_granularities=["word"], **options)
    assert words.segments is None
    assert words.text == plain.text
    assert "".join(word.word for word in words.words) == "".join(plain.text.split())
    both = transcribe(client, 4, timestamp_granularities=["word", "segment"], **options)
    assert both.words == words.words
    assert [segment.text for segment in both.segments] == [segment.text for segment in plain.segments]
    events = list(transcribe(client, 4, timestamp_granularities=["word"], stream=True, **options))
    sent = [word for event in events[:-1] for word in event.to_dict().get("words", ())]
    assert sent == [word.to_dict() for word in words.words]


def test_translation_and_prompt(client: openai.OpenAI) -> None:
    model = client.models.list().data[0].id
    translated = client.audio.translations.create(
        model=model, file=FILES[6], prompt="the old house", response_format="verbose_json"
    )
    assert translated.language == "english"
    assert translated.text != transcribe(client, 6).text
    assert transcribe(client, 6, prompt="the old house").text != transcribe(client, 6).text


def test_an_abort_frees_the_server(whisper: Fleet, client: openai.OpenAI) -> None:
    """A recording of ten minutes is heard as it is written, so that its text begins soon."""
    long = ("long.flac", recording(np.tile(tones(1, 60.0), 10), "FLAC"))
    with httpx.stream(
        "POST",
        f"{whisper.base_url}/v1/audio/transcriptions",
        files={"file": long},
        data={"stream": "true", "language": "en", "request_id": "long"},
        timeout=180,
    ) as answer:
        assert answer.status_code == 200
        first = next(line for line in answer.iter_lines() if line.startswith("data: "))
        assert json.loads(first.removeprefix("data: "))["type"] == "transcript.text.delta"
    wait_until(lambda: requests_in(whisper) == 0, 60, "the recording is still transcribed")
    assert transcribe(client, 0, language="en").text


def requests_in(server: Fleet) -> float:
    """Those that the stage has, by what it tells itself."""
    metrics = httpx.get(f"{server.base_url}/metrics", timeout=60).text
    found = re.findall(
        r'^sglang_omni_stage_(?:requests|num_running_reqs|num_queue_reqs)\{.*stage="transcribe".*\} (.*)$',
        metrics,
        re.MULTILINE,
    )
    assert len(found) == 3, metrics
    return sum(map(float, found))


@pytest.mark.parametrize(
    ("options", "param", "said"),
    [
        ({"language": "xx"}, "language", "'xx' is not among the 99"),
        ({"prompt": "word " * 5000}, "prompt", "25000 characters"),
        ({"timestamp_granularities": ["word"], "response_format": "json"}, None, "only with response_format"),
    ],
)
def test_wrong_requests(client: openai.OpenAI, options: Any, param: str | None, said: str) -> None:
    with pytest.raises(openai.BadRequestError, match=said) as caught:
        transcribe(client, 0, **options)
    assert param in (None, caught.value.param)


def test_what_is_no_recording(client: openai.OpenAI) -> None:
    model = client.models.list().data[0].id
    with pytest.raises(openai.BadRequestError, match="not audio"):
        client.audio.transcriptions.create(model=model, file=("a.wav", b"nonsense" * 100))
    quiet = client.audio.transcriptions.create(
        model=model, file=("quiet.wav", recording(np.zeros(32_000, np.float32)))
    )
    assert quiet.text == ""
    with pytest.raises(openai.BadRequestError, match="chat"):
        client.chat.completions.create(model=model, messages=[{"role": "user", "content": "Hi"}])


def test_qwen3_asr(tmp_path: Path) -> None:
    """What is its own: one segment a piece of the recording, and no translation."""
    path = make_qwen3_asr(tmp_path / "tiny-qwen3-asr", seed=1)
    config = tmp_path / "config.yaml"
    config.write_text(
        "config_cls: sglang_omni.models.qwen3_asr.config.Qwen3ASRPipelineConfig\n"
        f"model_path: {path}\n"
        "runtime_overrides: {transcribe: {piece_seconds: 3.0}}\n"
    )
    server = Fleet.launch(tmp_path / "log", "--config", str(config))
    try:
        client = openai.OpenAI(base_url=f"{server.base_url}/v1", api_key="none", max_retries=0, timeout=180)
        options = {"language": "en", "response_format": "verbose_json"}
        alone = [transcribe(client, index, **options).to_dict() for index in range(8)]
        assert [len(answer["segments"]) for answer in alone[:3]] == [1, 1, 2]
        assert (alone[5]["language"], alone[5]["segments"][-1]["end"]) == ("english", 6.5)
        with ThreadPoolExecutor(8) as pool:
            together = list(pool.map(lambda index: transcribe(client, index, **options).to_dict(), range(8)))
        assert together == alone
        assert transcribe(client, 5, language="en", response_format="srt").count(" --> ") == len(
            alone[5]["segments"]
        )
        for response_format in ("json", "verbose_json"):
            events = list(transcribe(client, 5, language="en", response_format=response_format, stream=True))
            deltas = [event.delta for event in events[:-1]]
            assert "".join(deltas) == events[-1].text == alone[5]["text"]
            assert len(deltas) > 10
        with pytest.raises(openai.BadRequestError, match="translation"):
            client.audio.translations.create(model=client.models.list().data[0].id, file=FILES[0])
        with pytest.raises(openai.BadRequestError, match="did you mean 'English'"):
            transcribe(client, 0, language="englich")
    finally:
        server.stop()
