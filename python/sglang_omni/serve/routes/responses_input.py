"""The input of ``/v1/responses``: its items, and the conversation that they are."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from uuid import uuid4

from sglang_omni.serve.models.responses import InputMessage, ResponsesRequest
from sglang_omni.serve.responses_store import Item
from sglang_omni.serve.state import AppState

_PREFIXES = {"message": "msg", "function_call": "fc", "function_call_output": "fco", "reasoning": "rs"}
_MODALITIES = {"input_image": "image", "input_audio": "audio"}


def new_id(kind: str) -> str:
    """An id for an item of this type."""
    return f"{_PREFIXES[kind]}_{uuid4().hex}"


def input_items(body: ResponsesRequest) -> list[Item]:
    """The items of a request's own input, each with an id and its content as a list of parts."""
    if isinstance(body.input, str):
        return [_complete({"type": "message", "role": "user", "content": body.input})]
    return [_complete(item.model_dump(exclude_none=True)) for item in body.input]


def check_media(server: AppState, body: ResponsesRequest) -> None:
    """
    Raises:
        RequestError: A part of the input is of a kind that the model does not take.
    """
    for index, item in enumerate(body.input if isinstance(body.input, list) else ()):
        if isinstance(item, InputMessage) and isinstance(item.content, list):
            for at, part in enumerate(item.content):
                if modality := _MODALITIES.get(part.type):
                    server.check_input(modality, f"input[{index}].content[{at}]")


def conversation(
    instructions: str | None, earlier: Iterable[Item], items: Iterable[Item]
) -> list[dict[str, Any]]:
    """The messages of a chat.

    Args:
        instructions: For the system's message.
        earlier: Items of the responses before.
        items: Of this request's own input.
    """
    turns = _Turns()
    if instructions is not None:
        turns.say("system", instructions)
    for item in earlier:
        turns.add(item, "previous_response_id")
    for index, item in enumerate(items):
        turns.add(item, f"input[{index}]")
    return turns.messages


class _Turns:
    """Puts items together to messages: what an assistant thinks, says and calls in a row is one message."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []

    def add(self, item: Item, param: str) -> None:
        match item["type"]:
            case "message":
                role = "system" if item["role"] == "developer" else item["role"]
                self.say(role, _content(item["content"], param))
            case "reasoning":
                text = "\n".join(part["text"] for part in item.get("content", ()))
                if text:
                    self._assistant()["reasoning_content"] = text
            case "function_call":
                function = {"name": item["name"], "arguments": item["arguments"]}
                call = {"id": item["call_id"], "type": "function", "function": function}
                self._assistant().setdefault("tool_calls", []).append(call)
            case "function_call_output":
                output = "".join(part["text"] for part in item["output"])
                self.messages.append({"role": "tool", "tool_call_id": item["call_id"], "content": output})

    def say(self, role: str, content: Any) -> None:
        last = self.messages[-1] if self.messages else None
        if role == "assistant":
            turn = self._assistant()
            if turn["content"] is None:
                turn["content"] = content
            else:
                self.messages.append({"role": role, "content": content})
        elif role == "system" and last is not None and last["role"] == role and len(self.messages) == 1:
            # Many templates take one message of the system, at the beginning.
            last["content"] = [*_as_parts(last["content"]), *_as_parts(content)]
        else:
            self.messages.append({"role": role, "content": content})

    def _assistant(self) -> dict[str, Any]:
        """The assistant's turn at the end of the conversation."""
        if not self.messages or self.messages[-1]["role"] != "assistant":
            self.messages.append({"role": "assistant", "content": None})
        return self.messages[-1]


def _complete(item: Item) -> Item:
    kind = item["type"]
    for name, part in (("content", "input_text"), ("output", "input_text")):
        if isinstance(item.get(name), str):
            part = "output_text" if item.get("role") == "assistant" else part
            item[name] = [{"type": part, "text": item[name]}]
    return {"id": new_id(kind), "status": "completed", **item}


def _as_parts(content: Any) -> list[dict[str, Any]]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _content(parts: list[dict[str, Any]], param: str) -> Any:
    """A message's content in the chat's form; a single text as it is."""
    chat = [_part(part, f"{param}.content[{index}]") for index, part in enumerate(parts)]
    if all(part["type"] == "text" for part in chat):
        texts = [part["text"] for part in chat]
        return texts[0] if len(texts) == 1 else (chat or "")
    return chat


def _part(part: dict[str, Any], param: str) -> dict[str, Any]:
    match part["type"]:
        case "input_image":
            image = {"url": part["image_url"], "detail": part.get("detail")}
            url = {name: value for name, value in image.items() if value is not None}
            return {"type": "image_url", "image_url": url, "param": f"{param}.image_url"}
        case "input_audio":
            where = f"{param}.input_audio.data"
            return {"type": "input_audio", "input_audio": part["input_audio"], "param": where}
        case "refusal":
            return {"type": "text", "text": part["refusal"]}
    return {"type": "text", "text": part["text"]}
