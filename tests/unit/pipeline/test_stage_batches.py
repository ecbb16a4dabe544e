"""What an engine's step emits for several callers leaves its stage as one message."""

from __future__ import annotations

from typing import Any

from stage_harness import HandScheduler, Harness, RecordedControlPlane, harness
from waiting import until

from sglang_omni.pipeline.transport.control_plane import encode_message
from sglang_omni.proto import StreamBatchMessage
from sglang_omni.scheduling.messages import OutgoingMessage
from sglang_omni.scheduling.queues import Outbox


class Encoding(RecordedControlPlane):
    """Encodes what it sends, as a real one does."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[Any] = []

    async def send_stream(self, message: Any) -> None:
        encode_message(message)
        self.sent.append(message)

    send_stream_batch = send_stream


def stepping() -> HandScheduler:
    scheduler = HandScheduler()
    scheduler.outbox = Outbox()
    return scheduler


async def step(one: Harness, *messages: OutgoingMessage) -> None:
    for name in {message.request_id for message in messages}:
        one.submit(name)
    await until(lambda: one.scheduler.inbox.qsize() == len({message.request_id for message in messages}))
    with one.scheduler.outbox.together():
        for message in messages:
            one.scheduler.outbox.put(message)


async def test_a_step_is_one_message_and_results_follow_their_chunks() -> None:
    control = Encoding()
    async with harness(scheduler=stepping(), control_plane=control) as one:
        chunks = [OutgoingMessage(name, "stream", {"text": name, "modality": "text"}) for name in "abca"]
        await step(one, *chunks, OutgoingMessage("c", "result", "all"))
        await until(lambda: control.completed)
        assert control.sent == [
            StreamBatchMessage(
                "s",
                [
                    (name, {"text": name, "modality": "text"}, "text", number)
                    for name, number in (("a", 0), ("b", 0), ("c", 0), ("a", 1))
                ],
            )
        ]
        assert [done.request_id for done in control.completed] == ["c"]


async def test_a_chunk_that_cannot_be_sent_fails_its_request_alone() -> None:
    control = Encoding()
    async with harness(scheduler=stepping(), control_plane=control) as one:
        chunks = {"a": 1, "bad": {"text": object()}, "b": 2}
        await step(one, *(OutgoingMessage(name, "stream", chunk) for name, chunk in chunks.items()))
        await until(lambda: len(control.sent) == 2 and control.completed)
        assert [(message.request_id, message.chunk) for message in control.sent] == [("a", 1), ("b", 2)]
        (failed,) = control.completed
        assert failed.request_id == "bad"
        assert "object" in failed.error
