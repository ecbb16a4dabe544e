"""The items that a response writes, and the events of each of their pieces."""

from __future__ import annotations

import base64
import time
from typing import Any

from sglang_omni.generation.answer import GenerateChunk
from sglang_omni.generation.fields import ToolCall, TranscriptionWord
from sglang_omni.generation.samples import DEFAULT_SAMPLE_RATE
from sglang_omni.serve.realtime.clip import Clip
from sglang_omni.serve.realtime.conversation import Conversation
from sglang_omni.serve.realtime.events import new_id
from sglang_omni.serve.realtime.items import Item, Part
from sglang_omni.serve.realtime.listener import AnswerListener
from sglang_omni.serve.realtime.outbox import EventQueue
from sglang_omni.serve.realtime.sound import AudioFormat, Samples, SoundEncoder
from sglang_omni.serve.word_times import WordTimes


class Outputs:
    """
    Attributes:
        items: Those that are begun, in their order: at most one message, and calls of functions.
        played_at: When a client that plays the sound as it comes has played it, by ``time.monotonic``.
    """

    def __init__(
        self,
        response_id: str,
        outbox: EventQueue,
        conversation: Conversation | None,
        *,
        is_spoken: bool,
        sound: AudioFormat,
        listener: AnswerListener | None,
        times: WordTimes | None,
    ) -> None:
        self.items: list[Item] = []
        self.played_at = 0.0
        self._response_id = response_id
        self._outbox = outbox
        self._conversation = conversation
        self._is_spoken = is_spoken
        self._encoder = SoundEncoder(sound)
        self._listener = listener
        self._times = times
        self._message: Item | None = None
        self._calls: dict[int, Item] = {}
        # Pieces of 16-bit samples, joined at the end.
        self._pcm: list[bytes] = []
        self._rate = 0

    def add_text(self, text: str) -> None:
        message = self._in_message()
        part = message.content[0]
        if self._is_spoken:
            part.transcript = (part.transcript or "") + text
            self._put("response.output_audio_transcript.delta", message, content_index=0, delta=text)
        else:
            part.text += text
            self._put("response.output_text.delta", message, content_index=0, delta=text)

    def add_sound(self, part: GenerateChunk, samples: Samples) -> None:
        """``samples``: of the part, float32 of shape (n,)."""
        if not self._is_spoken:
            return
        message = self._in_message()
        rate = part.sample_rate or DEFAULT_SAMPLE_RATE
        self.played_at = max(self.played_at, time.monotonic()) + len(samples) / rate
        # What is in no conversation is not cut or shown again; a duplex answer may last an hour.
        if self._conversation is not None:
            message.content[0].spoken.add(part.spoken_text, samples, rate, part.words)
            self._rate = self._rate or rate
            if rate == self._rate:
                self._pcm.append(Clip.of(samples).pcm)
        self._send_words(message, part.words)
        if self._listener is not None:
            self._listener.play(self._response_id, message.id, samples, rate)
            return
        self._send_sound(message, self._encoder.add(samples, rate))

    def add_call(self, call: ToolCall) -> None:
        item = self._calls.get(call.index)
        if item is None:
            item = self._calls[call.index] = Item(
                new_id("item"),
                "function_call",
                status="in_progress",
                name=call.name or "",
                call_id=call.id or new_id("call"),
            )
            self._begin(item)
        if call.arguments:
            item.arguments += call.arguments
            self._put(
                "response.function_call_arguments.delta", item, call_id=item.call_id, delta=call.arguments
            )

    def end(self, *, is_complete: bool, status: str) -> None:
        """Tell the end of every item. ``is_complete``: whether all of the answer's sound is there."""
        for item in self.items:
            item.status = "completed" if status == "completed" else "incomplete"
            if item.type == "message":
                self._end_message(item, is_complete=is_complete)
            else:
                self._put(
                    "response.function_call_arguments.done",
                    item,
                    call_id=item.call_id,
                    name=item.name,
                    arguments=item.arguments,
                )
            if self._conversation is not None:
                self._outbox.put("conversation.item.done", item=item.shown(), **self._before(item))
            self._put("response.output_item.done", item, with_id=False, item=item.shown())
        if self._conversation is not None:
            self._conversation.forget_sound()

    def _send_words(self, message: Item, words: list[TranscriptionWord], *, last: bool = False) -> None:
        if self._times is None or not (shown := self._times.add(words, last=last)):
            return
        self._put(
            "response.output_audio.words",
            message,
            content_index=0,
            granularity=self._times.granularity,
            words=shown,
        )

    def _end_message(self, message: Item, *, is_complete: bool) -> None:
        part = message.content[0]
        if self._is_spoken:
            part.spoken.is_whole = is_complete
            if self._pcm:
                part.audio = Clip(b"".join(self._pcm), self._rate)
                self._pcm = []
            self._send_words(message, [], last=True)
            if is_complete and self._listener is None:
                self._send_sound(message, self._encoder.finish())
            self._put("response.output_audio.done", message, content_index=0)
            self._put(
                "response.output_audio_transcript.done",
                message,
                content_index=0,
                transcript=part.transcript or "",
            )
        else:
            self._put("response.output_text.done", message, content_index=0, text=part.text)
        self._put("response.content_part.done", message, content_index=0, part=_shown(part))

    def _in_message(self) -> Item:
        """The message, which begins with its first piece: a response may be calls alone."""
        if self._message is None:
            part = Part("output_audio", transcript="") if self._is_spoken else Part("output_text")
            self._message = Item(new_id("item"), "message", "assistant", "in_progress")
            self._begin(self._message)
            self._message.content.append(part)
            self._put("response.content_part.added", self._message, content_index=0, part=_shown(part))
        return self._message

    def _begin(self, item: Item) -> None:
        self.items.append(item)
        if self._conversation is not None:
            self._conversation.add(item)
        self._put("response.output_item.added", item, with_id=False, item=item.shown())
        if self._conversation is not None:
            self._outbox.put("conversation.item.added", item=item.shown(), **self._before(item))

    def _before(self, item: Item) -> dict[str, Any]:
        assert self._conversation is not None
        return {"previous_item_id": self._conversation.before(item.id)}

    def _send_sound(self, message: Item, data: bytes) -> None:
        if data:
            delta = base64.b64encode(data).decode()
            self._put("response.output_audio.delta", message, content_index=0, delta=delta)

    def _put(self, kind: str, of: Item, /, *, with_id: bool = True, **fields: Any) -> None:
        places: dict[str, Any] = {
            "response_id": self._response_id,
            "output_index": self.items.index(of),
        }
        if with_id:
            places["item_id"] = of.id
        self._outbox.put(kind, **places, **fields)


def _shown(part: Part) -> dict[str, Any]:
    if part.kind == "output_text":
        return {"type": "text", "text": part.text}
    return {"type": "audio", "transcript": part.transcript or ""}
