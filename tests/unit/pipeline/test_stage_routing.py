"""Where a stage sends results and streams: routes, projections, object hand-over, order and refusals."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from stage_harness import HandScheduler, Harness, harness, payload
from waiting import until

from sglang_omni.pipeline import relay_io
from sglang_omni.pipeline.stage.edges.edge import End, Item, Payload, StreamChunk
from sglang_omni.pipeline.stage.edges.isolation import has_own_container
from sglang_omni.proto import CompleteMessage, RequestError, StagePayload


class Receiver:
    """A stage of the same process that keeps what it is handed."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.payloads: list[Any] = []
        self.stream: list[tuple[Any, ...]] = []

    async def receive(self, item: Item) -> None:
        match item:
            case Payload():
                self.payloads.append(item.data)
            case StreamChunk():
                self.stream.append((item.request_id, item.source, item.chunk_id, item.data, item.metadata))
            case End():
                self.stream.append((item.request_id, item.source, item.error or "done"))


async def read(one: Harness, index: int) -> StagePayload:
    message = one.control_plane.sent[index][2]
    return await relay_io.read_payload(one.relay, message.request_id, message.shm_metadata)


# --- results ---------------------------------------------------------------------------------------


async def test_a_result_goes_to_the_next_stage() -> None:
    asked: list[tuple[str, Any]] = []

    def get_next(request_id: str, output: Any) -> str:
        asked.append((request_id, output.data))
        return "t"

    async with harness(get_next=get_next) as one:
        await one.work("r", payload("r", {"x": 1}))
        [(target, message)] = await one.sends(1)
        assert (target, one.control_plane.sent[0][1]) == ("t", "test://t")
        assert (message.request_id, message.from_stage, message.to_stage) == ("r", "s", "t")
        assert (message.chunk_id, message.is_done) == (None, False)
        assert (await read(one, 0)).data == {"x": 1}
        assert asked == [("r", {"x": 1})]
        assert one.control_plane.completed == []


async def test_a_fan_out_reaches_every_target_once() -> None:
    async with harness(get_next=lambda request_id, output: ["t", "u", "t"]) as one:
        await one.work("r", payload("r", {"x": 1}))
        sent = await one.sends(2)
        await one.still_works()
        assert sorted(target for target, _ in sent) == ["t", "u"]
        assert len(one.control_plane.sent) == 2
        assert (await read(one, 0)).data == (await read(one, 1)).data == {"x": 1}


@pytest.mark.parametrize("output", [payload("r", {"text": "hi"}), {"text": "hi"}])
async def test_no_next_stage_completes_the_request_with_the_data(output: Any) -> None:
    async with harness() as one:
        await one.work("r", output)
        await until(lambda: bool(one.control_plane.completed))
        assert one.control_plane.completed == [CompleteMessage("r", "s", True, result={"text": "hi"})]


@pytest.mark.parametrize(
    ("route", "error"),
    [
        ("nowhere", "outside the static topology"),
        (["t", "nowhere"], "outside the static topology"),
        ([], "no target"),
        (7, "stage name or names"),
    ],
)
async def test_a_bad_route_fails_its_request_alone(route: Any, error: str) -> None:
    async with harness(get_next=lambda request_id, output: route) as one:
        await one.work("r", payload("r"))
        assert error in str((await one.failure()).error)
        assert one.control_plane.sent == []
        await one.still_works()


async def test_a_raising_route_fails_its_request_alone() -> None:
    def get_next(request_id: str, output: Any) -> str:
        raise KeyError("route")

    async with harness(get_next=get_next) as one:
        await one.work("r", payload("r"))
        assert "KeyError" in str((await one.failure()).error)
        await one.still_works()


async def test_only_payloads_go_to_other_stages() -> None:
    async with harness(get_next=lambda request_id, output: "t") as one:
        await one.work("r", {"not": "a payload"})
        failure = await one.failure()
        assert "returned a dict, expected a StagePayload" in str(failure.error)
        await one.still_works()


async def test_each_target_gets_its_projection() -> None:
    async with harness(
        get_next=lambda request_id, output: ["t", "u"],
        project_payload={"t": lambda p: payload(p.request_id, p.data["for t"])},
    ) as one:
        await one.work("r", payload("r", {"for t": 1}))
        await one.sends(2)
        data = {one.control_plane.sent[i][0]: (await read(one, i)).data for i in range(2)}
        assert data == {"t": 1, "u": {"for t": 1}}


async def test_a_failing_projection_fails_its_request_alone() -> None:
    async with harness(
        get_next=lambda request_id, output: ["u", "t"], project_payload={"t": lambda p: p.data["missing"]}
    ) as one:
        await one.work("r", payload("r", {}))
        assert "KeyError" in str((await one.failure()).error)
        assert one.control_plane.sent == []  # Not even the target whose payload was fine.
        await one.still_works()


async def test_a_payload_that_cannot_be_sent_fails_its_request_alone() -> None:
    async with harness(get_next=lambda request_id, output: "t") as one:
        await one.work("r", payload("r", {"bad": lambda: None}))
        assert "sending to 't' failed" in str((await one.failure()).error)
        await one.still_works()


# --- objects within a process ----------------------------------------------------------------------


async def test_a_single_target_in_the_process_gets_the_object() -> None:
    receiver = Receiver("t")
    async with harness(get_next=lambda request_id, output: "t", same_process_targets={"t"}) as one:
        one.dispatcher.register(receiver)
        output = payload("r", {"x": 1})
        await one.work("r", output)
        await until(lambda: bool(receiver.payloads))
        assert receiver.payloads[0] is output
        assert one.control_plane.sent == []


async def test_a_fan_out_of_one_object_is_not_handed_over_as_object() -> None:
    receivers = [Receiver("t"), Receiver("u")]
    async with harness(
        get_next=lambda request_id, output: ["t", "u"], same_process_targets={"t", "u"}
    ) as one:
        one.dispatcher.register_many(receivers)
        await one.work("r", payload("r", {"x": 1}))
        await one.sends(2)
        assert [receiver.payloads for receiver in receivers] == [[], []]


async def test_a_fan_out_hands_over_projections_with_containers_of_their_own() -> None:
    receivers = {name: Receiver(name) for name in "tuv"}
    shared = [1, 2]
    async with harness(
        get_next=lambda request_id, output: ["t", "u", "v"],
        same_process_targets={"t", "u", "v"},
        project_payload={
            "t": lambda p: payload(p.request_id, {"own": list(p.data["shared"])}),
            "u": lambda p: payload(p.request_id, {"shares": p.data["shared"]}),
        },
    ) as one:
        one.dispatcher.register_many(receivers.values())
        await one.work("r", payload("r", {"shared": shared}))
        sent = await one.sends(2)
        await until(lambda: bool(receivers["t"].payloads))
        assert receivers["t"].payloads[0].data == {"own": [1, 2]}
        assert sorted(target for target, _ in sent) == ["u", "v"]
        assert receivers["u"].payloads == receivers["v"].payloads == []


async def test_a_target_missing_from_the_process_fails_its_request_alone() -> None:
    async with harness(get_next=lambda request_id, output: "t", same_process_targets={"t"}) as one:
        await one.work("r", payload("r"))
        assert "not registered" in str((await one.failure()).error)
        await one.still_works()


@dataclass
class State:
    items: list[int] = field(default_factory=list)


def test_isolation_looks_into_containers_and_dataclasses() -> None:
    shared = [1]
    original = payload("r", {"a": shared, "b": (shared,)})
    assert has_own_container(payload("r", {"a": [1]}), [original])
    assert not has_own_container(payload("r", {"a": (shared,)}), [original])
    assert not has_own_container(payload("r", State(shared)), [original])
    assert has_own_container(payload("r", State([1])), [payload("r", State(shared))])
    assert not has_own_container(payload("r", 3), [original])  # No container of its own at all.
    assert not has_own_container({"a": 1}, [original])
    recursive: list[Any] = []
    recursive.append(recursive)
    assert has_own_container(payload("r", recursive), [original])


# --- streams ---------------------------------------------------------------------------------------


async def test_chunks_without_stream_targets_go_to_the_caller() -> None:
    async with harness() as one:
        one.submit("r")
        await until(lambda: not one.scheduler.inbox.empty())
        one.emit("r", "stream", {"modality": "text", "text": "a"})
        one.emit("r", "stream", b"b", metadata={"modality": "audio"})
        one.emit("r", "stream", "c")
        await until(lambda: len(one.control_plane.streamed) == 3)
        assert [(m.chunk_id, m.modality, m.stage_name) for m in one.control_plane.streamed] == [
            (0, "text", "s"),
            (1, "audio", "s"),
            (2, None, "s"),
        ]


async def test_chunks_go_to_the_stream_targets_and_end_with_the_result() -> None:
    async with harness(get_next=lambda request_id, output: "t", stream_targets=["u", "v"]) as one:
        one.submit("r")
        await until(lambda: not one.scheduler.inbox.empty())
        one.emit("r", "stream", 1, metadata={"k": "m"})
        one.emit("r", "stream", 2, target="u")
        one.emit("r", "stream", "to the caller", target="coordinator")
        one.emit("r", "result", payload("r"))
        await one.sends(6)
        by_target: dict[str, list[Any]] = {"t": [], "u": [], "v": []}
        for target, _, message in one.control_plane.sent:
            if message.chunk_id is not None:
                data, metadata = await relay_io.read_stream_chunk(one.relay, "r", message.shm_metadata)
                by_target[target].append((message.chunk_id, data, metadata))
            else:
                by_target[target].append("done" if message.is_done else "payload")
        assert by_target["u"][:1] == [(0, 1, {"k": "m"})]
        assert by_target["u"][1][:2] == (1, 2)
        assert by_target["u"][2:] == ["done"]
        assert by_target["v"] == [(0, 1, {"k": "m"}), "done"]
        assert by_target["t"] == ["payload"]
        assert [m.chunk for m in one.control_plane.streamed] == ["to the caller"]


async def test_chunks_to_the_same_process_are_handed_over_as_objects() -> None:
    receiver = Receiver("u")
    chunk = [object()]
    async with harness(stream_targets=["u"], same_process_targets={"u"}) as one:
        one.dispatcher.register(receiver)
        one.submit("r")
        await until(lambda: not one.scheduler.inbox.empty())
        one.emit("r", "stream", chunk, metadata={"k": 1})
        one.emit("r", "result", None)
        await until(lambda: len(receiver.stream) == 2)
        assert receiver.stream == [("r", "s", 0, chunk, {"k": 1}), ("r", "s", "done")]
        assert receiver.stream[0][3] is chunk


async def test_a_stream_target_outside_stream_to_fails_the_request_alone() -> None:
    async with harness(stream_targets=["u"]) as one:
        one.submit("r")
        await until(lambda: not one.scheduler.inbox.empty())
        one.scheduler.inbox.get_nowait()
        one.emit("r", "stream", 1, target="t")
        assert "outside the static topology" in str((await one.failure()).error)
        await one.still_works()


@pytest.mark.parametrize(
    ("returned", "ended"), [(None, []), ([], []), ("u", ["u"]), (["v"], ["v"]), (["u", "v"], ["u", "v"])]
)
async def test_stream_done_goes_to_the_stages_that_are_named(returned: Any, ended: list[str]) -> None:
    async with harness(
        stream_targets=["u", "v"], get_stream_done_targets=lambda request_id, output: returned
    ) as one:
        await one.work("r", 1)
        await until(lambda: bool(one.control_plane.completed))
        await one.still_works()
        assert sorted(target for target, _, m in one.control_plane.sent if m.is_done) == ended


async def test_stream_done_outside_stream_to_fails_the_request() -> None:
    async with harness(stream_targets=["u"], get_stream_done_targets=lambda request_id, output: ["t"]) as one:
        await one.work("r", 1)
        assert "stream_done_to_fn" in str((await one.failure()).error)
        assert one.control_plane.sent == []


async def test_chunks_after_the_result_are_dropped() -> None:
    async with harness() as one:
        await one.work("r", 1)
        one.emit("r", "stream", "late")
        one.emit("r", "result", "again")
        await until(lambda: bool(one.control_plane.completed))
        await one.still_works()
        assert one.control_plane.streamed == []
        assert [m.result for m in one.control_plane.completed if m.success] == [1]


# --- errors ----------------------------------------------------------------------------------------


async def test_a_schedulers_error_is_reported_with_its_type() -> None:
    async with harness() as one:
        one.submit("r")
        await until(lambda: not one.scheduler.inbox.empty())
        one.scheduler.inbox.get_nowait()
        one.emit("r", "error", ValueError("no good"))
        failure = await one.failure()
        assert (failure.request_id, failure.error, failure.error_info) == ("r", "ValueError: no good", None)
        await one.still_works()


async def test_a_fault_of_the_request_keeps_its_fields() -> None:
    fault = RequestError("too long", param="prompt", code="context_length_exceeded")
    async with harness() as one:
        one.submit("r")
        await until(lambda: not one.scheduler.inbox.empty())
        one.emit("r", "error", fault)
        failure = await one.failure()
        assert (failure.error, failure.error_info) == ("too long", fault.to_dict())


async def test_an_output_of_an_unknown_request_is_ignored() -> None:
    scheduler = HandScheduler()
    async with harness(scheduler=scheduler) as one:
        for kind in ("result", "stream", "error"):
            one.emit("ghost", kind, 1)
        await one.still_works()
        assert one.control_plane.streamed == []
        assert [m.request_id for m in one.control_plane.completed] == ["another"]


async def test_a_payload_that_cannot_be_sent_fails_once(caplog: pytest.LogCaptureFixture) -> None:
    endless: list[object] = []
    endless.append(endless)
    async with harness(get_next=lambda request_id, output: "t") as one:
        await one.work("before", payload("before"))
        await one.sends(1)  # From here on the lane waits, and begins a job where it is put.
        await one.work("a", payload("a", endless))
        failure = await one.failure()
        assert failure.request_id == "a"
        await one.still_works()
        assert len([message for message in one.control_plane.completed if message.request_id == "a"]) == 1
    assert "KeyError" not in caplog.text
