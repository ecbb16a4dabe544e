"""The text of a recording while it is written, cut into segments where nothing is said."""

from __future__ import annotations

from collections.abc import Sequence

from sglang_omni.models.recordings.growing_text import TrimmedText
from sglang_omni.models.recordings.recording import SAMPLE_RATE
from sglang_omni.models.voxtral_realtime.components.tekken import Tekken
from sglang_omni.models.voxtral_realtime.ears import HeardSound
from sglang_omni.proto.tasks import TextChunk, TranscriptPiece
from sglang_omni.scheduling.detokenizer import IncrementalDetokenizer

# A segment ends after so many tokens without text: 0.8 s.
_PAUSE = 10


class HeardText:
    """A ``TextSink``. A segment has the tokens up to the pause that ends it; those at the end without text
    belong to the last one.

    Args:
        sound: What is written down.
        temperature: Of the sampling.

    Attributes:
        segments: The whole's, as far as they have ended.
    """

    def __init__(self, tekken: Tekken, sound: HeardSound, temperature: float) -> None:
        self._tekken, self._sound, self._temperature = tekken, sound, temperature
        self._detokenizer = IncrementalDetokenizer(tekken.tokenizer)
        self._trimmed = TrimmedText()
        self._tokens: list[int] = []
        # Of the segment that is being written: its first token, and where its text begins; its first and its
        # last token with text.
        self._begin, self._text_begin = 0, 0
        self._first, self._last = -1, -1
        self._taken = 0
        self._num_sent = 0
        self.segments: list[TranscriptPiece] = []

    @property
    def text(self) -> str:
        return self._trimmed.text

    def feed(self, token_ids: Sequence[int]) -> bool:
        for token in token_ids:
            place = len(self._tokens)
            self._tokens.append(token)
            if token >= self._tekken.num_control:
                self._first = place if self._first < self._begin else self._first
                self._last = place
            self._detokenizer.feed([token])
            self._trimmed.add(self._detokenizer.take())
            if self._first >= self._begin and place - self._last >= _PAUSE:
                self._cut()
        return self._sound.is_last(len(self._tekken.prompt) + len(self._tokens))

    def finish(self) -> None:
        self._detokenizer.finish()
        self._trimmed.add(self._detokenizer.take())
        self._cut()
        if self.segments:
            self.segments[-1]["tokens"] += self._tokens[self._begin :]

    def take(self) -> TextChunk | None:
        """What is new since the last call."""
        text, segments = self.text[self._taken :], self.segments[self._num_sent :]
        self._taken, self._num_sent = len(self.text), len(self.segments)
        if not text and not segments:
            return None
        return TextChunk(modality="text", text=text, segments=segments)

    def _cut(self) -> None:
        text = self.text[self._text_begin :].strip()
        if not text:
            return
        # The last words may be written in the silence after the sound.
        start, end = (
            min(place * self._tekken.samples / SAMPLE_RATE, self._sound.seconds)
            for place in (self._first, self._last + 1)
        )
        self.segments.append(
            TranscriptPiece(
                seek=round(start * 100),
                start=round(start, 3),
                end=round(end, 3),
                text=text,
                tokens=self._tokens[self._begin :],
                temperature=self._temperature,
            )
        )
        self._begin, self._text_begin = len(self._tokens), len(self.text)
