"""From the id of a published model of speech to what it says: see ``test_published_models``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openai
import published_speech
import pytest
from csm_oracle import CsmOracle
from decoded_audio import by_ffmpeg
from higgs_oracle import HiggsOracle, SaidBefore
from published_server import served
from published_speech import CSM, HIGGS, QWEN3_TTS
from qwen3_tts_oracle import Qwen3TTSOracle, Recording
from speech_server import equals, recorded, samples

pytestmark = pytest.mark.long
TEXT = "Hello. Who are you?"
SAID = "Hi there"


def say(client: openai.OpenAI, model: str, text: str = TEXT, voice: str = "alloy", **fields: Any) -> bytes:
    """Samples of 16 bits, whole or streamed."""
    asked = {"temperature": 0, **fields}
    create = client.audio.speech.with_streaming_response.create
    with create(model=model, voice=voice, input=text, response_format="pcm", extra_body=asked) as answer:
        pieces = list(answer.iter_bytes())
    assert (len(pieces) > 1) or "stream" not in fields
    return b"".join(pieces)


def check_defaults(client: openai.OpenAI, model: str, rate: int, **drawn: float) -> None:
    """A client that asks for nothing but a text is answered, in the default voice. Codes are drawn as
    ``drawn`` says."""
    answer = client.audio.speech.with_raw_response.create(model=model, voice="alloy", input=TEXT)
    assert "alloy" in answer.headers["warning"]
    heard, heard_rate = by_ffmpeg(answer.content)
    assert (heard_rate, len(heard) > 0) == (rate, True)
    said = [
        say(client, model, seed=3, max_new_tokens=20, **{"temperature": None, **how})
        for how in ({}, drawn, {**drawn, "temperature": 2.0})
    ]
    assert said[0] == said[1] != said[2]


@pytest.mark.parametrize("engine", ["omni", "sglang"])
def test_csm(tmp_path: Path, engine: str) -> None:
    repository = published_speech.csm(tmp_path / "repository", seed=3)
    oracle = CsmOracle.load(repository)
    sound, encoded = recorded()
    with served(tmp_path, CSM, repository, "--engine", engine) as client:
        whole = say(client, CSM, max_new_tokens=20)
        assert equals(samples(whole), oracle.speak(TEXT, 20).samples)
        assert say(client, CSM, max_new_tokens=20, stream=True) == whole
        third = say(client, CSM, voice="3", max_new_tokens=20)
        assert equals(samples(third), oracle.speak(TEXT, 20, voice="3").samples)
        cloned = say(client, CSM, max_new_tokens=20, ref_audio=encoded, ref_text=SAID)
        assert equals(samples(cloned), oracle.speak(TEXT, 20, said=SAID, sound=sound).samples)
        assert len({whole, third, cloned}) == 3
        check_defaults(client, CSM, 24_000, temperature=0.9, top_k=50)


def test_higgs(tmp_path: Path) -> None:
    repository, codec = published_speech.higgs(tmp_path / "repository", seed=3)
    oracle = HiggsOracle.load(repository, *codec.values())
    sound, encoded = recorded()
    with served(tmp_path, HIGGS, repository, beside=codec) as client:
        whole = say(client, HIGGS, max_new_tokens=40)
        assert equals(samples(whole), oracle.speak(TEXT, 40).samples)
        streamed = say(client, HIGGS, max_new_tokens=40, stream=True)
        assert equals(samples(streamed), oracle.speak(TEXT, 40).samples)
        cloned = say(client, HIGGS, max_new_tokens=40, ref_audio=encoded, ref_text=SAID)
        assert equals(samples(cloned), oracle.speak(TEXT, 40, [SaidBefore(SAID, sound)]).samples)
        assert cloned != whole
        check_defaults(client, HIGGS, 24_000, temperature=1.0, top_k=50, top_p=0.95)


@pytest.mark.parametrize("engine", ["omni", "sglang"])
def test_qwen3_tts_in_its_own_voices(tmp_path: Path, engine: str) -> None:
    repository = published_speech.qwen3_tts(tmp_path / "repository", 3, "custom_voice")
    oracle, model = Qwen3TTSOracle(repository), QWEN3_TTS["custom_voice"]
    with served(tmp_path, model, repository, "--engine", engine) as client:
        whole = say(client, model, max_new_tokens=20)
        assert equals(samples(whole), oracle.speak(TEXT, 20, speaker="serena").samples)
        assert say(client, model, max_new_tokens=20, stream=True) == whole
        asked = {"language": "zh", "instructions": "Whisper."}
        other = say(client, model, voice="Dylan", max_new_tokens=20, **asked)
        due = oracle.speak(TEXT, 20, speaker="Dylan", language="Chinese", instruct="Whisper.")
        assert equals(samples(other), due.samples)
        assert whole != other
        check_defaults(client, model, 24_000, temperature=0.9, top_k=50, repetition_penalty=1.05)


def test_qwen3_tts_in_the_voices_of_recordings(tmp_path: Path) -> None:
    repository = published_speech.qwen3_tts(tmp_path / "repository", 4, "base")
    oracle, model = Qwen3TTSOracle(repository), QWEN3_TTS["base"]
    sound, encoded = recorded()
    with served(tmp_path, model, repository) as client:
        cloned = say(client, model, max_new_tokens=20, ref_audio=encoded, ref_text=SAID)
        assert equals(samples(cloned), oracle.speak(TEXT, 20, recording=Recording(sound, SAID)).samples)
        assert say(client, model, max_new_tokens=20, stream=True, ref_audio=encoded, ref_text=SAID) == cloned
        voice = say(client, model, max_new_tokens=20, ref_audio=encoded)
        assert equals(samples(voice), oracle.speak(TEXT, 20, recording=Recording(sound)).samples)
        assert voice != cloned
        with pytest.raises(openai.BadRequestError, match="speaks in the voice of a recording"):
            say(client, model)


def test_qwen3_tts_in_described_voices(tmp_path: Path) -> None:
    repository = published_speech.qwen3_tts(tmp_path / "repository", 5, "voice_design")
    oracle, model = Qwen3TTSOracle(repository), QWEN3_TTS["voice_design"]
    with served(tmp_path, model, repository) as client:
        heard = [
            say(client, model, max_new_tokens=20, instructions=text) for text in ("An old man.", "A girl.")
        ]
        due = [oracle.speak(TEXT, 20, instruct=text).samples for text in ("An old man.", "A girl.")]
        assert [equals(samples(one), other) for one, other in zip(heard, due, strict=True)] == [True, True]
        assert heard[0] != heard[1]
        check_defaults(client, model, 24_000, temperature=0.9, top_k=50, repetition_penalty=1.05)
