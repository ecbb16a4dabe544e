"""The published Whisper and Qwen3-ASR, each served by its id: what transformers hears, in all formats, in
streams and in batches. Names, configs and vocabularies are as published, weights random."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import published_recognizers
import pytest
from published_recognizers import QWEN3_ASR, WHISPER
from published_server import client_of, served, serving
from qwen3_asr_twins import Qwen3ASRTwins, without_loops
from served_process import ServedProcess
from transcription_runs import recording, tones
from waiting import wait_until
from whisper_twins import WhisperTwins

from sglang_omni.models.qwen3_asr.components.answer import TEXT_MARK

pytestmark = pytest.mark.long
SOUNDS = [tones(seed, 1.5 + seed) for seed in range(8)]
# One is longer than Whisper's window, with silence in it.
LONG = 5
SOUNDS[LONG] = np.concatenate([SOUNDS[0], np.zeros(472_000, np.float32), tones(20, 4.0)])
FILES = [(f"{seed}.wav", recording(sound)) for seed, sound in enumerate(SOUNDS)]
# The authors' limit of a text's bytes for each compressed one.
MOST_REPETITIVE = 2.4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With Whisper's repository. Its texts are shorter than published ones."""
    path = tmp_path_factory.mktemp("whisper-served")
    published_recognizers.whisper(path / "repository", seed=3, max_target_positions=64)
    return path


@pytest.fixture(scope="module")
def whisper(folder: Path) -> Iterator[ServedProcess]:
    with serving(folder, WHISPER, folder / "repository") as (server, _):
        yield server


@pytest.fixture
def client(whisper: ServedProcess) -> openai.OpenAI:
    return client_of(whisper)


def transcribe(client: openai.OpenAI, index: int, model: str = WHISPER, **options: Any) -> Any:
    return client.audio.transcriptions.create(model=model, file=FILES[index], **options)


def repetitiveness(text: str) -> float:
    return len(text.encode()) / len(zlib.compress(text.encode()))


def test_what_is_heard_is_what_transformers_hears(folder: Path, client: openai.OpenAI) -> None:
    """With openai's defaults: languages, times, and repetitive texts written again; and translated."""
    twins = WhisperTwins(folder / "repository")
    heard, again = (0, 2, 3, LONG), set()
    for index in heard:
        right = twins.expected(SOUNDS[index], task="transcribe")
        text = twins.text([token for _, _, tokens in right for token in tokens])
        verbose = transcribe(client, index, response_format="verbose_json")
        if is_greedy(verbose, right):
            assert verbose.text == text
        else:
            again.add(index)
        # Windows of the long one are not.
        assert (index in again) == (index != LONG and repetitiveness(text) > MOST_REPETITIVE), index
    assert 0 < len(again) < len(heard)
    translations = [
        client.audio.translations.create(model=WHISPER, file=FILES[index], response_format="verbose_json")
        for index in range(2)
    ]
    assert any(
        is_greedy(translation, twins.expected(SOUNDS[index], task="translate"))
        for index, translation in enumerate(translations)
    )


def is_greedy(verbose: Any, right: list[tuple[float, float, list[int]]]) -> bool:
    """Checks an answer against transformers', unless a window was written again."""
    segments = verbose.to_dict()["segments"]
    if {segment["temperature"] for segment in segments} != {0.0}:
        return False
    assert [(each["start"], each["end"], each["tokens"]) for each in segments] == right
    return True


def test_all_formats_say_the_same(client: openai.OpenAI) -> None:
    plain = transcribe(client, LONG)
    verbose = transcribe(client, LONG, response_format="verbose_json")
    assert len(plain.text) > 5
    assert plain.usage.seconds == len(SOUNDS[LONG]) / 16_000
    assert (verbose.text, verbose.duration, verbose.task) == (plain.text, plain.usage.seconds, "transcribe")
    assert verbose.language in ("english", "chinese", "german", "spanish", "french", "japanese")
    starts = [segment.start for segment in verbose.segments]
    assert starts == sorted(starts)
    assert len(starts) > 2
    assert all(segment.tokens and segment.end >= segment.start for segment in verbose.segments)
    assert transcribe(client, LONG, response_format="text") == plain.text + "\n"
    for kind, arrow in (("srt", ","), ("vtt", ".")):
        subtitles = transcribe(client, LONG, response_format=kind)
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
            reported = [segment for event in events[:-1] for segment in event.to_dict().get("segments", ())]
            assert [segment["text"] for segment in reported] == [segment.text for segment in whole.segments]


def test_words_are_reported_if_they_are_wanted(client: openai.OpenAI) -> None:
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
    translated = client.audio.translations.create(
        model=WHISPER, file=FILES[6], prompt="the old house", response_format="verbose_json"
    )
    assert translated.language == "english"
    assert translated.text != transcribe(client, 6).text
    assert transcribe(client, 6, prompt="the old house").text != transcribe(client, 6).text


def test_an_abort_frees_the_server(whisper: ServedProcess, client: openai.OpenAI) -> None:
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
    wait_until(lambda: requests_in(whisper) == 0, "the recording is still transcribed")
    assert transcribe(client, 0, language="en").text


def requests_in(server: ServedProcess) -> float:
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
    with pytest.raises(openai.BadRequestError, match="not audio"):
        client.audio.transcriptions.create(model=WHISPER, file=("a.wav", b"nonsense" * 100))
    quiet = client.audio.transcriptions.create(
        model=WHISPER, file=("quiet.wav", recording(np.zeros(32_000, np.float32)))
    )
    assert quiet.text == ""
    with pytest.raises(openai.BadRequestError, match="chat"):
        client.chat.completions.create(model=WHISPER, messages=[{"role": "user", "content": "Hi"}])


def test_qwen3_asr(tmp_path: Path) -> None:
    """What is its own: one segment a piece of the recording, its loops, and no translation."""
    repository = published_recognizers.qwen3_asr(tmp_path / "repository", seed=2)
    twins = Qwen3ASRTwins(published_recognizers.qwen3_asr(tmp_path / "twin", seed=2, layout="transformers"))
    options: dict[str, Any] = {"model": QWEN3_ASR, "response_format": "verbose_json"}
    few = (0, 3)
    with served(tmp_path, QWEN3_ASR, repository, "--stage", "transcribe.piece_seconds=3") as client:
        alone = [transcribe(client, index, **options).to_dict() for index in few]
        first, last = alone
        assert [len(answer["segments"]) for answer in alone] == [1, 2]
        assert (last["language"], last["segments"][-1]["end"]) == ("english", 4.5)
        assert sum(check_pieces(answer, twins, index) for answer, index in zip(alone, few, strict=True)) > 0
        with ThreadPoolExecutor(2) as pool:
            together = list(pool.map(lambda index: transcribe(client, index, **options).to_dict(), few))
        assert together == alone
        # To a prompt that names the language, it answers what it says behind the language that it heard.
        given = transcribe(client, 0, language="en", **options).to_dict()
        (heard,), (same,) = (answer["segments"] for answer in (first, given))
        mark = twins.tokenizer.token_to_id(TEXT_MARK)
        text = heard["tokens"][heard["tokens"].index(mark) + 1 :]
        assert text == same["tokens"][: len(text)]
        subtitles = transcribe(client, 3, QWEN3_ASR, response_format="srt")
        assert subtitles.count(" --> ") == len(last["segments"])
        for response_format in ("json", "verbose_json"):
            events = list(transcribe(client, 0, QWEN3_ASR, response_format=response_format, stream=True))
            deltas = [event.delta for event in events[:-1]]
            assert "".join(deltas) == events[-1].text == first["text"]
            assert len(deltas) > 10
        with pytest.raises(openai.BadRequestError, match="translation"):
            client.audio.translations.create(model=QWEN3_ASR, file=FILES[0])
        with pytest.raises(openai.BadRequestError, match="did you mean 'English'"):
            transcribe(client, 0, QWEN3_ASR, language="englich")


def check_pieces(answer: dict[str, Any], twins: Qwen3ASRTwins, index: int) -> int:
    """Checks an answer's tokens and texts; returns how many of its pieces have a loop."""
    most = max(len(segment["tokens"]) for segment in answer["segments"])
    right = twins.expected(SOUNDS[index], most)
    loops = 0
    for segment, tokens in zip(answer["segments"], right, strict=True):
        assert segment["tokens"] == tokens[: len(segment["tokens"])]
        raw = twins.tokenizer.decode(segment["tokens"]).strip()
        text = without_loops(raw).partition(TEXT_MARK)[2].strip()
        assert segment["text"].strip() == text
        loops += text != raw.partition(TEXT_MARK)[2].strip()
    return loops
