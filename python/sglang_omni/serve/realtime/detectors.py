"""Turn detectors: by silence (server_vad), and by how the speaker ended before it (semantic_vad).

Both follow Silero's own iterator: speech starts with a window whose probability reaches the threshold, and a
silence starts with one that is 0.15 below it and ends with one that reaches it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import numpy as np

from sglang_omni.proto import RequestError
from sglang_omni.serve.realtime.silero import MODEL_RATE, WINDOW, WINDOW_MS, Silero, Windows
from sglang_omni.serve.realtime.smart_turn import SECONDS, SmartTurn, smart_turn
from sglang_omni.serve.realtime.sound import RATE, Samples
from sglang_omni.serve.realtime.turns import (
    SemanticVad,
    ServerVad,
    SpeechStarted,
    SpeechStopped,
    TurnDetector,
)

TurnEvent = SpeechStarted | SpeechStopped

_HYSTERESIS = 0.15
# How long semantic_vad waits in a pause that the model does not take for an end.
LONGEST_PAUSE_MS = {"low": 8000, "medium": 4000, "auto": 4000, "high": 2000}
# The pause after which it asks the model, which was trained with about as much silence at the end.
ASKED_AFTER_MS = 200
COMPLETE = 0.5
# Outside a turn the model's state goes back this far at most, in windows: 5 s. With an older one it takes a
# steady noise 10 dB below the speaker for speech: three to nine times in two minutes, and not once with this.
_OLDEST = 5000 // WINDOW_MS


class _Speech:
    """Follows windows one by one. Times are in ms since the stream's start."""

    def __init__(self, threshold: float, prefix_ms: int) -> None:
        self._threshold = threshold
        self._prefix_ms = prefix_ms
        self._silent_since: int | None = None
        self._last_end = 0
        self.speaks = False
        self.now = 0

    @property
    def silence_ms(self) -> int:
        """How long the speaker has been silent in the turn that goes on; 0 if none does."""
        return self.now - self._silent_since if self._silent_since is not None else 0

    def window(self, probability: float) -> SpeechStarted | None:
        """Adds the next window; returns the start of speech if it is one."""
        start = self.now
        self.now += WINDOW_MS
        if probability >= self._threshold:
            self._silent_since = None
            if not self.speaks:
                self.speaks = True
                return SpeechStarted(max(start - self._prefix_ms, self._last_end))
        elif self.speaks and self._silent_since is None and probability < self._threshold - _HYSTERESIS:
            self._silent_since = start
        return None

    def stop(self) -> SpeechStopped:
        self.speaks, self._silent_since, self._last_end = False, None, self.now
        return SpeechStopped(self.now)


def _keep_young(silero: Silero, speech: _Speech) -> None:
    if silero.age >= _OLDEST and not speech.speaks:
        silero.forget()


class SilenceDetector:
    """Ends a turn after a fixed silence.

    Args:
        threshold: Probability from which a window is speech, between 0 and 1.
        prefix_padding_ms: How much before speech belongs to its turn.
        silence_duration_ms: The silence after which a turn has ended; it belongs to the turn.

    Raises:
        ImportError: faster-whisper is not installed; the text has the install line.
    """

    def __init__(
        self, *, threshold: float = 0.5, prefix_padding_ms: int = 300, silence_duration_ms: int = 500
    ) -> None:
        self._windows = Windows()
        self._silero = Silero()
        self._speech = _Speech(threshold, prefix_padding_ms)
        self._silence_ms = silence_duration_ms

    def feed(self, samples: Samples) -> list[TurnEvent]:
        """Adds samples of shape (n,) at 24 kHz, within [-1, 1]; returns what was noticed, in order."""
        found = list(self._events(self._windows.feed(samples, RATE)))
        _keep_young(self._silero, self._speech)
        return found

    def _events(self, windows: Samples) -> Iterator[TurnEvent]:
        for probability in self._silero.probabilities(windows):
            started = self._speech.window(float(probability))
            if started is not None:
                yield started
            if self._speech.silence_ms >= max(self._silence_ms, 1):
                yield self._speech.stop()


class SmartTurnDetector:
    """Asks Smart Turn in each pause whether the turn is complete, and waits longer if it is not.

    ``feed`` takes up to 0.1 s in the window in which it asks.

    Args:
        model: Smart Turn.
        eagerness: A key of ``LONGEST_PAUSE_MS``.

    Raises:
        ImportError: faster-whisper is not installed; the text has the install line.
    """

    def __init__(self, model: SmartTurn, *, eagerness: str = "auto", prefix_padding_ms: int = 300) -> None:
        self._model = model
        self._windows = Windows()
        self._silero = Silero()
        self._speech = _Speech(0.5, prefix_padding_ms)
        self._longest_ms = LONGEST_PAUSE_MS[eagerness]
        self._prefix_windows = -(-prefix_padding_ms // WINDOW_MS)
        # The turn's sound, or what may become its first samples.
        self._turn: deque[Samples] = deque(maxlen=SECONDS * MODEL_RATE // WINDOW)
        self._in_turn = False
        self._asked = False

    def feed(self, samples: Samples) -> list[TurnEvent]:
        """Adds samples of shape (n,) at 24 kHz, within [-1, 1]; returns what was noticed, in order."""
        found = list(self._events(self._windows.feed(samples, RATE)))
        _keep_young(self._silero, self._speech)
        return found

    def _events(self, windows: Samples) -> Iterator[TurnEvent]:
        for window, probability in zip(windows, self._silero.probabilities(windows), strict=True):
            while not self._in_turn and len(self._turn) > self._prefix_windows:
                self._turn.popleft()
            self._turn.append(window)
            started = self._speech.window(float(probability))
            if started is not None:
                self._in_turn = True
                yield started
            silence_ms = self._speech.silence_ms
            if not silence_ms:
                self._asked = False
            elif silence_ms >= self._longest_ms or self._ends(silence_ms):
                self._in_turn = False
                yield self._speech.stop()

    def _ends(self, silence_ms: int) -> bool:
        if self._asked or silence_ms < ASKED_AFTER_MS:
            return False
        self._asked = True
        return self._model.complete(np.concatenate(self._turn)) >= COMPLETE


def create_detector(settings: ServerVad | SemanticVad) -> TurnDetector:
    """A detector for one session's sound.

    Raises:
        RequestError: What it needs is not installed; the text has the install line.
    """
    try:
        if isinstance(settings, SemanticVad):
            return SmartTurnDetector(smart_turn(), eagerness=settings.eagerness)
        return SilenceDetector(
            threshold=settings.threshold,
            prefix_padding_ms=settings.prefix_padding_ms,
            silence_duration_ms=settings.silence_duration_ms,
        )
    except ImportError as exc:
        raise RequestError(
            f"session.audio.input.turn_detection: {exc}",
            param="session.audio.input.turn_detection.type",
            code="unsupported_value",
        ) from exc
