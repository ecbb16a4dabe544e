"""The output of ``/v1/responses``: its items and, of a stream, the events that show how they grow."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sglang_omni.generation.answer import GenerateChunk
from sglang_omni.generation.fields import TokenLogprob, ToolCall
from sglang_omni.serve.responses_store import Item
from sglang_omni.serve.routes.responses_input import new_id

Event = dict[str, Any]


class OutputWriter:
    """Writes an answer as items: what the model thinks, its message, and the calls of functions.

    Each method returns the events of what it did, without their sequence numbers.

    Attributes:
        items: So far.
    """

    def __init__(self) -> None:
        self.items: list[Item] = []
        # The item of text that grows, with its place; calls grow until the end.
        self._open: Item | None = None
        self._calls: dict[int, int] = {}

    def add(self, new: GenerateChunk) -> list[Event]:
        """What is new in an answer, or all of it."""
        events: list[Event] = []
        if new.reasoning:
            events += self._write("reasoning", new.reasoning, [])
        if new.text or (new.logprobs and self._open is not None and self._open["type"] == "message"):
            events += self._write("message", new.text, new.logprobs)
        for call in new.tool_calls:
            events += self._call(call)
        return events

    def finish(self, status: str) -> list[Event]:
        """End all items. ``status``: of the last; those before it are completed."""
        events = [] if self.items else self._begin("message")
        last = len(self.items) - 1
        events += self._close("completed" if self._calls else status)
        for place in self._calls.values():
            item = self.items[place]
            item["status"] = status if place == last else "completed"
            where = {"item_id": item["id"], "output_index": place}
            done = {"name": item["name"], "arguments": item["arguments"]}
            events += [
                {"type": "response.function_call_arguments.done", **where, **done},
                {"type": "response.output_item.done", "output_index": place, "item": _copied(item)},
            ]
        return events

    def _write(self, kind: str, text: str, logprobs: Iterable[TokenLogprob]) -> list[Event]:
        events = []
        if self._open is None or self._open["type"] != kind:
            events = self._begin(kind)
        assert self._open is not None
        part = self._open["content"][0]
        part["text"] += text
        delta: Event = {"type": f"{_NAMES[kind]}.delta", **self._where(), "delta": text}
        if kind == "message":
            new = [logprob_fields(token) for token in logprobs]
            part["logprobs"] += new
            delta["logprobs"] = new
        return [*events, delta]

    def _begin(self, kind: str) -> list[Event]:
        events = self._close("completed")
        item: Item = {"id": new_id(kind), "type": kind, "status": "in_progress", "content": []}
        if kind == "message":
            item["role"] = "assistant"
            part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        else:
            item["summary"] = []
            part = {"type": "reasoning_text", "text": ""}
        self._open = item
        self.items.append(item)
        place = len(self.items) - 1
        events.append({"type": "response.output_item.added", "output_index": place, "item": _copied(item)})
        item["content"].append(part)
        return [*events, {"type": "response.content_part.added", **self._where(), "part": _copied(part)}]

    def _close(self, status: str) -> list[Event]:
        """End the text that grows, if any does."""
        item = self._open
        if item is None:
            return []
        item["status"] = status
        where, part = self._where(), item["content"][0]
        done: Event = {"type": f"{_NAMES[item['type']]}.done", **where, "text": part["text"]}
        if item["type"] == "message":
            done["logprobs"] = list(part["logprobs"])
        place = where["output_index"]
        self._open = None
        return [
            done,
            {"type": "response.content_part.done", **where, "part": _copied(part)},
            {"type": "response.output_item.done", "output_index": place, "item": _copied(item)},
        ]

    def _call(self, call: ToolCall) -> list[Event]:
        events: list[Event] = []
        place = self._calls.get(call.index)
        if place is None:
            events = self._close("completed")
            item: Item = {
                "id": new_id("function_call"),
                "type": "function_call",
                "status": "in_progress",
                "call_id": call.id or f"call_{call.index}",
                "name": call.name or "",
                "arguments": "",
            }
            self.items.append(item)
            place = self._calls[call.index] = len(self.items) - 1
            events.append(
                {"type": "response.output_item.added", "output_index": place, "item": _copied(item)}
            )
        item = self.items[place]
        if call.arguments:
            item["arguments"] += call.arguments
            where = {"item_id": item["id"], "output_index": place}
            events.append(
                {"type": "response.function_call_arguments.delta", **where, "delta": call.arguments}
            )
        return events

    def _where(self) -> dict[str, Any]:
        assert self._open is not None
        place = next(index for index, item in enumerate(self.items) if item is self._open)
        return {"item_id": self._open["id"], "output_index": place, "content_index": 0}


_NAMES = {"message": "response.output_text", "reasoning": "response.reasoning_text"}


def logprob_fields(token: TokenLogprob) -> dict[str, Any]:
    return {
        "token": token.token,
        "bytes": list(token.token_bytes),
        "logprob": token.logprob,
        "top_logprobs": [
            {"token": other.token, "bytes": list(other.token_bytes), "logprob": other.logprob}
            for other in token.top
        ],
    }


def _copied(item: Item) -> Item:
    """An item as it is now, which later events do not change."""
    return {
        key: [dict(part) if isinstance(part, dict) else part for part in value]
        if isinstance(value, list)
        else value
        for key, value in item.items()
    }
