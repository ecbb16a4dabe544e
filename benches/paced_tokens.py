"""The one stage of the server that ``tokens.py`` measures: it steps at a fixed pace. Nothing heavy here."""

from __future__ import annotations

import threading
import time
from contextlib import nullcontext
from queue import Empty, Queue

from sglang_omni.scheduling.messages import IncomingMessage, OutgoingMessage
from sglang_omni.scheduling.queues import Inbox, Outbox


class PacedTokens:
    """Gives each running request a token a step, as an engine would, and then its whole answer.

    Args:
        tokens: Of an answer.
        step_s: Seconds between two steps.
    """

    def __init__(self, tokens: int, step_s: float) -> None:
        self.inbox: Queue[IncomingMessage | None] = Inbox()
        self.outbox: Queue[OutgoingMessage] = Outbox()
        self._tokens = tokens
        self._step_s = step_s
        self._running: dict[str, int] = {}
        self._stopped = threading.Event()
        # An older version, to compare with, has no such method.
        self._together = getattr(self.outbox, "together", nullcontext)

    def start(self) -> None:
        while not self._stopped.is_set():
            self._admit()
            with self._together():
                self._step()
            if self._running:
                time.sleep(self._step_s)

    def _admit(self) -> None:
        """Takes what has come; waits if there is nothing to do."""
        try:
            while True:
                message = self.inbox.get(block=not self._running)
                if message is None:
                    return
                self._running[message.request_id] = 0
        except Empty:
            return

    def _step(self) -> None:
        for request_id, done in list(self._running.items()):
            token = {"modality": "text", "text": " word", "token_ids": [1000 + done]}
            self.outbox.put(OutgoingMessage(request_id, "stream", token, "coordinator"))
            self._running[request_id] = done + 1
            if done + 1 == self._tokens:
                del self._running[request_id]
                whole = {"modality": "text", "text": " word" * self._tokens, "finish_reason": "stop"}
                self.outbox.put(OutgoingMessage(request_id, "result", whole))

    def stop(self) -> None:
        self._stopped.set()
        self.inbox.put(None)

    def abort(self, request_id: str) -> None:
        self._running.pop(request_id, None)
