"""An engine of recordings: pieces are read, encoded in batches, and written by a language model's engine."""

from __future__ import annotations

import unicodedata
from collections import deque
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from sglang_omni.engines.base import TokenEngine
from sglang_omni.engines.request import BaseRequest, EngineRequest
from sglang_omni.model_runner.media import ThinkerState
from sglang_omni.model_runner.request_sampling import RequestSampling
from sglang_omni.models.qwen3_asr.components.answer import PieceAnswer
from sglang_omni.models.qwen3_asr.preprocess import Qwen3ASRInput
from sglang_omni.proto.tasks import TextChunk, TranscriptPiece

if TYPE_CHECKING:
    from tokenizers import Tokenizer

# How long a step waits for a piece to be read before the scheduler looks for messages again.
_READ_PATIENCE_S = 0.05
# No speech has more tokens: a piece that the model repeats itself in ends there.
TOKENS_PER_SECOND, SPARE_TOKENS = 16, 64


class ReadyPiece(Protocol):
    """A piece with its features; ``start`` and ``end`` are seconds of the recording."""

    @property
    def start(self) -> float: ...
    @property
    def end(self) -> float: ...
    @property
    def item(self) -> Any: ...


@dataclass(eq=False, slots=True)
class RecordingRequest(BaseRequest):
    """One recording.

    Attributes:
        read: Returns the next piece, or None after the last; called in other threads, one call at a time.
        seconds: Returns the recording's length as far as it was read.
        sampling: For each piece; with a seed, each piece draws from another.
        news: What is to be streamed since it was last taken.
        text: The whole so far.
        language: The first that the model, or the caller, names.
    """

    data: Qwen3ASRInput
    read: Callable[[], ReadyPiece | None]
    seconds: Callable[[], float]
    sampling: RequestSampling
    news: list[TextChunk] = field(default_factory=list)
    segments: list[TranscriptPiece] = field(default_factory=list)
    text: str = ""
    language: str | None = None
    reading: Future[ReadyPiece | None] | None = None
    piece: ReadyPiece | None = None
    inner: EngineRequest | None = None
    num_pieces: int = 0

    def take_news(self) -> list[TextChunk]:
        taken, self.news = self.news, []
        return taken


class RecordingEngine:
    """Implements ``engines.base.Engine``, which documents the methods.

    Args:
        decoder: Writes the pieces; this engine's alone.
        encode: Pieces' items to rows (m, hidden_size), a batch of them at once.
        tokenizer: The decoder's.
        pad: The token whose rows are a recording's.
        readers: Threads that read pieces.
        max_running: Recordings in work; others wait in line, and nothing of them is decoded.
        items_at_once: Pieces in a batch of the encoder.
    """

    def __init__(
        self,
        decoder: TokenEngine,
        encode: Callable[[list[Any]], list[Tensor]],
        tokenizer: Tokenizer,
        *,
        pad: int,
        readers: Executor,
        max_running: int,
        items_at_once: int,
    ) -> None:
        self._decoder = decoder
        self._encode = encode
        self._tokenizer = tokenizer
        self._pad = pad
        self._readers = readers
        self._max_running = max_running
        self._items_at_once = items_at_once
        self._line: deque[RecordingRequest] = deque()
        self._open: dict[str, RecordingRequest] = {}
        self._encoding: list[RecordingRequest] = []
        self._by_inner: dict[str, RecordingRequest] = {}
        self.stepped: Collection[str] = ()

    @property
    def has_work(self) -> bool:
        return bool(self._open)

    @property
    def running(self) -> list[RecordingRequest]:
        return [*self._encoding, *(self._by_inner[inner.request_id] for inner in self._decoder.running)]

    def add(self, request: RecordingRequest) -> None:
        if request.request_id in self._open or any(r.request_id == request.request_id for r in self._line):
            raise ValueError(f"request {request.request_id!r} is already in the engine")
        request.language = request.data["language"]
        self._line.append(request)
        self._fill()

    def abort(self, request_id: str) -> RecordingRequest | None:
        for waiting in self._line:
            if waiting.request_id == request_id:
                self._line.remove(waiting)
                return waiting
        request = self._open.get(request_id)
        if request is not None:
            self._leave(request)
        return request

    def step(self) -> list[RecordingRequest]:
        advanced: dict[str, RecordingRequest] = {}
        for request in self._begin_pieces():
            advanced[request.request_id] = request
        if self._decoder.has_work:
            for inner in self._decoder.step():
                request = self._by_inner[inner.request_id]
                self._advance(request, inner)
                advanced[request.request_id] = request
        self.stepped = list(advanced)
        return list(advanced.values())

    def flush_cache(self) -> None:
        self._decoder.flush_cache()

    def reset_counters(self) -> None:
        self._decoder.reset_counters()

    def stats(self) -> dict[str, int]:
        stats = self._decoder.stats()
        return stats | {
            "num_running_reqs": len(self._open),
            "max_running_reqs": self._max_running,
            "num_queue_reqs": len(self._line),
        }

    def _fill(self) -> None:
        while self._line and len(self._open) < self._max_running:
            request = self._line.popleft()
            self._open[request.request_id] = request
            request.reading = self._readers.submit(request.read)

    def _leave(self, request: RecordingRequest) -> None:
        """Frees what a request holds, and lets the next in line begin."""
        del self._open[request.request_id]
        if request.reading is not None:
            request.reading.cancel()
        if request.inner is not None:
            self._decoder.abort(request.inner.request_id)
            del self._by_inner[request.inner.request_id]
        self._fill()

    def _end(self, request: RecordingRequest, failure: Exception | None = None) -> RecordingRequest:
        request.failure = failure
        request.finish("stop" if failure is None else "abort")
        self._leave(request)
        return request

    def _begin_pieces(self) -> Iterator[RecordingRequest]:
        """Encodes the pieces that have been read. Yields the requests that are over."""
        waiting = [r for r in self._open.values() if r.inner is None]
        if waiting and not self._decoder.has_work:
            futures = [r.reading for r in waiting if r.reading is not None]
            wait(futures, _READ_PATIENCE_S, return_when=FIRST_COMPLETED)
        ready: list[RecordingRequest] = []
        for request in waiting:
            if request.reading is None or not request.reading.done():
                continue
            try:
                request.piece = request.reading.result()
            except Exception as exc:  # noqa: BLE001  whatever a reader raises is its request's failure
                yield self._end(request, exc)
                continue
            if request.piece is None:
                yield self._end(request)
            else:
                ready.append(request)
        self._encoding = ready[: self._items_at_once]
        if not self._encoding:
            return
        rows = self._encode([request.piece.item for request in self._encoding if request.piece])
        for request, embeds in zip(self._encoding, rows, strict=True):
            # The next piece is read while this one is written.
            request.reading = self._readers.submit(request.read)
            try:
                self._write(request, embeds)
            except Exception as exc:  # noqa: BLE001  a prompt that the engine refuses is its request's failure
                yield self._end(request, exc)
        self._encoding = []

    def _write(self, request: RecordingRequest, embeds: Tensor) -> None:
        assert request.piece is not None
        before, after = request.data["before"], request.data["after"]
        places = torch.arange(len(before), len(before) + len(embeds))
        seconds = request.piece.end - request.piece.start
        most = int(seconds * TOKENS_PER_SECOND) + SPARE_TOKENS
        asked, seed = request.sampling.max_new_tokens, request.sampling.seed
        inner = EngineRequest(
            f"{request.request_id}/{request.num_pieces}",
            [*before, *[self._pad] * len(embeds), *after],
            replace(
                request.sampling,
                max_new_tokens=most if asked is None else min(asked, most),
                seed=None if seed is None else seed + request.num_pieces,
            ),
            PieceAnswer(self._tokenizer, language_is_given=request.data["language"] is not None),
            state=ThinkerState(places, embeds, torch.empty(0, dtype=torch.long)),
            cacheable=False,
        )
        self._decoder.add(inner)
        request.num_pieces += 1
        request.inner = inner
        self._by_inner[inner.request_id] = request

    def _advance(self, request: RecordingRequest, inner: EngineRequest) -> None:
        """Takes over what a piece's answer has that is new."""
        answer, piece = inner.detokenizer, request.piece
        assert isinstance(answer, PieceAnswer)
        assert piece is not None
        new = answer.take()
        if new and request.text and new == answer.text:
            # The first of this piece.
            new = _space(request.text, new) + new
        request.text += new
        segments: list[TranscriptPiece] = []
        if inner.finish_reason is not None:
            del self._by_inner[inner.request_id]
            request.inner = None
            request.language = request.language or answer.language
            if inner.failure is not None:
                self._end(request, inner.failure)
                return
            if answer.text:
                segments.append(
                    TranscriptPiece(
                        seek=round(piece.start * 100),
                        start=round(piece.start, 3),
                        end=round(piece.end, 3),
                        text=answer.text,
                        tokens=list(inner.output_token_ids),
                        temperature=inner.sampling.temperature,
                    )
                )
                request.segments += segments
        if new or segments:
            request.news.append(TextChunk(modality="text", text=new, segments=segments))


def _space(before: str, after: str) -> str:
    """What stands between two pieces: nothing in scripts without spaces."""
    wide = ("W", "F")
    return (
        ""
        if unicodedata.east_asian_width(before[-1]) in wide and unicodedata.east_asian_width(after[0]) in wide
        else " "
    )
