"""A talker's frames leave while its next steps run: each stream's are whole, in order, and before its end."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from qwen3_omni_oracle import Oracle
from sample_media import user
from scheduler_runs import WAIT_S, running
from sglang_engines import assert_empty, engines
from talker_oracle import Spoken, spoken
from torch import Tensor

from sglang_omni.engines.request import EngineRequest
from sglang_omni.model_runner import feedback
from sglang_omni.model_runner.request_sampling import RequestSampling
from sglang_omni.models.qwen3_omni.components.checkpoint import Qwen3OmniCheckpoint
from sglang_omni.models.qwen3_omni.components.decoders import talker_decoder
from sglang_omni.models.qwen3_omni.components.talker_state import Qwen3TalkerState
from sglang_omni.models.qwen3_omni.components.talker_strategy import Qwen3TalkerStrategy
from sglang_omni.models.qwen3_omni.talker import Qwen3Talker
from sglang_omni.proto import OmniRequest, StagePayload
from sglang_omni.scheduling.messages import IncomingMessage
from sglang_omni.scheduling.omni_scheduler import OmniScheduler

TEXTS = ["Tell me about the sea.", "Count to nine, slowly, then stop.", "And?"]


class Device:
    """Copies that come later than asked for, in the order in which they were queued, as on a GPU's stream."""

    def __init__(self) -> None:
        self.on_the_way: deque[LateCopy] = deque()
        self.num_copies = 0
        self.waits = 0

    def copy(self, tensor: Tensor) -> LateCopy:
        self.num_copies += 1
        self.on_the_way.append(LateCopy(self, tensor))
        return self.on_the_way[-1]

    def bring(self, count: int) -> None:
        """The next ``count`` copies are done."""
        for _ in range(min(count, len(self.on_the_way))):
            self.on_the_way.popleft()


class LateCopy:
    def __init__(self, device: Device, tensor: Tensor) -> None:
        self._device = device
        self._tensor = tensor

    @property
    def is_done(self) -> bool:
        return self not in self._device.on_the_way

    def read(self) -> Tensor:
        if not self.is_done:
            self._device.waits += 1
            self._device.bring(self._device.on_the_way.index(self) + 1)
        return self._tensor


class Stage:
    """The talker's stage, whose payloads are numbers of answers."""

    def __init__(self, checkpoint: Qwen3OmniCheckpoint, answers: list[Spoken], engine: Any) -> None:
        self.checkpoint, self.answers, self.engine = checkpoint, answers, engine
        self.states: dict[str, Qwen3TalkerState] = {}
        talker = Qwen3Talker(checkpoint)
        self.scheduler = OmniScheduler(engine, self.request, talker.result, talker.stream)

    def request(self, payload: StagePayload, *, text_is_there: bool = True) -> EngineRequest:
        spoken = self.answers[payload.data]
        state = spoken.state(self.checkpoint, text_is_there=text_is_there)
        self.states[payload.request_id] = state
        sampling = RequestSampling(
            temperature=0.0, repetition_penalty=spoken.penalty, max_new_tokens=spoken.max_new_tokens
        )
        return EngineRequest(
            payload.request_id,
            state.prompt.token_ids,
            sampling,
            state=state,
            positions=spoken.positions,
            cacheable=False,
        )

    def ask(self) -> None:
        for number in range(len(self.answers)):
            payload = StagePayload(str(number), OmniRequest(None), number)
            self.scheduler.inbox.put(IncomingMessage(str(number), "new_request", payload))

    def heard(self) -> dict[str, tuple[list[list[int]], int]]:
        """The codes of each answer that came before its result, and the frames that the result counts."""
        codes: dict[str, list[list[int]]] = {str(number): [] for number in range(len(self.answers))}
        results: dict[str, int] = {}
        while len(results) < len(self.answers):
            message = self.scheduler.outbox.get(timeout=WAIT_S)
            assert message.request_id not in results, "something came after the end"
            if message.type == "stream":
                assert (message.data.dtype, message.data.device.type) == (torch.int64, "cpu")
                codes[message.request_id] += message.data.tolist()
            else:
                assert message.type == "result", message
                results[message.request_id] = message.data.data["frames"]
        return {request_id: (codes[request_id], results[request_id]) for request_id in results}

    def due(self) -> dict[str, tuple[list[list[int]], int]]:
        return {
            str(number): (spoken.codes.tolist(), len(spoken.codes))
            for number, spoken in enumerate(self.answers)
        }


@pytest.fixture(scope="module")
def answers(qwen3_omni: Callable[..., Oracle]) -> list[Spoken]:
    oracle = qwen3_omni(seed=2, shape="deep")
    return [
        spoken(oracle, [user(text)], max_tokens=3 + 3 * index, max_new_tokens=9 + index, penalty=1.05)
        for index, text in enumerate(TEXTS)
    ]


@pytest.fixture(scope="module", params=["omni", "sglang"])
def build(request: pytest.FixtureRequest, qwen3_omni: Callable[..., Oracle]) -> Iterator[Callable[[], Any]]:
    checkpoint = Qwen3OmniCheckpoint.from_dir(qwen3_omni(seed=2, shape="deep").path)
    strategy = Qwen3TalkerStrategy.from_checkpoint(checkpoint, torch.float32)
    with engines(request.param) as build_engine:
        yield lambda: build_engine(talker_decoder(checkpoint, strategy))


@pytest.fixture
def stage(build: Callable[[], Any], answers: list[Spoken], qwen3_omni: Callable[..., Oracle]) -> Stage:
    checkpoint = Qwen3OmniCheckpoint.from_dir(qwen3_omni(seed=2, shape="deep").path)
    return Stage(checkpoint, answers, build())


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    device = Device()
    monkeypatch.setattr(feedback, "HostCopy", device.copy)
    return device


def test_whole_streams_however_late_the_copies_are(
    stage: Stage, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng, step = random.Random(3), stage.engine.step

    def stepped() -> Any:
        device.bring(rng.randrange(3))
        return step()

    monkeypatch.setattr(stage.engine, "step", stepped)
    with running(stage.scheduler):
        stage.ask()
        heard = stage.heard()
    assert heard == stage.due()
    assert_empty(stage.engine)


def test_no_step_waits_for_its_frames(stage: Stage, device: Device) -> None:
    requests = [stage.request(StagePayload(str(n), OmniRequest(None), n)) for n in range(len(TEXTS))]
    for request in requests:
        stage.engine.add(request)
    steps = 0
    while not all(request.finish_reason for request in requests):
        assert stage.engine.step() == []
        steps += 1
    # One copy for all frames of a step, and nothing has been waited for.
    assert (device.waits, len(device.on_the_way)) == (0, device.num_copies)
    assert max(len(spoken.codes) for spoken in stage.answers) <= device.num_copies <= steps
    # With nothing to compute.
    assert stage.engine.has_work
    assert {request.request_id for request in stage.engine.step()} == {"0", "1", "2"}
    assert not stage.engine.has_work
    for number, request in enumerate(requests):
        codes = stage.states[request.request_id].take_arrived()
        assert codes is not None
        assert codes.tolist() == stage.answers[number].codes.tolist()


def test_frames_leave_while_the_text_is_waited_for(stage: Stage, device: Device) -> None:
    request = stage.request(StagePayload("0", OmniRequest(None), 2), text_is_there=False)
    state, token_ids = stage.states["0"], stage.answers[2].token_ids
    state.feed(token_ids[:3])
    stage.engine.add(request)
    returned = []
    while stage.engine.has_work:
        returned = stage.engine.step()
    # Two of three tokens are spoken; the last frame has left though no step followed.
    assert returned == [request]
    assert (len(state.arrived), len(state.frames), request.finish_reason) == (2, 2, None)
    state.feed(token_ids[3:])
    state.end_text()
    while stage.engine.has_work:
        returned = stage.engine.step()
    assert (returned, request.finish_reason is None) == ([request], False)
    codes = state.take_arrived()
    assert codes is not None
    assert codes.tolist() == stage.answers[2].codes.tolist()


def test_a_request_is_returned_as_over_once(stage: Stage, device: Device) -> None:
    request = stage.request(StagePayload("0", OmniRequest(None), 0))
    stage.engine.add(request)
    while request.finish_reason is None:
        stage.engine.step()
    # Its first frames come, its last do not yet.
    device.bring(1)
    other = stage.request(StagePayload("1", OmniRequest(None), 1))
    stage.engine.add(other)
    assert request not in stage.engine.step()
    overs = []
    while stage.engine.has_work:
        overs += [each for each in stage.engine.step() if each.finish_reason is not None]
    assert overs == [request, other]


def test_nothing_of_an_aborted_request_is_returned(stage: Stage, device: Device) -> None:
    first, second = (stage.request(StagePayload(str(n), OmniRequest(None), n)) for n in range(2))
    stage.engine.add(first)
    stage.engine.add(second)
    for _ in range(4):
        stage.engine.step()
    stage.engine.abort("0")
    returned = []
    while stage.engine.has_work:
        returned += stage.engine.step()
    assert set(returned) == {second}
    # One that has ended, and is on its way.
    third = stage.request(StagePayload("2", OmniRequest(None), 2))
    stage.engine.add(third)
    while third.finish_reason is None:
        stage.engine.step()
    stage.engine.abort("2")
    assert stage.engine.step() == []
    assert not stage.engine.has_work
    assert_empty(stage.engine)
