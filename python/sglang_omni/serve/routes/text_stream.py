"""Text that comes in pieces, spoken sentence by sentence: the next is prepared while one is sent."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field

from sglang_omni.generation.fields import UsageInfo
from sglang_omni.preprocessing.sentences import SentenceSplitter
from sglang_omni.proto import first_failure
from sglang_omni.serve.front.admission import Admission
from sglang_omni.serve.routes.speech_encoding import EncodedSpeech

# As in the pipeline: the first clause of this length is enough sound to make the rest meanwhile.
_CLAUSE_CHARS = 24


@dataclass
class Sentence:
    """
    Attributes:
        index: Which of its utterance.
        speech: Its request, which begins when its pieces are read.
        pieces: The sound that has been made; None is its end.
        error: Why there is no more of it, once its end has come.
    """

    text: str
    index: int
    speech: EncodedSpeech
    pieces: asyncio.Queue[bytes | None] = field(default_factory=asyncio.Queue)
    error: Exception | None = None


class Utterance:
    """One text, from its first piece to its end, of which the sentences are sent in order.

    Args:
        open_speech: Makes the request for a sentence, from its text and its index.
        send: Sends a sentence to the client.
        ended: Called after the last sentence, with how many there were and what they took.
        admission: Gives each sentence a place of its own.
        slots: How many sentences of the connection are made at once.
        after: The end of the utterance before, of which something may still be sent.
        every_clause: True to speak clause by clause.

    Attributes:
        unspoken_chars: Characters of sentences that have not been sent yet.
        is_complete: True if its end has come.
        task: Ends when all is sent.
    """

    def __init__(
        self,
        open_speech: Callable[[str, int], EncodedSpeech],
        send: Callable[[Sentence], Awaitable[None]],
        ended: Callable[[int, UsageInfo], Awaitable[None]],
        admission: Admission,
        slots: asyncio.Semaphore,
        *,
        after: asyncio.Future[None] | None,
        every_clause: bool,
    ) -> None:
        self._open_speech = open_speech
        self._send = send
        self._ended = ended
        self._admission = admission
        self._splitter = SentenceSplitter(first_clause_chars=_CLAUSE_CHARS, every_clause=every_clause)
        self._texts: asyncio.Queue[str | None] = asyncio.Queue()
        self._in_order: asyncio.Queue[Sentence | None] = asyncio.Queue()
        self._slots = slots
        self._after = after
        self._silent = ""
        self.unspoken_chars = 0
        self.is_complete = False
        self.task: asyncio.Future[None] = asyncio.ensure_future(self._run())

    def add(self, text: str) -> None:
        for sentence in self._splitter.feed(text):
            self._put(sentence)

    def complete(self) -> None:
        self.is_complete = True
        for sentence in self._splitter.flush():
            self._put(sentence)
        self._texts.put_nowait(None)

    async def cancel(self) -> None:
        """End all requests; nothing more is sent once this returns."""
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)

    def _put(self, sentence: str) -> None:
        # A list's number or a row of dashes has no sound of its own.
        sentence = f"{self._silent} {sentence}".strip()
        if any(character.isalnum() for character in sentence):
            self._silent = ""
            self._texts.put_nowait(sentence)
            self.unspoken_chars += len(sentence)
        else:
            self._silent = sentence[-_CLAUSE_CHARS:]

    async def _run(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._start_sentences(group))
                await self._send_sentences()
        except BaseExceptionGroup as failed:
            # The client may have left while something was sent to it, which is an end as any other.
            raise first_failure(failed) from None

    async def _start_sentences(self, group: asyncio.TaskGroup) -> None:
        index = 0
        while (text := await self._texts.get()) is not None:
            await self._slots.acquire()
            sentence = Sentence(text, index, self._open_speech(text, index))
            index += 1
            self._in_order.put_nowait(sentence)
            group.create_task(self._make(sentence))
        self._in_order.put_nowait(None)

    async def _make(self, sentence: Sentence) -> None:
        permit = None
        try:
            # A client that leaves cancels this task.
            permit = await self._admission.acquire(asyncio.Event().wait)
            async with aclosing(sentence.speech.pieces()) as pieces:
                async for piece in pieces:
                    sentence.pieces.put_nowait(piece)
        except Exception as exc:  # noqa: BLE001 - one sentence's failure is that sentence's error
            sentence.error = exc
        finally:
            if permit is not None:
                self._admission.release(permit)
            sentence.pieces.put_nowait(None)

    async def _send_sentences(self) -> None:
        count, usage = 0, UsageInfo(0, 0, 0)
        if self._after is not None:
            await asyncio.wait({self._after})
        while (sentence := await self._in_order.get()) is not None:
            await self._send(sentence)
            self._slots.release()
            self.unspoken_chars -= len(sentence.text)
            count += 1
            _add(usage, sentence.speech.usage)
        await self._ended(count, usage)


def _add(total: UsageInfo, usage: UsageInfo | None) -> None:
    if usage is not None:
        total.prompt_tokens = (total.prompt_tokens or 0) + (usage.prompt_tokens or 0)
        total.completion_tokens = (total.completion_tokens or 0) + (usage.completion_tokens or 0)
        total.total_tokens = (total.total_tokens or 0) + (usage.total_tokens or 0)
