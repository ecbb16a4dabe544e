"""The items of a session in their order, and the prompt that they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sglang_omni.proto import RequestError
from sglang_omni.serve.realtime.items import Item, Part

MAX_ITEMS = 1024
# Of all sound that a session keeps; what is not needed for a prompt is forgotten first.
MAX_AUDIO_S = 1200.0
ROOT = "root"


class Conversation:
    def __init__(self) -> None:
        self._items: list[Item] = []

    def __len__(self) -> int:
        return len(self._items)

    @property
    def items(self) -> Sequence[Item]:
        return self._items

    @property
    def last_id(self) -> str | None:
        return self._items[-1].id if self._items else None

    def get(self, item_id: str) -> Item:
        """
        Raises:
            RequestError: There is no such item.
        """
        return self._items[self._index(item_id, "item_id")]

    def check_room(self) -> None:
        """
        Raises:
            RequestError: There are as many items as there may be.
        """
        if len(self._items) >= MAX_ITEMS:
            raise RequestError(
                f"the conversation has {MAX_ITEMS} items, the limit: delete some", code="conversation_full"
            )

    def add(self, item: Item, after: str | None = None) -> str | None:
        """
        Args:
            after: The id of the item before it; "root" for none; None for the last one.

        Returns:
            The id of the item before it; None if there is none.

        Raises:
            RequestError: There is no such item, the item's own id is taken, or there is no room.
        """
        self.check_room()
        if any(other.id == item.id for other in self._items):
            raise RequestError(
                f"item.id: the conversation has an item {item.id!r} already",
                param="item.id",
                code="duplicate_item_id",
            )
        index = len(self._items)
        if after is not None:
            index = 0 if after == ROOT else self._index(after, "previous_item_id") + 1
        self._check_sound(item)
        self._items.insert(index, item)
        return self._items[index - 1].id if index else None

    def before(self, item_id: str) -> str | None:
        """The id of the item before this one; None if there is none, or this one is gone."""
        ids = [item.id for item in self._items]
        index = ids.index(item_id) if item_id in ids else 0
        return ids[index - 1] if index else None

    def delete(self, item_id: str) -> None:
        del self._items[self._index(item_id, "item_id")]

    def truncate(self, item_id: str, content_index: int, audio_end_ms: int) -> str:
        """Cut an answer's sound and its transcript; returns what is left of the transcript.

        Raises:
            RequestError: The item is no spoken answer, or is not as long.
        """
        item = self.get(item_id)
        part = item.content[content_index] if content_index < len(item.content) else None
        if part is None or part.kind != "output_audio":
            raise RequestError(
                f"item_id: {item_id!r} has no spoken answer in its content {content_index}",
                param="item_id",
                code="invalid_value",
            )
        seconds = audio_end_ms / 1000
        # A client counts what it has played; a millisecond of rounding is not an error.
        if seconds > part.spoken.seconds + 0.001:
            raise RequestError(
                f"audio_end_ms: the answer has {round(1000 * part.spoken.seconds)} ms of sound",
                param="audio_end_ms",
                code="invalid_value",
            )
        part.transcript = part.spoken.until(seconds, part.transcript or "")
        if part.audio is not None:
            part.audio = part.audio.until(seconds)
        part.spoken.cut(seconds, part.transcript)
        return part.transcript

    def forget_sound(self, more: float = 0.0) -> None:
        """Forget the oldest sound that no prompt needs, if with ``more`` seconds there is too much."""
        excess = sum(_seconds(item) for item in self._items) + more - MAX_AUDIO_S
        for part in (part for item in self._items for part in item.content):
            if excess <= 0:
                return
            if part.audio is not None and (part.kind == "output_audio" or part.is_heard):
                excess -= part.audio.seconds
                part.audio = None

    def _check_sound(self, item: Item) -> None:
        if not (more := _seconds(item)):
            return
        self.forget_sound(more)
        kept = sum(_seconds(other) for other in self._items)
        if kept + more > MAX_AUDIO_S:
            raise RequestError(
                f"the conversation has {kept:.0f} s of sound, and may have {MAX_AUDIO_S:.0f} s: delete items",
                code="conversation_full",
            )

    def _index(self, item_id: str, param: str) -> int:
        for index, item in enumerate(self._items):
            if item.id == item_id:
                return index
        raise RequestError(
            f"{param}: the conversation has no item {item_id[:100]!r}", param=param, code="item_not_found"
        )


def _seconds(item: Item) -> float:
    return sum(part.audio.seconds for part in item.content if part.audio is not None)


def messages_of(items: Sequence[Item], instructions: str) -> list[dict[str, Any]]:
    """The conversation as a chat's messages.

    A turn reads the same in every later prompt, for which caches have its tokens: what the pipeline has
    written down of sound stands for it once that is known, as the pipeline itself has it.
    """
    messages: list[dict[str, Any]] = []
    if instructions:
        messages.append({"role": "system", "content": instructions})
    for item in items:
        if item.type == "function_call":
            _add_call(messages, item)
        elif item.type == "function_call_output":
            messages.append({"role": "tool", "tool_call_id": item.call_id, "content": item.output})
        elif item.role == "assistant":
            text = "".join(part.transcript or part.text for part in item.content)
            if text:
                messages.append({"role": "assistant", "content": text})
        elif item.content:
            content = [_content(part, item) for part in item.content]
            messages.append({"role": item.role, "content": content})
    return messages


def _add_call(messages: list[dict[str, Any]], item: Item) -> None:
    call = {
        "id": item.call_id,
        "type": "function",
        "function": {"name": item.name, "arguments": item.arguments},
    }
    # A message and the calls that follow it are one turn of the model's.
    if messages and messages[-1]["role"] == "assistant":
        messages[-1].setdefault("tool_calls", []).append(call)
    else:
        messages.append({"role": "assistant", "content": "", "tool_calls": [call]})


def _content(part: Part, item: Item) -> dict[str, Any]:
    if part.kind == "input_image":
        image = {"url": part.text, "detail": part.detail}
        return {"type": "image_url", "image_url": image, "param": f"the image of {item.id}"}
    if part.kind == "input_text":
        return {"type": "text", "text": part.text}
    if part.audio is None or (part.is_heard and part.transcript):
        return {"type": "text", "text": part.transcript or "(no speech was heard)"}
    sound = {"data": part.audio.wav(), "format": "wav"}
    return {"type": "input_audio", "input_audio": sound, "param": f"the sound of {item.id}"}
