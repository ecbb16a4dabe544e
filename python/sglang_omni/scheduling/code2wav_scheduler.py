"""The streaming vocoder: codec codes in, frame by frame; audio out, chunk by chunk, without audible seams."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch

from sglang_omni.model_runner.host_copies import to_device
from sglang_omni.proto import StagePayload
from sglang_omni.scheduling.playback import Playback
from sglang_omni.scheduling.stream_scheduler import BatchItem, StreamScheduler, StreamSession
from sglang_omni.scheduling.turns import SchedulePolicy

if TYPE_CHECKING:
    from numpy.typing import NDArray


# The next piece is at most so much of the sound that its listener has in hand. The rest of that time is for
# its decoding, and for that of others' pieces.
SHARE_OF_SOUND_IN_HAND = 0.5


class Vocoder(Protocol):
    """A decoder of codec codes.

    Called with codes (1, groups, frames) int64. Returns a waveform (1, 1, samples) of up to
    ``frames * total_upsample`` samples that begins with the first frame.
    """

    total_upsample: int

    def __call__(self, codes: torch.Tensor) -> torch.Tensor: ...


class VocoderStream(Protocol):
    """A waveform that is decoded piece by piece."""

    def decode(self, codes: torch.Tensor) -> torch.Tensor:
        """The new samples (1, 1, n), given the next codes (1, groups, frames)."""
        ...


@runtime_checkable
class StreamingVocoder(Protocol):
    """A vocoder that keeps the state that later frames need of earlier ones."""

    def open_stream(self) -> VocoderStream: ...


@runtime_checkable
class BatchingVocoder(StreamingVocoder, Protocol):
    """A vocoder that decodes several streams together."""

    def decode_batch(self, streams: Sequence[Any], codes: torch.Tensor) -> torch.Tensor:
        """The new samples (n, 1, samples), given the next codes (n, groups, frames) of n streams.

        Either all streams are new or none is. A failure must leave them unchanged.
        """
        ...


class Chunking(NamedTuple):
    """How a stream of codes is cut into chunks, which are decoded one by one. Lengths are in frames.

    Attributes:
        chunk_size: New frames of a chunk. Fewer give sound earlier, and more work in all.
        left_context_size: Frames before a chunk that are decoded again with it, so that it sounds as in the
            whole; None leaves that to a ``StreamingVocoder``.
        right_context_size: The same after a chunk, which waits for them: of decoders that are not causal.
        first_chunk_size: New frames of the first chunk. Each later chunk has twice as many as the one before,
            up to ``chunk_size``, unless what a listener has in hand sets its size.
        gapless: A chunk begins where the one before it ended. Otherwise it begins with its first frame, and
            samples that the decoder cut off the end of the chunk before are lost, as in transformers'
            ``chunked_decode``.
    """

    chunk_size: int = 10
    left_context_size: int | None = 25
    first_chunk_size: int = 2
    gapless: bool = True
    right_context_size: int = 0

    @property
    def sizes(self) -> list[int]:
        """The new frames of the first chunk, and of each further one until they stay the same."""
        sizes = [min(self.first_chunk_size, self.chunk_size)]
        while len(sizes) == 1 or sizes[-1] < self.chunk_size:
            sizes.append(min(2 * sizes[-1], self.chunk_size))
        return sizes


# ``chunked_decode`` with its default arguments.
REFERENCE_CHUNKING = Chunking(chunk_size=300, left_context_size=25, first_chunk_size=300, gapless=False)


class WindowStream:
    """Decodes each chunk together with the frames of its context."""

    def __init__(self, model: Vocoder, left_context_size: int, *, gapless: bool) -> None:
        self._model = model
        self._left_context_size = left_context_size
        self._gapless = gapless
        self._codes: torch.Tensor | None = None
        self._num_samples = 0

    def decode(self, codes: torch.Tensor, num_ahead: int = 0) -> torch.Tensor:
        """The new samples (1, 1, n), given the next codes (1, groups, frames).

        Args:
            num_ahead: How many of the frames are right context: they come again.
        """
        decoded = 0 if self._codes is None else self._codes.shape[-1]
        known = codes if self._codes is None else torch.cat((self._codes, codes), dim=-1)
        self._codes = known[..., : known.shape[-1] - num_ahead]
        start = max(0, decoded - self._left_context_size)
        wave = self._model(known[..., start:])
        upsample = int(self._model.total_upsample)
        if num_ahead:
            wave = wave[..., : (self._codes.shape[-1] - start) * upsample]
        # A decoder may cut the last frame short and give fewer samples than frames * upsample. Without gaps,
        # the new samples therefore begin where the audio so far ends, not where the last chunk's frames end.
        end = self._num_samples if self._gapless else decoded * upsample
        new = wave[..., max(0, end - start * upsample) :]
        self._num_samples += new.shape[-1]
        return new


class Code2WavScheduler(StreamScheduler):
    """Turns a request's stream of codes into audio while the codes arrive.

    Stream items are int tensors of codes: one frame (groups,), (frames, groups), or (1, groups, frames). A
    frame that begins with ``codec_eos_token_id`` is no audio and is left out. Chunks and the result are
    ``{"modality": "audio", "audio_data": float32 (samples,), "sample_rate": int}``. The result holds the
    whole waveform, which is the chunks put together, and its ``codes``, int64 (frames, groups). The same
    codes always give the same samples; with a ``StreamingVocoder`` up to its rounding, which may depend on
    batch and cuts.

    With the policy ``"deadline"``, a listener's chunks of a ``StreamingVocoder`` are as long as the sound in
    hand allows: short if it soon runs out. Otherwise the cuts depend on the number of frames alone.

    Args:
        model: The decoder, on ``device``.
        device: Of the decoding.
        stream_chunk_size: ``Chunking.chunk_size``.
        left_context_size, right_context_size: Those of ``Chunking``.
        sample_rate: Of the waveform, in Hz.
        codec_eos_token_id: First code of the frame that ends a stream.
        first_chunk_size: ``Chunking.first_chunk_size``.
        chunking_of: ``(payload, chunking of the stage)`` -> the request's own chunking.
        max_batch_frames: The most frames, of several requests, that a ``BatchingVocoder`` decodes at once.
        num_code_groups: Codes of a frame, for the warm-up; without it there is none.
        schedule_policy: Which request's codes are decoded next, as in ``StreamScheduler``.
        clock: The time in seconds.
        context_of: Frames (n, groups) that a request's codes continue, such as those of the recording of a
            voice, or None. They are decoded before the request's, and give no sound. It needs streams.

    Raises:
        ValueError: A size is out of its range, or ``left_context_size`` is None but the model has no streams,
            or there is a ``context_of`` although it has none.
    """

    def __init__(
        self,
        model: Vocoder,
        device: str | torch.device,
        stream_chunk_size: int = 10,
        left_context_size: int | None = 25,
        sample_rate: int = 24000,
        codec_eos_token_id: int | None = None,
        first_chunk_size: int = 2,
        chunking_of: Callable[[StagePayload, Chunking], Chunking] | None = None,
        max_batch_frames: int = 64,
        num_code_groups: int | None = None,
        schedule_policy: SchedulePolicy = "fcfs",
        clock: Callable[[], float] = time.monotonic,
        right_context_size: int = 0,
        context_of: Callable[[StagePayload], torch.Tensor | None] | None = None,
    ) -> None:
        if stream_chunk_size < 1 or (left_context_size or 0) < 0 or first_chunk_size < 1:
            raise ValueError(
                "stream_chunk_size and first_chunk_size must be at least 1 and left_context_size at least 0, "
                f"got {stream_chunk_size}, {first_chunk_size} and {left_context_size}"
            )
        if left_context_size is None and not isinstance(model, StreamingVocoder):
            raise ValueError(
                f"{type(model).__name__} has no open_stream(): give the left_context_size its chunks need"
            )
        if right_context_size and left_context_size is None:
            raise ValueError("a right_context_size needs a left_context_size: streams are causal")
        if context_of is not None and left_context_size is not None:
            raise ValueError("a context_of needs streams: leave left_context_size None")
        self.model = model
        self.device = torch.device(device)
        self.chunking = Chunking(
            stream_chunk_size, left_context_size, first_chunk_size, right_context_size=right_context_size
        )
        self.sample_rate = sample_rate
        self.codec_eos_token_id = codec_eos_token_id
        self.chunking_of = chunking_of
        self.context_of = context_of
        self.max_batch_frames = max_batch_frames
        self.schedule_policy = schedule_policy
        self.clock = clock
        self.frame_s = model.total_upsample / sample_rate
        # On a GPU a piece of a recorded length takes less time than a shorter one of its own length.
        self.fills_last_pieces = self.device.type == "cuda"
        self._num_code_groups = num_code_groups
        super().__init__(
            lambda: _Code2WavSession(self),
            expects_stream=lambda payload: True,
            wants_chunks=_listens,
            batch_compute_fn=self._decode,
            schedule_policy=schedule_policy,
            clock=clock,
        )

    def piece_sizes(self, chunking: Chunking) -> list[int]:
        """Frames of a stream's first piece, then those of the others, the shortest first."""
        sizes = chunking.sizes
        # After a context, the first chunk is not the stream's first piece.
        return sizes if self.context_of is None else [sizes[0], *dict.fromkeys(sizes)]

    def open_stream(self, chunking: Chunking) -> VocoderStream:
        """Opens a request's waveform."""
        if chunking.left_context_size is None:
            assert isinstance(self.model, StreamingVocoder)
            return self.model.open_stream()
        return WindowStream(self.model, chunking.left_context_size, gapless=chunking.gapless)

    def warm_up(self) -> None:
        """Decodes one stream, with chunks of all lengths. Called before ``start``; nothing is left of it.

        Raises:
            Exception: Whatever the decoder raises.
        """
        if self._num_code_groups is None:
            return
        stream = self.open_stream(self.chunking)
        length, longest = 0, self.chunking.chunk_size
        while length < longest:
            length = min(2 * length or self.chunking.first_chunk_size, longest)
            codes = torch.zeros(1, self._num_code_groups, length, dtype=torch.int64)
            self._decode([_Piece(self, 1, stream, codes)])

    def _decode(self, pieces: list[_Piece]) -> None:
        with torch.inference_mode():
            codes = to_device(torch.cat(_in_one_place([piece.codes for piece in pieces])), self.device)
            if len(pieces) > 1:
                assert isinstance(self.model, BatchingVocoder), "others' pieces have a key each"
                waves = self.model.decode_batch([piece.stream for piece in pieces], codes)
            else:
                stream, num_ahead = pieces[0].stream, pieces[0].num_ahead
                if isinstance(stream, WindowStream):
                    waves = stream.decode(codes, num_ahead)
                else:
                    waves = stream.decode(codes)
            audio = waves.flatten(1).float().cpu().numpy()
        for piece, samples in zip(pieces, audio, strict=True):
            piece.samples = samples[: len(samples) - piece.num_filled * self.model.total_upsample]


@dataclass(eq=False)
class _Piece(BatchItem):
    """The next codes (1, groups, frames) of a stream, the last ``num_ahead`` of them right context, or in a
    stream's last piece ``num_filled`` of them no frames of the stream; and the samples that they become.
    """

    stream: VocoderStream
    codes: torch.Tensor
    num_ahead: int = 0
    num_filled: int = 0
    samples: NDArray[np.float32] | None = None


def _listens(payload: StagePayload) -> bool:
    return bool(payload.request.params.get("stream", True))


class _Code2WavSession(StreamSession):
    def __init__(self, vocoder: Code2WavScheduler) -> None:
        self._vocoder = vocoder
        self._chunking = vocoder.chunking
        self._sizes: list[int] = []
        # What the listener hears, if the pieces are cut for one.
        self._playback: Playback | None = None
        self._stream: VocoderStream | None = None
        # True until the stream's first piece is made.
        self._is_new = True
        # Frames to decode, (groups,) each, which may be another process's memory, and decoded ones, which
        # are not: (1, groups, frames) each.
        self._frames: list[torch.Tensor] = []
        self._decoded: list[torch.Tensor] = []
        self._audio: list[NDArray[np.float32]] = []

    def begin(self, payload: StagePayload) -> Iterator[Any]:
        vocoder, chunking = self._vocoder, self._vocoder.chunking
        if vocoder.chunking_of is not None:
            chunking = vocoder.chunking_of(payload, chunking)
        self._chunking, self._sizes = chunking, chunking.sizes
        # With a left context, samples depend on the cuts, which must then be the same every time.
        if vocoder.schedule_policy == "deadline" and _listens(payload) and chunking.left_context_size is None:
            self._playback = Playback(vocoder.clock())
        self._stream = vocoder.open_stream(chunking)
        context = None if vocoder.context_of is None else vocoder.context_of(payload)
        if context is None:
            return
        frames = list(_as_frames(context, on_host=True))
        for size in _cut(len(frames), self._sizes):
            yield self._piece(torch.stack(frames[:size], dim=1).unsqueeze(0))
            del frames[:size]

    def feed(self, data: Any) -> Iterator[Any]:
        eos = self._vocoder.codec_eos_token_id
        # On a GPU, frames stay where they are, unless each must be looked at.
        on_host = eos is not None or self._vocoder.device.type == "cpu"
        for frame in _as_frames(data, on_host=on_host):
            if eos is None or int(frame[0]) != eos:
                self._frames.append(frame)
        while len(self._frames) >= (size := self._next_size()) + self._chunking.right_context_size:
            yield from self._decode(size)

    def _next_size(self) -> int:
        """New frames of the next piece."""
        sizes, num_pieces = self._sizes, len(self._decoded)
        if self._playback is None or num_pieces == 0:
            return sizes[min(num_pieces, len(sizes) - 1)]
        in_hand = self._playback.in_hand_s(self._vocoder.clock()) / self._vocoder.frame_s
        size = max((size for size in sizes if size <= SHARE_OF_SOUND_IN_HAND * in_hand), default=sizes[0])
        if self._playback.underrun_s <= self._playback.seconds:
            return size
        # More silence than sound: there is far more work than time. Longer pieces are less work.
        last = self._decoded[-1].shape[-1]
        return max(size, next((longer for longer in sizes if longer > last), sizes[-1]))

    def end(self) -> Iterator[Any]:
        count = len(self._frames)
        if not count:
            return
        # Only a causal decoder's sound does not depend on what follows.
        fills = self._vocoder.fills_last_pieces and self._chunking.left_context_size is None
        sizes = self._vocoder.piece_sizes(self._chunking)
        recorded = sizes[:1] if self._is_new else sizes[1:]
        size = next((size for size in recorded if size >= count), count) if fills else count
        yield from self._decode(count, num_filled=size - count)

    def result(self) -> dict[str, Any]:
        audio = np.concatenate(self._audio) if self._audio else np.zeros(0, np.float32)
        if self._decoded:
            codes = torch.cat(_in_one_place(self._decoded), dim=-1)[0].t().cpu().contiguous()
        else:
            codes = torch.zeros((0, 0), dtype=torch.int64)
        # An array: for a tensor, the server would import torch, which takes seconds and which it never needs.
        return {**self._chunk(audio), "codes": codes.numpy()}

    def _decode(self, count: int, num_filled: int = 0) -> Iterator[_Piece | dict[str, Any]]:
        """Decodes the next ``count`` frames, and yields the samples that they complete."""
        window = self._frames[: count + self._chunking.right_context_size]
        codes = torch.stack(_in_one_place(window), dim=1).unsqueeze(0)
        codes = torch.nn.functional.pad(codes, (0, num_filled))
        piece = self._piece(codes, len(window) - count, num_filled)
        yield piece
        assert piece.samples is not None
        del self._frames[:count]
        self._decoded.append(codes[..., :count])
        if len(piece.samples):
            vocoder = self._vocoder
            self._audio.append(piece.samples)
            if self._playback is not None:
                self._playback.feed(vocoder.clock(), len(piece.samples) / vocoder.sample_rate)
            yield self._chunk(piece.samples)

    def _piece(self, codes: torch.Tensor, num_ahead: int = 0, num_filled: int = 0) -> _Piece:
        """The stream's next ``codes`` (1, groups, frames), to be decoded before another piece is made."""
        assert self._stream is not None, "begin comes first"
        vocoder, num_frames = self._vocoder, codes.shape[-1]
        together = self._chunking.left_context_size is None and isinstance(vocoder.model, BatchingVocoder)
        # Pieces of equal length, all the first of their streams or none of them.
        key = (num_frames, self._is_new) if together else self
        self._is_new = False
        most = max(1, vocoder.max_batch_frames // num_frames)
        return _Piece(key, most, self._stream, codes, num_ahead, num_filled)

    def _chunk(self, audio: NDArray[np.float32]) -> dict[str, Any]:
        return {"modality": "audio", "audio_data": audio, "sample_rate": self._vocoder.sample_rate}


def _cut(count: int, sizes: Sequence[int]) -> Iterator[int]:
    """Lengths of the pieces of a context of ``count`` frames, of ``sizes`` as far as they add up to it."""
    size = min(sizes[0], count)
    while size:
        yield size
        count -= size
        size = max((size for size in sizes if size <= count), default=count)


def _in_one_place(codes: list[torch.Tensor]) -> list[torch.Tensor]:
    """Codes on one device. Some may have come by way of the host although others are on the GPU."""
    device = next((part.device for part in codes if part.device.type != "cpu"), codes[0].device)
    return [to_device(part, device) for part in codes]


def _as_frames(codes: Any, *, on_host: bool) -> tuple[torch.Tensor, ...]:
    """Single frames, each (groups,) int64, on their own device or on the host."""
    codes = torch.as_tensor(codes).long()
    if on_host:
        codes = codes.cpu()
    if codes.ndim == 3 and codes.shape[0] == 1:
        codes = codes[0].transpose(0, 1)
    elif codes.ndim == 1:
        codes = codes.unsqueeze(0)
    if codes.ndim != 2 or not codes.shape[1]:
        raise ValueError(
            "a stream item must hold codes of the shape (groups,), (frames, groups) or (1, groups, frames), "
            f"got {tuple(codes.shape)}"
        )
    return codes.unbind(0)
