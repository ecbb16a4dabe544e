"""One answer: printed, played and saved while it comes, until it ends or Ctrl-C stops it."""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from sglang_omni.cli.chat.history import ChatHistory
from sglang_omni.cli.connection import CommandError
from sglang_omni.cli.sound_files import SoundFile, player
from sglang_omni.client import (
    CompletionStreamChunk,
    GenerateRequest,
    Player,
    SamplingParams,
    Sound,
    SyncClient,
    UsageInfo,
)
from sglang_omni.client.sound import format_of
from sglang_omni.generation.samples import decode_pcm

_NO_SPEAKER = "; without --speak and with --save answer.wav the sound goes to a file"


class Answerer:
    """
    Attributes:
        voice: Of the answers; None for the model's own.
        last_sound: Of the last answer.

    Raises:
        CommandError: Answers can be neither played nor saved as the flags want it.
    """

    def __init__(self, client: SyncClient, model: str, args: argparse.Namespace) -> None:
        self._client, self._model = client, model
        self._save, self._stats = args.save, args.stats
        self._sampling = SamplingParams(temperature=args.temperature)
        self._max_tokens = args.max_tokens
        self._plays = args.speak
        self.voice = args.voice
        self.last_sound: Sound | None = None
        self._answers = 0
        if self._plays:
            # Told before the model is asked, not after.
            player(_NO_SPEAKER).stop()
        if self._save:
            try:
                format_of(Path(self._save))
            except ValueError as exc:
                raise CommandError(f"--save {exc}") from None

    @property
    def is_spoken(self) -> bool:
        return self._plays or self._save is not None

    def ask(self, history: ChatHistory, text: str) -> bool:
        """Asks, and shows the answer; False if Ctrl-C stopped it.

        A question that fails is taken back.
        """
        history.ask(text)
        shown = _Shown()
        is_whole = True
        try:
            with player(_NO_SPEAKER) if self._plays else nullcontext() as loudspeaker, self._file() as file:
                try:
                    self._receive(history, shown, loudspeaker, file)
                except KeyboardInterrupt:
                    is_whole = False
                    if loudspeaker is not None:
                        loudspeaker.stop()
        except KeyboardInterrupt:
            # All has come, and its sound was being played.
            is_whole = False
        except BaseException:
            history.take_back()
            raise
        finally:
            self.last_sound = shown.sound
            if shown.text:
                print(flush=True)
        if shown.text or is_whole:
            history.answer(shown.text, shown.heard)
        else:
            history.take_back()
        if not is_whole:
            print("(stopped)", file=sys.stderr)
        elif self._stats:
            print(shown.stats(), file=sys.stderr)
        if shown.finish_reason == "length":
            print("(cut off: the answer is as long as it may be; see --max-tokens)", file=sys.stderr)
        return is_whole

    def _receive(
        self,
        history: ChatHistory,
        shown: _Shown,
        loudspeaker: Player | None,
        file: SoundFile | None,
    ) -> None:
        request = GenerateRequest(
            model=self._model,
            messages=history.messages,
            sampling=replace(self._sampling),
            max_tokens=self._max_tokens,
            output_modalities=["text", "audio"] if self.is_spoken else None,
            extra_params={"voice": self.voice} if self.voice and self.is_spoken else {},
        )
        chunks = self._client.completion_stream(request, audio_format="pcm16")
        with closing(chunks):
            for chunk in chunks:
                sound = shown.add(chunk)
                if sound is None:
                    continue
                if loudspeaker is not None:
                    loudspeaker.add(sound)
                if file is not None:
                    file.write(sound.samples, sound.sample_rate)

    def _file(self) -> SoundFile | nullcontext[None]:
        """The file of the next answer's sound: the first has the name that was given, others a number too."""
        if self._save is None:
            return nullcontext()
        self._answers += 1
        path = Path(self._save)
        if self._answers > 1:
            path = path.with_stem(f"{path.stem}-{self._answers}")
        return SoundFile(str(path))


@dataclass
class _Shown:
    """What has come of an answer so far."""

    text: str = ""
    heard: str | None = None
    finish_reason: str | None = None
    usage: UsageInfo | None = None
    sound: Sound | None = None

    def __post_init__(self) -> None:
        self._began = time.monotonic()
        self._first_word: float | None = None
        self._first_sound: float | None = None
        self._seconds = 0.0
        self._pcm = b""

    def add(self, chunk: CompletionStreamChunk) -> Sound | None:
        """Prints the chunk's text; returns its sound."""
        since = time.monotonic() - self._began
        if chunk.input_transcript is not None:
            self.heard = chunk.input_transcript
            print(f"(heard: {self.heard})", file=sys.stderr, flush=True)
        if chunk.text:
            self._first_word = self._first_word or since
            self.text += chunk.text
            print(chunk.text, end="", flush=True)
        self.finish_reason = chunk.finish_reason or self.finish_reason
        self.usage = chunk.usage or self.usage
        pcm = chunk.audio_bytes
        if not pcm:
            return None
        self._first_sound = self._first_sound or since
        self._pcm += pcm
        rate = chunk.sample_rate or 24_000
        sound = Sound(decode_pcm(pcm), rate)
        self._seconds += sound.seconds
        self.sound = Sound(decode_pcm(self._pcm), rate)
        return sound

    def stats(self) -> str:
        took = time.monotonic() - self._began
        parts = [f"{took:.2f} s"]
        if self._first_word is not None:
            parts.append(f"first word after {self._first_word:.2f} s")
        if self.usage is not None and self.usage.completion_tokens:
            tokens = self.usage.completion_tokens
            parts.append(f"{tokens} tokens, {tokens / took:.1f} a second")
        if self._first_sound is not None:
            parts.append(f"{self._seconds:.1f} s of sound, the first after {self._first_sound:.2f} s")
        return f"({'; '.join(parts)})"
