"""The one stage of the server that `router_real` measures: it answers at once. Nothing heavy here."""

from __future__ import annotations

from queue import Queue

from sglang_omni.scheduling.messages import IncomingMessage, OutgoingMessage
from sglang_omni.scheduling.queues import Inbox, Outbox

WORDS = 16


class Words:
    """Says the same 16 words to every request, each a chunk of its own, and then all of them."""

    def __init__(self) -> None:
        self.inbox: Queue[IncomingMessage | None] = Inbox()
        self.outbox: Queue[OutgoingMessage] = Outbox()

    def start(self) -> None:
        while (message := self.inbox.get()) is not None:
            for _ in range(WORDS):
                said = {"modality": "text", "text": "word "}
                self.outbox.put(OutgoingMessage(message.request_id, "stream", said))
            whole = {"modality": "text", "text": "word " * WORDS, "finish_reason": "stop"}
            self.outbox.put(OutgoingMessage(message.request_id, "result", whole))

    def stop(self) -> None:
        self.inbox.put(None)

    def abort(self, request_id: str) -> None:
        """It is over before it could be stopped."""
