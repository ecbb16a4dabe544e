"""Where the commands put sound: a file, written while it comes, and the loudspeaker."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from sglang_omni.cli.connection import CommandError
from sglang_omni.client import Player, SoundDeviceError
from sglang_omni.client.sound import format_of
from sglang_omni.generation.audio import AudioFileEncoder
from sglang_omni.generation.samples import Samples, streamed_wav_header


class SoundFile(AbstractContextManager["SoundFile"]):
    """A file of sound that grows while the sound comes; ``-`` is standard output, as WAV.

    It is there once the first sound is, and what is there when the sound breaks off can be played.

    Raises:
        CommandError: Its name says no format, or its folder cannot be written to.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        try:
            self._encoder = AudioFileEncoder("wav" if name == "-" else format_of(Path(name)))
        except ValueError as exc:
            raise CommandError(str(exc)) from None
        if name != "-" and not Path(name).resolve().parent.is_dir():
            raise CommandError(f"{name}: there is no folder {Path(name).resolve().parent}")
        self._file: BinaryIO | None = None

    def write(self, samples: Samples, sample_rate: int) -> None:
        self._put(self._encoder.encode(samples, sample_rate))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is None:
            return
        self._put(self._encoder.finish())
        if self._file is sys.stdout.buffer:
            self._file.flush()
            return
        self._tell_length()
        self._file.close()

    def _put(self, data: bytes) -> None:
        if self._file is None:
            self._file = self._opened()
        self._file.write(data)
        self._file.flush()

    def _opened(self) -> BinaryIO:
        if self.name == "-":
            return sys.stdout.buffer
        try:
            return open(self.name, "wb")
        except OSError as exc:
            raise CommandError(f"{self.name}: cannot be written: {exc.strerror}") from None

    def _tell_length(self) -> None:
        """Puts the length into the header of a WAV file, which was not known when it was written."""
        if self._encoder.response_format != "wav" or self._file is None:
            return
        header = len(streamed_wav_header(self._encoder.sample_rate))
        size = self._file.tell()
        for at, length in ((4, size - 8), (header - 4, size - header)):
            self._file.seek(at)
            self._file.write(length.to_bytes(4, "little"))


def player(otherwise: str) -> Player:
    """The loudspeaker.

    Args:
        otherwise: What to do without one, as the end of a sentence.

    Raises:
        CommandError: There is none.
    """
    try:
        return Player()
    except SoundDeviceError as exc:
        raise CommandError(f"{exc}{otherwise}") from None
