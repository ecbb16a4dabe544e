"""This machine's loudspeakers and microphone, through the package sounddevice: ``play``, ``record``."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from types import ModuleType, TracebackType
from typing import Any, Self

import numpy as np

from sglang_omni.client.sound import Audible, Sound, pieces
from sglang_omni.generation.audio import Resampler
from sglang_omni.generation.samples import Samples
from sglang_omni.packages import install_line

# Sound goes to the device in pieces of this length: so soon it can be stopped.
_BLOCK_S = 0.02
# Above this root mean square a microphone's sound is speech, not the room.
_SPEECH_RMS = 0.01


class SoundDeviceError(RuntimeError):
    """This machine cannot play or record; the text says what it lacks."""


class Player:
    """Plays sound while it comes, and can be stopped at once.

        with Player() as player:
            for chunk in client.speech_stream(GenerateRequest(prompt="Hello.")):
                player.add(chunk)

    Leaving it waits until all is played; if an exception leaves it, it is silent at once.

    Raises:
        SoundDeviceError: There is no way to play sound.
    """

    def __init__(self) -> None:
        self._device = _sounddevice("played")
        _check_device(self._device, "output")
        self._blocks: queue.SimpleQueue[Samples | None] = queue.SimpleQueue()
        self._stream: Any = None
        self._resampler: Resampler | None = None
        self._thread: threading.Thread | None = None
        self._is_stopped = threading.Event()
        self._error: Exception | None = None
        self._played = 0

    @property
    def played_s(self) -> float:
        """Seconds of sound that have been given to the device."""
        return 0.0 if self._resampler is None else self._played / self._resampler.rate

    def add(self, sound: Audible) -> None:
        """Plays it after what was added before; returns at once."""
        for piece in pieces(sound):
            if self._resampler is None:
                self._begin(piece.sample_rate)
            self._raise_error()
            assert self._resampler is not None
            samples = self._resampler.add(piece.samples, piece.sample_rate)
            length = max(1, round(_BLOCK_S * self._resampler.rate))
            for start in range(0, len(samples), length):
                self._blocks.put(samples[start : start + length])

    def stop(self) -> None:
        """Is silent at once, and plays nothing more."""
        self._is_stopped.set()
        self._end()

    def wait(self) -> None:
        """Waits until all that was added is played; plays nothing more."""
        if self._resampler is not None and not self._is_stopped.is_set():
            self._blocks.put(self._resampler.finish())
        self._end()
        self._raise_error()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            try:
                self.wait()
            except KeyboardInterrupt:
                self.stop()
                raise
        else:
            self.stop()

    def _begin(self, rate: int) -> None:
        self._resampler = Resampler(rate)
        try:
            self._stream = self._device.OutputStream(samplerate=rate, channels=1, dtype="float32")
            self._stream.start()
        except self._device.PortAudioError as exc:
            raise SoundDeviceError(f"the loudspeaker cannot be opened: {exc}") from exc
        self._thread = threading.Thread(target=self._run, name="player", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._is_stopped.is_set():
                block = self._blocks.get()
                if block is None:
                    break
                self._stream.write(np.ascontiguousarray(block.reshape(-1, 1)))
                self._played += len(block)
            if self._is_stopped.is_set():
                self._stream.abort()
            else:
                # Waits until the device has played what it was given.
                self._stream.stop()
            self._stream.close()
        except self._device.PortAudioError as exc:
            self._error = SoundDeviceError(f"the loudspeaker failed: {exc}")

    def _end(self) -> None:
        self._blocks.put(None)
        if self._thread is not None:
            self._thread.join()

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error


def play(sound: Audible) -> None:
    """Plays sound, while it comes if it is an iterable; returns when all is played.

    Args:
        sound: As of ``save``.

    Raises:
        SoundDeviceError: There is no way to play sound.
    """
    with Player() as player:
        player.add(sound)


def microphone(sample_rate: int = 24_000, *, block_s: float = 0.1) -> Iterator[Sound]:
    """Yields what the microphone hears, in blocks of ``block_s`` seconds, until the iteration is left.

    Raises:
        SoundDeviceError: There is no way to record.
    """
    device = _sounddevice("recorded")
    _check_device(device, "input")
    try:
        with device.InputStream(samplerate=sample_rate, channels=1, dtype="float32") as stream:
            while True:
                block, _ = stream.read(round(block_s * sample_rate))
                yield Sound(np.array(block, np.float32).reshape(-1), sample_rate)
    except device.PortAudioError as exc:
        raise SoundDeviceError(f"the microphone cannot be opened: {exc}") from exc


def record(
    seconds: float | None = None,
    *,
    silence_s: float = 1.0,
    longest_s: float = 60.0,
    sample_rate: int = 24_000,
) -> Sound:
    """Records for so many seconds; or, without a number, until a speaker has been silent.

    Args:
        silence_s: How long the silence is that ends the recording, once there was something to hear.
        longest_s: When it ends in any case, without a number of seconds.
        sample_rate: In Hz.

    Raises:
        SoundDeviceError: There is no way to record.
    """
    blocks: list[Samples] = []
    heard, quiet = False, 0.0
    for block in microphone(sample_rate):
        blocks.append(block.samples)
        is_loud = float(np.sqrt(np.mean(np.square(block.samples)))) > _SPEECH_RMS
        heard, quiet = heard or is_loud, 0.0 if is_loud else quiet + block.seconds
        length = sum(map(len, blocks)) / sample_rate
        if seconds is None and ((heard and quiet >= silence_s) or length >= longest_s):
            break
        if seconds is not None and length >= seconds:
            break
    samples = np.concatenate(blocks)
    return Sound(samples if seconds is None else samples[: round(seconds * sample_rate)], sample_rate)


def _sounddevice(what: str) -> ModuleType:
    try:
        import sounddevice
    except ImportError as exc:
        raise SoundDeviceError(
            f"for sound to be {what}, sounddevice is needed: {install_line('audio')}"
        ) from exc
    except OSError as exc:
        raise SoundDeviceError(
            f"for sound to be {what}, the library PortAudio is needed ({exc}): on Debian and Ubuntu "
            "`apt-get install libportaudio2`"
        ) from exc
    return sounddevice


def _check_device(device: ModuleType, kind: str) -> None:
    try:
        device.query_devices(kind=kind)
    except (ValueError, device.PortAudioError) as exc:
        name = "microphone" if kind == "input" else "loudspeaker"
        raise SoundDeviceError(f"this machine has no {name} ({exc})") from exc
