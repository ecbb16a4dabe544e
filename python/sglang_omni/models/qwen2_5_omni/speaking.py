"""The code2wav stage: codes in, as they come; sound out, chunk by chunk, without audible seams."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from sglang_omni.models.omni.request import requested_voice
from sglang_omni.models.qwen2_5_omni.components.checkpoint import SAMPLE_RATE, Qwen25OmniCheckpoint
from sglang_omni.models.qwen2_5_omni.components.mel import VoiceCondition
from sglang_omni.models.qwen2_5_omni.components.token2wav import Token2Wav
from sglang_omni.models.qwen2_5_omni.request import WaveOptions, wave_options
from sglang_omni.proto import StagePayload
from sglang_omni.scheduling.stream_scheduler import BatchItem, StreamScheduler, StreamSession
from sglang_omni.scheduling.turns import SchedulePolicy

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Blocks before and behind a chunk that are sampled with it, so that it sounds as in the whole; as published.
PAST_BLOCKS, FUTURE_BLOCKS = 2, 1


class Speaking(StreamScheduler):
    """Turns a request's stream of codes into sound while the codes arrive.

    Stream items are int64 (n,). Chunks and the result are ``{"modality": "audio", "audio_data": float32
    (samples,), "sample_rate": int}``. The result holds the whole waveform, which is the chunks put together,
    and its ``codes``, int64 (n, 1).

    A chunk's mel frames are sampled with ``PAST_BLOCKS`` and ``FUTURE_BLOCKS`` around it. Where chunks begin
    depends on the number of codes alone, and the noise on the request's seed and the frame, so that the same
    codes and the same seed give the same sound, up to rounding that may depend on the batch. With the
    chunking "reference" all codes are one chunk, at their end: the sound that transformers makes. A sound of
    fewer codes than a chunk and a future block have is that with either.

    Args:
        chunk_blocks: Blocks of a chunk.
        max_batch_blocks: The most blocks, of several requests, sampled at once.
        schedule_policy: Which request's codes are decoded next, as in ``StreamScheduler``.
        clock: The time in seconds.

    Raises:
        ValueError: ``chunk_blocks`` is less than 1, or blocks are no whole number of codes.
    """

    def __init__(
        self,
        checkpoint: Qwen25OmniCheckpoint,
        token2wav: Token2Wav,
        *,
        chunk_blocks: int = 3,
        max_batch_blocks: int = 24,
        schedule_policy: SchedulePolicy = "fcfs",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        sampler = token2wav.sampler
        if chunk_blocks < 1:
            raise ValueError(f"chunk_blocks must be at least 1, got {chunk_blocks}")
        if sampler.block_size % sampler.repeats:
            raise ValueError(
                f"{checkpoint.path}: blocks of {sampler.block_size} mel frames are no whole number of codes "
                f"of {sampler.repeats}"
            )
        self.checkpoint = checkpoint
        self.token2wav = token2wav
        block = sampler.block_size // sampler.repeats
        self.chunk, self.past, self.future = chunk_blocks * block, PAST_BLOCKS * block, FUTURE_BLOCKS * block
        self._max_batch_frames = max_batch_blocks * sampler.block_size
        super().__init__(
            lambda: _SpeakingSession(self),
            expects_stream=lambda payload: True,
            wants_chunks=lambda payload: bool(payload.request.params.get("stream", True)),
            batch_compute_fn=self._compute_batch,
            schedule_policy=schedule_policy,
            clock=clock,
        )

    def warm_up(self) -> None:
        """Makes the sound of one chunk. Called before ``start``; nothing is left of it.

        Raises:
            Exception: Whatever the decoder raises.
        """
        codes = torch.zeros(self.past + self.chunk + self.future, dtype=torch.int64)
        noise = torch.zeros(len(codes) * self.token2wav.sampler.repeats, self.token2wav.sampler.mel_dim)
        mel = self.mel_item(codes, noise, next(iter(self.token2wav.voices.values())))
        self._compute_batch([mel])
        assert mel.made is not None
        self._compute_batch([self.wave_item(mel.made)])

    def mel_item(self, codes: Tensor, noise: Tensor, voice: VoiceCondition) -> _MelItem:
        return _MelItem(("mel", len(codes)), self._most(len(noise)), codes, noise, voice)

    def wave_item(self, mel: Tensor) -> _WaveItem:
        return _WaveItem(("wave", len(mel)), self._most(len(mel)), mel)

    def _most(self, frames: int) -> int:
        return max(1, self._max_batch_frames // frames)

    def _compute_batch(self, items: list[Any]) -> None:
        codec = self.token2wav
        if isinstance(items[0], _MelItem):
            codes = torch.stack([item.codes for item in items])
            noise = torch.stack([item.noise for item in items])
            mels = codec.sampler.sample(codes, noise, [item.voice for item in items])
            for item, mel in zip(items, mels, strict=True):
                item.made = mel.clone() if len(items) > 1 else mel
            return
        samples = codec.vocoder(torch.stack([item.mel for item in items])).cpu().numpy()
        for item, wave in zip(items, samples, strict=True):
            item.made = wave


@dataclass(eq=False)
class _MelItem(BatchItem):
    """Codes (n,) with noise (frames, mel bins) and a voice, and the mel frames that they become."""

    codes: Tensor
    noise: Tensor
    voice: VoiceCondition
    made: Tensor | None = None


@dataclass(eq=False)
class _WaveItem(BatchItem):
    """Mel frames (frames, mel bins), and the samples that they become."""

    mel: Tensor
    made: NDArray[np.float32] | None = None


class _SpeakingSession(StreamSession):
    def __init__(self, stage: Speaking) -> None:
        self._stage = stage
        self._options = WaveOptions("blocks", 0)
        self._voice: VoiceCondition | None = None
        self._noise_source = torch.Generator()
        self._codes = torch.zeros(0, dtype=torch.int64)
        # Noise and mel frames of all codes so far: a few MB at the most.
        self._noise: list[Tensor] = []
        self._mel: list[Tensor] = []
        self._sampled = 0
        self._num_frames_heard = 0
        self._audio: list[NDArray[np.float32]] = []

    def begin(self, payload: StagePayload) -> Iterator[Any]:
        self._options = wave_options(payload.request)
        self._noise_source.manual_seed(self._options.seed)
        self._voice = self._stage.token2wav.voices[requested_voice(payload.request, self._stage.checkpoint)]
        return iter(())

    def feed(self, data: Any) -> Iterator[Any]:
        self._codes = torch.cat((self._codes, data.cpu()))
        stage = self._stage
        if self._options.chunking == "reference":
            return
        while len(self._codes) >= self._sampled + stage.chunk + stage.future:
            yield from self._speak(self._sampled + stage.chunk, is_last=False)

    def end(self) -> Iterator[Any]:
        if len(self._codes) > self._sampled:
            yield from self._speak(len(self._codes), is_last=True)

    def result(self) -> dict[str, Any]:
        audio = np.concatenate(self._audio) if self._audio else np.zeros(0, np.float32)
        # An array: for a tensor, the server would import torch, which takes seconds and which it never needs.
        return {**_sound(audio), "codes": self._codes.unsqueeze(1).numpy()}

    def _speak(self, stop: int, *, is_last: bool) -> Iterator[Any]:
        """Samples the mel frames of the codes up to ``stop``, and yields the sound that they complete."""
        stage, codec = self._stage, self._stage.token2wav
        repeats = codec.sampler.repeats
        first = max(0, self._sampled - stage.past)
        last = len(self._codes) if is_last else stop + stage.future
        noise = self._noise_between(first * repeats, last * repeats)
        assert self._voice is not None, "begin comes first"
        item = stage.mel_item(self._codes[first:last], noise, self._voice)
        yield item
        assert item.made is not None
        self._mel.append(item.made[(self._sampled - first) * repeats : (stop - first) * repeats])
        self._sampled = stop
        yield from self._vocode(stop * repeats, is_last=is_last)

    def _vocode(self, frames: int, *, is_last: bool) -> Iterator[Any]:
        """Yields the sound of the mel frames so far, up to those whose samples depend on later ones."""
        vocoder, begin = self._stage.token2wav.vocoder, self._num_frames_heard
        end = frames if is_last else frames - vocoder.margin
        if end <= begin:
            return
        start = max(0, begin - vocoder.margin)
        piece = self._stage.wave_item(torch.cat(self._mel)[start:])
        yield piece
        assert piece.made is not None
        audio = piece.made[(begin - start) * vocoder.hop : (end - start) * vocoder.hop]
        self._num_frames_heard = end
        self._audio.append(audio)
        yield _sound(audio)

    def _noise_between(self, start: int, stop: int) -> Tensor:
        drawn = sum(map(len, self._noise))
        if stop > drawn:
            size = (stop - drawn, self._stage.token2wav.sampler.mel_dim)
            self._noise.append(torch.randn(size, generator=self._noise_source))
        return torch.cat(self._noise)[start:stop]


def _sound(audio: NDArray[np.float32]) -> dict[str, Any]:
    return {"modality": "audio", "audio_data": audio, "sample_rate": SAMPLE_RATE}
