"""Every message there and back, and what a malformed one is answered with."""

from __future__ import annotations

import pickle
from dataclasses import MISSING, fields
from typing import Any, get_args

import numpy as np
import pytest

from sglang_omni.proto import (
    AbortMessage,
    CompleteMessage,
    DataReadyBatchMessage,
    DataReadyMessage,
    EndpointsMessage,
    FlushCacheMessage,
    Message,
    MoreInputMessage,
    OmniRequest,
    ProfilerStartMessage,
    ProfilerStopMessage,
    ProgressMessage,
    RequestError,
    RequestState,
    ShutdownMessage,
    StagePayload,
    StatsMessage,
    StreamBatchMessage,
    StreamMessage,
    SubmitMessage,
    parse_message,
)
from sglang_omni.proto.codec import pack, unpack

PAYLOAD = StagePayload(
    "r1", OmniRequest({"prompt": "hi"}, {"seed": 1}, {"task": "chat"}), {"raw_inputs": "hi"}
)
INFO = RequestError("too long", param="messages", code="context_length_exceeded", status=413).to_dict()

# At least one with every field set and one with every optional field left out.
MESSAGES: list[Any] = [
    SubmitMessage("r1", PAYLOAD),
    SubmitMessage("r1", {"not": "a payload"}),
    SubmitMessage("r1", None),
    SubmitMessage("r1", PAYLOAD, {"talker": 0, "thinker": 2}),
    MoreInputMessage("r1", b"sound", 0, {"talker": 0}),
    MoreInputMessage("r1"),
    DataReadyMessage("r1", "a", "b", {"slot": 3, "shape": [1, 2]}),
    DataReadyMessage("r1", "a", "b", None, is_done=True),
    DataReadyMessage("r1", "a", "b", {"slot": 0}, chunk_id=0, is_done=True, error="stream broke"),
    DataReadyMessage("r1", "a@r0", "b@r2", {"slot": 0}, replicas={"a": 0, "b": 2}),
    DataReadyBatchMessage("a", "b", [("r1", {"slot": 0}, 0, None), ("r2", {}, 7, {"a": 0})]),
    CompleteMessage("r1", "a", True),
    CompleteMessage("r1", "a", True, result={"text": "hello", "usage": {"prompt_tokens": 1}}),
    CompleteMessage("r1", "a", False, error="stage 'a': ValueError: no", error_info=INFO),
    StreamMessage("r1", "a", {"text": "he"}),
    StreamMessage("r1", "a", None, stage_id=0, stage_name="a", modality="text", chunk_id=0),
    StreamBatchMessage("a", [("r1", {"text": "he"}, "text", 0), ("r2", 7, None, None)]),
    ProgressMessage("a", [("r1", "b", 1), ("r1", "a", -1)]),
    ProgressMessage("a", [("r1", "b", 1)], late_s=2.5),
    ProgressMessage("a", [], spans=[("r1", 0.25, 0.5, 1.5e9)]),
    ProgressMessage("a", [], spans=[("r1", 0.25, 0.5, 1.5e9)], details={"r1": {"ready": None}}),
    StatsMessage("a", {"num_running_reqs": 2, "cached": 0.5}),
    AbortMessage("r1"),
    ShutdownMessage(),
    ProfilerStartMessage("run", "/tmp/{run_id}/{stage}.json"),
    EndpointsMessage({"b@r1": "tcp://10.0.0.2:40000"}),
    FlushCacheMessage(),
    ProfilerStopMessage(),
    ProfilerStopMessage("run"),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: m.type)
def test_a_message_comes_back_as_it_was(message: Any) -> None:
    wire = unpack(pack(message.to_dict()))
    assert wire["type"] == message.type
    back = parse_message(wire)
    assert type(back) is type(message)
    assert back == message


def test_every_kind_of_message_is_tested() -> None:
    assert {type(message) for message in MESSAGES} == set(get_args(Message))


def test_fields_at_their_defaults_stay_at_home() -> None:
    assert DataReadyMessage("r", "a", "b", {}).to_dict().keys() == {
        "type",
        "request_id",
        "from_stage",
        "to_stage",
        "shm_metadata",
    }
    assert StreamMessage("r", "a", 1).to_dict().keys() == {"type", "request_id", "from_stage", "chunk"}
    assert SubmitMessage("r", None).to_dict().keys() == {"type", "request_id", "data"}
    assert ProfilerStopMessage().to_dict() == {"type": "profiler_stop"}
    assert "error" not in CompleteMessage("r", "a", True).to_dict()


@pytest.mark.parametrize(
    "message", [CompleteMessage("r", "a", True, np.arange(3)), StreamMessage("r", "a", np.arange(3))]
)
def test_arrays_travel_in_results_and_chunks(message: Any) -> None:
    back = parse_message(unpack(pack(message.to_dict())))
    received = back.result if isinstance(back, CompleteMessage) else back.chunk
    assert received.dtype == np.arange(3).dtype
    assert received.tolist() == [0, 1, 2]


@pytest.mark.parametrize("wire", [None, 3, "submit", [], b"x"])
def test_what_is_no_map_is_no_message(wire: Any) -> None:
    with pytest.raises(ValueError, match="a message must be a map, got "):
        parse_message(wire)


@pytest.mark.parametrize("kind", [None, "", "Submit", "progress_", 3, ["submit"]])
def test_unknown_types_are_refused(kind: Any) -> None:
    with pytest.raises(ValueError, match="unknown message type: "):
        parse_message({"type": kind, "request_id": "r"})
    with pytest.raises(ValueError, match="unknown message type: None"):
        parse_message({"request_id": "r"})


REQUIRED = [
    (message, item.name)
    for message in {type(m): m for m in MESSAGES}.values()
    for item in fields(message)
    if item.default is MISSING and item.default_factory is MISSING
]


@pytest.mark.parametrize(("message", "field"), REQUIRED, ids=lambda v: v if isinstance(v, str) else v.type)
def test_a_missing_field_is_named(message: Any, field: str) -> None:
    wire = message.to_dict()
    del wire[field]
    with pytest.raises(ValueError, match=f"{message.type} message lacks the field '{field}'"):
        parse_message(wire)


# The last is set by the receiver and not read from the wire.
ANYTHING = {
    *(("submit", "data"), ("more_input", "chunk"), ("complete", "result"), ("stream", "chunk")),
    *(("data_ready", "trusted"), ("data_ready_batch", "trusted")),
}
WRONG = {
    "str": [3, b"r", None],
    "int": ["1", 1.0, True],
    "float": ["1", None, [1.0]],
    "bool": [1, "true", None],
    "dict": [[], "x"],
    "list": [{}, "x", None],
}


def _kind(item: Any) -> str:
    return str(item.type).split("[")[0].split(" |")[0]


def _optional(item: Any) -> bool:
    return str(item.type).endswith("| None")


TYPED = [
    (message, item.name, value)
    for message in {type(m): m for m in MESSAGES}.values()
    for item in fields(message)
    if (message.type, item.name) not in ANYTHING
    for value in WRONG[_kind(item)]
    if not (value is None and _optional(item))
]


@pytest.mark.parametrize(
    ("message", "field", "value"),
    TYPED,
    ids=[f"{message.type}-{field}-{type(value).__name__}" for message, field, value in TYPED],
)
def test_a_field_of_the_wrong_type_is_named(message: Any, field: str, value: Any) -> None:
    wire = {**message.to_dict(), field: value}
    with pytest.raises(
        ValueError, match=f"{message.type} message: {field}: Input should .*, got {type(value).__name__}$"
    ):
        parse_message(wire)


CHANGES = [("r", "a"), ("r", "a", "1"), ("r", "a", 1.0), ("r", "a", True), (1, "a", 1), ["r", "a", 1], None]
SPANS = [("r",), ("r", 1.0), ("r", True, 1.0), (1, 1.0, 1.0), None, ("r", "1", "1")]
INSIDE: dict[tuple[str, str], list[Any]] = {
    ("submit", "replicas"): [{"b": "1"}, {"b": None}, {"b": True}, {"b": 1.0}, {3: 1}],
    ("data_ready", "replicas"): [{"b": "1"}, {"b": None}, {"b": True}, {"b": 1.0}, {3: 1}],
    ("stats", "stats"): [{"a": "1"}, {"a": None}, {"a": True}, {1: 1}, {"a": [1]}],
    ("endpoints", "endpoints"): [{"b": 3}, {3: "tcp://h:1"}, {"b": None}, {"b": "ipc:///tmp/x"}],
    ("progress", "changes"): [[("r", "a", 1), change] for change in (*CHANGES, ("r", "a", 1, 1), "ra1")],
    ("progress", "spans"): [[span] for span in SPANS],
}


@pytest.mark.parametrize(
    ("kind", "field", "value"), [(*where, value) for where, values in INSIDE.items() for value in values]
)
def test_what_a_field_holds_is_checked_too(kind: str, field: str, value: Any) -> None:
    message = next(m for m in MESSAGES if m.type == kind)
    with pytest.raises(ValueError, match=rf"{kind} message.*\b{field}\.") as caught:
        parse_message({**message.to_dict(), field: value})
    assert "\n" not in str(caught.value)


def test_what_is_received_cannot_declare_itself_trusted() -> None:
    for message in (DataReadyMessage("r", "a", "b", None), DataReadyBatchMessage("a", "b", [])):
        received: Any = parse_message(message.to_dict() | {"trusted": False})
        assert received.trusted


@pytest.mark.parametrize("field", ["chunk_id", "error", "shm_metadata", "replicas"])
def test_optional_fields_may_be_none(field: str) -> None:
    wire = {**DataReadyMessage("r", "a", "b", {"x": 1}, chunk_id=1, error="e").to_dict(), field: None}
    assert getattr(parse_message(wire), field) is None


def test_fields_of_later_versions_are_ignored() -> None:
    assert parse_message({"type": "abort", "request_id": "r", "reason": "new"}) == AbortMessage("r")


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        (5, "stage_payload must be a map, got int"),
        ({}, r"StagePayload\.request_id must be a str, got NoneType"),
        ({"request_id": 1}, r"StagePayload\.request_id must be a str, got int"),
        ({"request_id": "r", "request": []}, r"StagePayload\.request must be a dict, got list"),
        ({"request_id": "r", "request": {"params": 1}}, r"OmniRequest\.params must be a dict, got int"),
        ({"request_id": "r", "request": {"metadata": "x"}}, r"OmniRequest\.metadata must be a dict, got str"),
    ],
)
def test_a_malformed_payload_of_a_submit_is_refused(payload: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        parse_message({"type": "submit", "request_id": "r", "data": {"stage_payload": payload}})


@pytest.mark.parametrize("change", [{"message": 3}, {"param": 1}, {"code": 404}, {"status": "413"}])
def test_malformed_error_fields_are_refused(change: dict[str, Any]) -> None:
    wire = {**CompleteMessage("r", "a", False, error="e", error_info={**INFO, **change}).to_dict()}
    with pytest.raises(ValueError, match="not the fields of a RequestError"):
        parse_message(wire)


def test_a_request_error_needs_no_more_than_its_message() -> None:
    assert RequestError.from_dict({"message": "no"}).to_dict() == RequestError("no").to_dict()
    with pytest.raises(ValueError, match="not the fields of a RequestError"):
        RequestError.from_dict({"code": "x"})
    with pytest.raises(ValueError, match="not the fields of a RequestError"):
        parse_message(CompleteMessage("r", "a", False, error_info={}).to_dict())


@pytest.mark.parametrize(
    "carry", [lambda e: RequestError.from_dict(e.to_dict()), lambda e: pickle.loads(pickle.dumps(e))]
)
def test_a_request_error_keeps_its_fields(carry: Any) -> None:
    back = carry(RequestError("too long", param="messages", code="context_length_exceeded", status=413))
    assert isinstance(back, RequestError)
    assert (str(back), back.param, back.code, back.status) == (
        "too long",
        "messages",
        "context_length_exceeded",
        413,
    )
    plain = carry(RequestError("no"))
    assert (plain.message, plain.param, plain.code, plain.status) == (
        "no",
        None,
        None,
        400,
    )


def test_requests_and_payloads_have_defaults_of_their_own() -> None:
    one, other = OmniRequest("a"), OmniRequest("b")
    one.params["x"] = 1
    assert other.params == {}
    assert OmniRequest.from_dict({"inputs": 3}) == OmniRequest(3)
    assert StagePayload.from_dict(PAYLOAD.to_dict()) == PAYLOAD


def test_a_request_is_over_in_three_states() -> None:
    assert {state for state in RequestState if state.is_final} == {
        RequestState.COMPLETED,
        RequestState.FAILED,
        RequestState.ABORTED,
    }
