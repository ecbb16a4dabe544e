"""Turn detectors on speech: streams against Silero's own functions, and Smart Turn in pauses."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from itertools import pairwise

import numpy as np
import pytest
import soxr
from clients import pipecat_file
from faster_whisper.vad import VadOptions, get_speech_timestamps, get_vad_model

from sglang_omni.bench.judge.sounds import at_ratio, speech_shaped_noise
from sglang_omni.client import RequestError
from sglang_omni.generation.samples import pcm16
from sglang_omni.models.speech_chat.components.voice import Voice
from sglang_omni.serve.realtime import detectors
from sglang_omni.serve.realtime.detectors import SilenceDetector, SmartTurnDetector, create_detector
from sglang_omni.serve.realtime.silero import MODEL_RATE, WINDOW, WINDOW_MS, Silero, Windows
from sglang_omni.serve.realtime.smart_turn import SmartTurn, smart_turn_file
from sglang_omni.serve.realtime.sound import RATE
from sglang_omni.serve.realtime.turns import (
    SemanticVad,
    ServerVad,
    SpeechStarted,
    SpeechStopped,
    TurnDetector,
)

Samples = np.ndarray
# What a stream at 24 kHz loses while it is resampled to 16 kHz, rounded up to a window.
DELAY_MS = 64


@pytest.fixture(scope="module")
def voice() -> Voice:
    return Voice(num_threads=1)


def spoken(voice: Voice, text: str) -> Samples:
    """Speech without the silence around it."""
    samples = voice.speak(text).samples
    loud = np.flatnonzero(np.abs(samples) > 0.02)
    return samples[loud[0] : loud[-1]]


def silence(ms: int) -> Samples:
    return np.zeros(RATE * ms // 1000, np.float32)


def heard(
    detector: TurnDetector, samples: Samples, piece_ms: int = 20
) -> list[SpeechStarted | SpeechStopped]:
    pieces = range(0, len(samples) + 1, RATE * piece_ms // 1000)
    cut = [*pieces, len(samples)]
    return [event for start, end in pairwise(cut) for event in detector.feed(samples[start:end])]


def conversation(voice: Voice) -> Samples:
    parts = [silence(700), spoken(voice, "What is the capital of France?"), silence(900)]
    parts += [spoken(voice, "And how many people live there?"), silence(1500)]
    return np.concatenate(parts)


def test_a_stream_in_pieces_has_the_probabilities_of_the_whole(voice: Voice) -> None:
    samples = conversation(voice)
    whole = soxr.resample(samples, RATE, MODEL_RATE)
    whole = whole[: len(whole) // WINDOW * WINDOW]
    windows, silero = Windows(), Silero()
    cuts = [0, *sorted(np.random.default_rng(0).integers(0, len(samples), 60)), len(samples)]
    found = np.concatenate(
        [silero.probabilities(windows.feed(samples[start:end], RATE)) for start, end in pairwise(cuts)]
    )
    assert len(found) >= len(whole) // WINDOW - 2
    np.testing.assert_allclose(found, get_vad_model()(whole)[: len(found)], atol=1e-3)


@pytest.mark.parametrize("piece_ms", [10, 100, 60_000])
def test_turns_are_where_silero_itself_has_them(voice: Voice, piece_ms: int) -> None:
    samples = conversation(voice)
    options = VadOptions(threshold=0.5, min_silence_duration_ms=500, speech_pad_ms=0)
    expected = get_speech_timestamps(soxr.resample(samples, RATE, MODEL_RATE), options)
    events = heard(SilenceDetector(prefix_padding_ms=300, silence_duration_ms=500), samples, piece_ms)
    assert [type(event) for event in events] == [SpeechStarted, SpeechStopped] * 2
    assert len(expected) == 2
    for (started, stopped), speech in zip(zip(events[::2], events[1::2], strict=True), expected, strict=True):
        assert isinstance(started, SpeechStarted)
        assert isinstance(stopped, SpeechStopped)
        assert started.audio_start_ms + 300 == speech["start"] * 1000 // MODEL_RATE
        # Silero tells where the silence began; a turn has it too, in whole windows.
        assert stopped.audio_end_ms == speech["end"] * 1000 // MODEL_RATE + -(-500 // WINDOW_MS) * WINDOW_MS


def test_settings(voice: Voice) -> None:
    speech = spoken(voice, "What is the capital of France?")
    samples = np.concatenate([silence(100), speech, silence(350), speech, silence(1000)])
    patient = heard(create_detector(ServerVad(silence_duration_ms=600)), samples)
    hasty = heard(create_detector(ServerVad(silence_duration_ms=150)), samples)
    assert [type(event) for event in patient] == [SpeechStarted, SpeechStopped]
    assert [type(event) for event in hasty] == [SpeechStarted, SpeechStopped] * 2
    assert patient[0] == SpeechStarted(0)
    # The prefix begins after the turn before.
    assert isinstance(hasty[1], SpeechStopped)
    assert isinstance(hasty[2], SpeechStarted)
    assert hasty[2].audio_start_ms >= hasty[1].audio_end_ms
    exact = heard(create_detector(ServerVad(prefix_padding_ms=0)), samples)
    assert isinstance(exact[0], SpeechStarted)
    assert abs(exact[0].audio_start_ms - 100) <= DELAY_MS


@pytest.mark.parametrize("kind", ["server_vad", "semantic_vad"])
def test_a_steady_noise_is_no_turn_after_one_either(voice: Voice, kind: str) -> None:
    """It has the spectrum of speech, 10 dB below it: a state that is never forgotten takes it for some."""
    texts = ("What makes a violin sound as it does?", "How do clocks keep time?", "What is bread made of?")
    words = [pcm16(spoken(voice, text)) for text in texts]
    speech = np.concatenate(words)
    noise = at_ratio(speech_shaped_noise(speech, seed=0), speech, snr_db=10)
    samples = np.resize(noise, 100 * RATE).astype(np.float32) / 2**15
    samples[: len(words[0])] += words[0] / np.float32(2**15)
    detector = SilenceDetector() if kind == "server_vad" else SmartTurnDetector(Scripted(*[1.0] * 99))  # type: ignore[arg-type]
    events = heard(detector, samples)
    assert [type(event) for event in events] == [SpeechStarted, SpeechStopped]


def test_noise_is_no_turn() -> None:
    noise = np.random.default_rng(0).normal(0, 0.1, 5 * RATE).astype(np.float32)
    assert heard(SilenceDetector(), noise) == []


class Scripted:
    """Says of each pause in turn whether it ends its turn."""

    def __init__(self, *answers: float) -> None:
        self.answers = list(answers)
        self.asked: list[Samples] = []

    def complete(self, turn: Samples) -> float:
        self.asked.append(turn)
        return self.answers.pop(0)


@pytest.mark.parametrize(("eagerness", "patience_ms"), [("high", 2000), ("auto", 4000), ("low", 8000)])
def test_a_pause_that_completes_nothing_is_waited_for(voice: Voice, eagerness: str, patience_ms: int) -> None:
    first, second = spoken(voice, "I would like to know"), spoken(voice, "what the capital of France is.")
    samples = np.concatenate([silence(500), first, silence(1200), second, silence(patience_ms + 500)])
    model = Scripted(0.1, 0.2)
    events = heard(SmartTurnDetector(model, eagerness=eagerness), samples)  # type: ignore[arg-type]
    assert [type(event) for event in events] == [SpeechStarted, SpeechStopped]
    # Asked once in each pause, about the turn from its prefix to 0.2 s of the pause.
    lengths = [len(asked) / MODEL_RATE for asked in model.asked]
    said = (len(first) / RATE, (len(first) + len(second)) / RATE + 1.2)
    assert lengths == pytest.approx([0.3 + seconds + 0.2 for seconds in said], abs=0.15)
    assert isinstance(events[1], SpeechStopped)
    end = 500 + int(1000 * said[1])
    assert abs(events[1].audio_end_ms - end - patience_ms) < 200


def test_a_complete_turn_ends_at_once(voice: Voice) -> None:
    speech = spoken(voice, "What is the capital of France?")
    samples = np.concatenate([silence(500), speech, silence(1500), speech, silence(1000)])
    events = heard(SmartTurnDetector(Scripted(0.9, 0.9)), samples)  # type: ignore[arg-type]
    assert [type(event) for event in events] == [SpeechStarted, SpeechStopped] * 2
    assert isinstance(events[1], SpeechStopped)
    assert events[1].audio_end_ms - 500 - 1000 * len(speech) / RATE < 400


def test_without_pipecat_semantic_vad_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pipecat", None)
    detectors.smart_turn.cache_clear()
    with pytest.raises(RequestError, match=r"pip install 'sgl-omni\[turns\]'") as refused:
        create_detector(SemanticVad())
    assert refused.value.param == "session.audio.input.turn_detection.type"


def test_without_faster_whisper_server_vad_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faster_whisper.vad", None)
    with pytest.raises(RequestError, match=r"pip install 'sgl-omni\[realtime\]'.*null"):
        create_detector(ServerVad())


@pytest.mark.long
def test_smart_turn_hears_that_a_speaker_only_pauses(voice: Voice, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = ModuleSpec("pipecat", None, origin=str(pipecat_file("__init__.py")))
    monkeypatch.setattr("sglang_omni.serve.realtime.smart_turn.find_spec", lambda name: spec)
    model = SmartTurn(smart_turn_file())
    samples = [silence(500), spoken(voice, "Tell me about the weather in Paris, and"), silence(1200)]
    samples += [spoken(voice, "about the weather in London."), silence(1500)]
    events = heard(SmartTurnDetector(model), np.concatenate(samples))
    assert [type(event) for event in events] == [SpeechStarted, SpeechStopped]
    with_silence = heard(SilenceDetector(), np.concatenate(samples))
    assert [type(event) for event in with_silence] == [SpeechStarted, SpeechStopped] * 2
