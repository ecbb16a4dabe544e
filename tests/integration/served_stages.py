"""Stages of the servers that the launcher's tests start. Imported by their processes: nothing heavy here."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import Queue

from sglang_omni.proto import StagePayload
from sglang_omni.scheduling.messages import IncomingMessage, OutgoingMessage
from sglang_omni.scheduling.queues import Inbox, Outbox
from sglang_omni.scheduling.simple_scheduler import SimpleScheduler


def upper() -> Callable[[StagePayload], dict]:
    return lambda payload: {"text": payload.request.inputs["prompt"].upper()}


def upper_by_three() -> SimpleScheduler:
    """Three requests at once."""

    def run(payload: StagePayload) -> StagePayload:
        payload.data = upper()(payload)
        return payload

    return SimpleScheduler(run, max_concurrency=3)


def answer() -> Callable[[StagePayload], dict]:
    def run(payload: StagePayload) -> dict:
        if payload.data["text"] == "HANG":
            threading.Event().wait()
        while payload.data["text"] == "WAIT" and not Path(os.environ["TEST_RELEASE_FILE"]).exists():
            time.sleep(0.02)
        return {"modality": "text", "text": payload.data["text"], "finish_reason": "stop"}

    return run


def broken() -> None:
    raise FileNotFoundError("no weights in /nowhere")


def never() -> None:
    """A model that takes for ever to load."""
    threading.Event().wait()


class Speaker:
    """Streams the words it is asked for; after the word HANG it says nothing more, not even the end."""

    def __init__(self) -> None:
        self.inbox: Queue[IncomingMessage | None] = Inbox()
        self.outbox: Queue[OutgoingMessage] = Outbox()

    def start(self) -> None:
        while (message := self.inbox.get()) is not None:
            request_id = message.request_id
            words = self.words(message.data.request.inputs)
            for word in words:
                said = {"modality": "text", "text": word}
                self.outbox.put(OutgoingMessage(request_id, "stream", said))
            if "HANG" not in words:
                whole = {"modality": "text", "text": "".join(words), "finish_reason": "stop"}
                self.outbox.put(OutgoingMessage(request_id, "result", whole))
            elif "FAIL" in words:
                self.outbox.put(OutgoingMessage(request_id, "error", RuntimeError("out of words")))

    def words(self, inputs: dict) -> list[str]:
        return inputs["messages"][-1]["content"].split(" ")

    def stop(self) -> None:
        self.inbox.put(None)

    def abort(self, request_id: str) -> None:
        """What was said is said."""


class Flood(Speaker):
    """Streams as many megabytes as the prompt says."""

    def words(self, inputs: dict) -> list[str]:
        return ["x" * 1_000_000] * int(inputs["prompt"])


class Steps(Speaker):
    """Counts up to the prompt, a number a step and all requests in the same steps, as an engine does."""

    def start(self) -> None:
        running: dict[str, tuple[int, int]] = {}
        while True:
            while not running or not self.inbox.empty():
                if (message := self.inbox.get()) is None:
                    return
                running[message.request_id] = 0, int(message.data.request.inputs["prompt"])
            with self.outbox.together():
                for request_id, (number, end) in list(running.items()):
                    token = {"modality": "text", "text": f" {number}", "token_ids": [number]}
                    self.outbox.put(OutgoingMessage(request_id, "stream", token))
                    running[request_id] = number + 1, end
                    if number + 1 == end:
                        del running[request_id]
                        whole = {"text": "".join(f" {number}" for number in range(end))}
                        self.outbox.put(OutgoingMessage(request_id, "result", whole))


class Counting:
    """Counts for each request, a number a step and all in the same steps, until it may stop.

    It may stop at the number that is its prompt, or, if that is none, once a file is there.
    """

    def __init__(self) -> None:
        self.inbox: Queue[IncomingMessage | None] = Inbox()
        self.outbox: Queue[OutgoingMessage] = Outbox()
        self.running: dict[str, tuple[int, str]] = {}

    def start(self) -> None:
        while True:
            while not self.running or not self.inbox.empty():
                if (message := self.inbox.get()) is None:
                    return
                inputs = message.data.request.inputs
                prompt = inputs.get("prompt") or inputs["messages"][-1]["content"]
                self.running[message.request_id] = 0, prompt
            released = Path(os.environ["TEST_RELEASE_FILE"]).exists()
            with self.outbox.together():
                for request_id, (number, prompt) in list(self.running.items()):
                    self.step(request_id, number, is_last=prompt == str(number) or released)
            time.sleep(0.005)

    def step(self, request_id: str, number: int, *, is_last: bool) -> None:
        token = {"modality": "text", "text": f" {number}", "token_ids": [number]}
        self.outbox.put(OutgoingMessage(request_id, "stream", token))
        if request_id in self.running:
            self.running[request_id] = number + 1, self.running[request_id][1]
        if is_last:
            self.running.pop(request_id, None)
            usage = {"prompt_tokens": 1, "completion_tokens": number + 1}
            text = "".join(f" {each}" for each in range(number + 1))
            whole = {"text": text, "finish_reason": "stop", "usage": usage}
            self.outbox.put(OutgoingMessage(request_id, "result", whole))

    def stop(self) -> None:
        self.inbox.put(None)

    def abort(self, request_id: str) -> None:
        self.running.pop(request_id, None)
