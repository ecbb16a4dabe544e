"""A stage that works in steps, as a language model's does."""

from __future__ import annotations

import time
from queue import Queue

from sglang_omni.scheduling.messages import IncomingMessage, OutgoingMessage
from sglang_omni.scheduling.queues import Inbox, Outbox
from sglang_omni.scheduling.work_clock import WorkClock

STEP_S = 0.01


class Speller:
    """Streams a text in three steps, of one token, one token and two."""

    def __init__(self) -> None:
        self.inbox: Queue[IncomingMessage | None] = Inbox()
        self.outbox: Queue[OutgoingMessage] = Outbox()
        self.work_clock = WorkClock()

    def start(self) -> None:
        while (message := self.inbox.get()) is not None:
            text = message.data.data["text"]
            for piece, ids in ((text[:1], [1]), (text[1:2], [2]), (text[2:], [3, 4])):
                time.sleep(STEP_S)
                kind = "prefill" if ids == [1] else "decode"
                self.work_clock.add_to_all((message.request_id,), STEP_S, lambda _, kind=kind: kind)
                chunk = {"modality": "text", "text": piece, "token_ids": ids}
                self.outbox.put(OutgoingMessage(message.request_id, "stream", chunk))
            usage = {"prompt_tokens": len(text), "completion_tokens": 4}
            result = {"modality": "text", "text": text, "finish_reason": "stop", "usage": usage}
            self.outbox.put(OutgoingMessage(message.request_id, "result", result))

    def stop(self) -> None:
        self.inbox.put(None)

    def abort(self, request_id: str) -> None:
        """It is soon done anyway."""
