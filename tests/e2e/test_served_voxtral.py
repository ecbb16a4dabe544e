"""The published Voxtral Realtime, served by its id: what transformers hears, over HTTP. Names, configs and
words are as published, weights random."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import published_recognizers
import pytest
from published_recognizers import VOXTRAL
from published_server import served
from transcription_runs import recording
from voxtral_twins import VoxtralTwins, quiet_tones

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
