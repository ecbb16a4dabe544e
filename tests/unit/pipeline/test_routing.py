"""What goes where: the items that results and chunks become, without queues, sockets or a running stage."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from sglang_omni.pipeline.stage.edges.coordinator import COORDINATOR
from sglang_omni.pipeline.stage.edges.edge import End, Payload, StreamChunk
from sglang_omni.pipeline.stage.routing import Routing
from sglang_omni.pipeline.stage.wiring import Wiring
from sglang_omni.proto import OmniRequest, StagePayload
from sglang_omni.relay.base import Relay
from sglang_omni.scheduling.messages import OutgoingMessage
from sglang_omni.scheduling.playback import num_samples

_ENDPOINTS = {"t@r0": "", "t@r1": "", "u": "", "v": ""}


def payload(data: Any) -> StagePayload:
    return StagePayload("r", OmniRequest(None), data)


def routing(relay: Relay | None = None, **wired: Any) -> Routing:
    def relay_to(target: str) -> Relay:
        assert relay is not None, f"{target} shares nothing"
        return relay

    wired = {"get_next": lambda request_id, output: None, "endpoints": _ENDPOINTS, **wired}
    return Routing(Wiring("s", **wired), relay_to)


def test_the_last_result_ends_its_streams_and_answers() -> None:
    routed = routing(stream_targets=("t", "u")).result("r", payload("data"), {"t": 1})
    assert routed.ends == [("t@r1", End("r", "s", None, {"t": 1})), ("u", End("r", "s", None, {"t": 1}))]
    assert routed.payloads == []
    assert routed.answer == Payload("r", "s", "data")


def test_a_result_goes_to_the_replicas_of_its_request() -> None:
    output = payload("data")
    routed = routing(get_next=lambda request_id, output: "t").result("r", output, {"t": 0})
    assert routed.payloads == [("t@r0", Payload("r", "s", output, {"t": 0}))]
    assert routed.answer is None


def test_targets_of_one_object_share_its_bytes() -> None:
    def get_next(request_id: str, output: StagePayload) -> list[str]:
        return ["t", "u", "v"]

    projected = payload("for v alone")
    relay: Any = SimpleNamespace()  # Nothing is written.
    routes = routing(relay, get_next=get_next, project_payload={"v": lambda output: projected})
    (_, first), (_, second), (_, third) = routes.result("r", payload("data"), {"t": 0}).payloads
    assert first.fan_out is second.fan_out is not None
    assert (first.data, second.data) == (None, None)
    assert (third.fan_out, third.data) == (None, projected)


def test_what_a_target_in_the_process_gets_is_its_own_if_no_other_sees_it() -> None:
    alone = routing(get_next=lambda request_id, output: "u", same_process_targets=frozenset("u"))
    [(_, item)] = alone.result("r", payload([]), None).payloads
    assert item.is_own


def test_chunks_are_numbered_for_each_target() -> None:
    chunks = routing(stream_targets=("t",)).chunk(
        OutgoingMessage("r", "stream", "data", metadata={"n": 1}), {"t": 1}, {"t@r1": 4, COORDINATOR: 2}
    )
    assert chunks == [("t@r1", StreamChunk("r", "s", 4, "data", {"n": 1}, {"t": 1}))]


def test_chunks_of_a_stage_without_stream_targets_go_to_the_caller() -> None:
    [(target, chunk)] = routing().chunk(OutgoingMessage("r", "stream", "data"), None, {})
    assert (target, chunk.chunk_id) == (COORDINATOR, 0)


@pytest.mark.parametrize(
    ("params", "samples_sent", "is_left_out"),
    [
        ({"stream": True}, 6, True),
        ({"stream": True}, 4, False),
        ({"stream": True}, 0, False),
        ({"stream": False}, 6, False),
        ({}, 6, False),
    ],
)
@pytest.mark.parametrize("sound", [np.zeros(6, np.float32), torch.zeros(2, 3), [0.0] * 6])
def test_sound_that_the_caller_has_got_is_left_out_of_the_answer(
    sound: Any, params: dict[str, Any], samples_sent: int, is_left_out: bool
) -> None:
    result = {"audio_data": sound, "sample_rate": 8_000, "codes": [1]}
    output = StagePayload("r", OmniRequest(None, params), result)
    answer = routing().result("r", output, None, samples_sent).answer
    assert answer is not None
    if is_left_out:
        assert answer.data == {**result, "modality": "audio", "audio_data": None}
    else:
        assert answer.data is result
    assert result["audio_data"] is sound


@pytest.mark.parametrize(
    ("chunk", "samples"), [({"text": "a"}, 0), ("a", 0), ({"audio_data": np.zeros((2, 3))}, 6)]
)
def test_the_samples_of_a_chunk(chunk: Any, samples: int) -> None:
    assert num_samples(chunk) == samples


def test_a_projection_that_fails_leaves_nothing_to_send() -> None:
    routes = routing(get_next=lambda request_id, output: "u", project_payload={"u": lambda output: "text"})
    with pytest.raises(TypeError, match="project_payload returned a str, expected a StagePayload"):
        routes.result("r", payload("data"), None)


def test_a_hook_may_not_leave_the_topology() -> None:
    with pytest.raises(ValueError, match="get_next returned targets outside the static topology"):
        routing(get_next=lambda request_id, output: "w").result("r", payload("data"), None)
    with pytest.raises(ValueError, match="stream target 'u' is outside"):
        routing(stream_targets=("t",)).chunk(OutgoingMessage("r", "stream", 1, target="u"), None, {})
