"""The published Voxtral Realtime, served by its id: what transformers hears, over HTTP. Names, configs and
words are as published, weights random."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import published_recognizers
import pytest
from published_recognizers import VOXTRAL
from published_server import served, serving
from transcription_runs import recording
from voxtral_twins import VoxtralTwins, quiet_tones
from websockets.sync.client import connect

pytestmark = pytest.mark.long
SOUNDS = [quiet_tones(40 + seed, seconds) for seed, seconds in enumerate((3.0, 0.1, 17.5, 1.21))]
SHAPE: dict[str, Any] = {"audio_num_hidden_layers": 3, "num_key_value_heads": 1, "hidden_size": 96}


def test_recordings(tmp_path: Path) -> None:
    repository = published_recognizers.voxtral(tmp_path / "repository", seed=5, **SHAPE)
    twins = VoxtralTwins(published_recognizers.voxtral(tmp_path / "twin", seed=5, **SHAPE))
    expected = [twins.expected(sound) for sound in SOUNDS]
    with served(tmp_path, VOXTRAL, repository) as client:

        def heard(index: int, **options: Any) -> Any:
            file = (f"{index}.wav", recording(SOUNDS[index]))
            return client.audio.transcriptions.create(model=VOXTRAL, file=file, **options)

        def verbose(index: int) -> dict[str, Any]:
            answer: dict[str, Any] = heard(index, response_format="verbose_json").to_dict()
            return answer

        alone = [verbose(index) for index in range(len(SOUNDS))]
        for answer, tokens, sound in zip(alone, expected, SOUNDS, strict=True):
            assert [token for segment in answer["segments"] for token in segment["tokens"]] == tokens
            assert answer["text"] == twins.text(tokens) != ""
            assert answer["duration"] == pytest.approx(len(sound) / 16_000)
        with ThreadPoolExecutor(8) as pool:
            together = list(pool.map(verbose, [*range(len(SOUNDS))] * 2))
        assert together == alone * 2
        events = list(heard(2, stream=True))
        deltas = [event.delta for event in events[:-1]]
        assert "".join(deltas) == events[-1].text == alone[2]["text"]
        assert len(deltas) > 100
        assert heard(2, response_format="srt").count(" --> ") == len(alone[2]["segments"])
        with pytest.raises(openai.BadRequestError, match="translation"):
            client.audio.translations.create(model=VOXTRAL, file=("0.wav", recording(SOUNDS[0])))
        with pytest.raises(openai.BadRequestError, match="language"):
            heard(0, language="en")


def test_sound_that_comes(tmp_path: Path) -> None:
    """Three speakers at once, in pieces of any length, two of them faster than they could speak."""
    repository = published_recognizers.voxtral(tmp_path / "repository", seed=6, **SHAPE)
    twins = VoxtralTwins(published_recognizers.voxtral(tmp_path / "twin", seed=6, **SHAPE))
    with serving(tmp_path, VOXTRAL, repository) as (server, _):
        url = f"ws{server.base_url.removeprefix('http')}/v1/audio/transcriptions/stream"

        def heard(index: int) -> tuple[str, dict[str, Any], int]:
            """The deltas, the last event, and how many deltas had come before the last piece was sent."""
            pcm = (SOUNDS[index] * 32_768).astype("<i2").tobytes()
            size, deltas, early = (1001, 2560, 40_001)[index % 3], [], 0
            with connect(url) as socket:
                socket.send(json.dumps({"type": "session.config", "sample_rate": 16_000}))
                for at in range(0, len(pcm), size):
                    if index == 2 and at + size >= len(pcm):
                        deltas.append(json.loads(socket.recv(timeout=60))["delta"])
                        early = len(deltas)
                    socket.send(pcm[at : at + size])
                socket.send(json.dumps({"type": "input.done"}))
                for message in socket:
                    event = json.loads(message)
                    if event["type"] != "transcript.text.delta":
                        return "".join(deltas), event, early
                    deltas.append(event["delta"])
            raise AssertionError("the stream has no end")

        with ThreadPoolExecutor(3) as pool:
            answers = list(pool.map(heard, (0, 2, 3)))
        for (streamed, done, early), index in zip(answers, (0, 2, 3), strict=True):
            assert done["type"] == "transcript.text.done", done
            assert streamed == done["text"] == twins.text(twins.expected(SOUNDS[index])) != ""
            assert early == (index == 2)
