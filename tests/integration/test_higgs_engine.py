"""Higgs Audio v2's decoder on the engine: every code of every frame is transformers'."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from engine_runs import run
from graph_recorders import FakeRecorder
from higgs_oracle import HiggsOracle, HiggsSaid, SaidBefore
from paged_stand_in import attend_paged

from sglang_omni.engines import build, build_engine
from sglang_omni.engines.options import EngineOptions
from sglang_omni.engines.request import EngineRequest
from sglang_omni.models.frames.delayed import DelayedStrategy
from sglang_omni.models.frames.earlier import LastPart
from sglang_omni.models.frames.speaking import FrameSpeaker
from sglang_omni.models.frames.speech import SpeechParts
from sglang_omni.models.frames.state import FrameState
from sglang_omni.models.higgs_audio_v2.components.checkpoint import HiggsCheckpoint
from sglang_omni.models.higgs_audio_v2.components.frames import HiggsFrames
from sglang_omni.models.higgs_audio_v2.components.prompts import HiggsPrompts, HiggsTurns
from sglang_omni.preprocessing.deadline import go_on
from sglang_omni.proto import OmniRequest, StagePayload

ROWS = 60
TEXTS = [f"Text {number}{' and so on' * number}." for number in range(8)]
HEARD = SaidBefore("Hi there", frames=[[3, 1, 4, 1], [5, 9, 2, 6], [5, 3, 5, 8], [9, 7, 9, 3]] * 3)


@pytest.fixture(scope="module")
def said(higgs: HiggsOracle) -> list[HiggsSaid]:
    """What transformers says: every third text after something that its voice has said."""
    return [higgs.speak(text, ROWS, [HEARD] if index % 3 == 1 else []) for index, text in enumerate(TEXTS)]


class HiggsCase:
    def __init__(self, higgs: HiggsOracle, device: str) -> None:
        self.device = device
        self.checkpoint = HiggsCheckpoint.from_dir(higgs.path)
        self.turns = HiggsTurns(self.checkpoint, sample_rate=24_000, frame_samples=960)
        self.speaker = FrameSpeaker(
            "speak",
            HiggsPrompts(self.checkpoint),
            {},
            {},
            LastPart(1024),
            pattern=self.checkpoint.pattern,
        )

    def engine(self, **options: Any) -> Any:
        strategy = DelayedStrategy(HiggsFrames(self.checkpoint, torch.float32, self.device))
        given = {"max_total_tokens": 4096, "prefix_cache": False, "device": self.device, **options}
        return build_engine("omni", self.checkpoint.decoder_spec(strategy), EngineOptions(**given))

    def request(self, index: int, **params: Any) -> EngineRequest:
        params = {"temperature": 0.0, "max_new_tokens": ROWS, **params}
        parts = SpeechParts(
            parts=[self.turns.turn("default", TEXTS[index], go_on)],
            opening=self.turns.opening("default", {}, go_on).text,
        )
        if index % 3 == 1:
            parts["reference"] = self.turns.turn("default", HEARD.text, go_on)
            parts["reference_codes"] = torch.tensor(HEARD.frames)
        return self.speaker.build_request(StagePayload(str(index), OmniRequest(None, params), parts))


def spoken(request: EngineRequest) -> list[list[int]]:
    assert isinstance(request.state, FrameState)
    codes: list[list[int]] = request.state.spoken().tolist()
    return codes


def check(requests: list[EngineRequest], said: list[HiggsSaid]) -> None:
    for request, due in zip(requests, said, strict=True):
        assert spoken(request) == due.frames
        assert request.finish_reason == ("stop" if due.ended else "length")


@pytest.fixture(scope="module", params=["cpu", *["cuda:0"] * (torch.cuda.device_count() > 0)])
def case(request: pytest.FixtureRequest, higgs: HiggsOracle) -> HiggsCase:
    return HiggsCase(higgs, request.param)


def test_what_higgs_audio_says_tells_something(said: list[HiggsSaid]) -> None:
    assert 2 <= sum(speech.ended for speech in said) <= 6
    assert len({str(speech.frames) for speech in said}) == len(said)


def test_the_step_of_a_gpu_has_rows_of_audio_alone(
    higgs: HiggsOracle, said: list[HiggsSaid], monkeypatch: pytest.MonkeyPatch
) -> None:
    attend_paged(monkeypatch)
    recorder = FakeRecorder()
    monkeypatch.setattr(build, "recorder_for", lambda device, cuda_graph: recorder)
    case = HiggsCase(higgs, "cpu")
    # The last of a prompt's chunks may be a single row of text, which is no generated one.
    engine = case.engine(chunked_prefill_size=7, page_size=4)
    requests = [case.request(index) for index in range(8)]
    run(engine, requests)
    check(requests, said)
    assert len(recorder.replayed) >= ROWS // 2


def test_a_seed_tells_the_codes(case: HiggsCase) -> None:
    engine = case.engine()
    alone = [case.request(2, temperature=1.0, seed=seed) for seed in (1, 2)]
    for request in alone:
        run(engine, [request])
    assert spoken(alone[0]) != spoken(alone[1])
    again = case.request(2, temperature=1.0, seed=1)
    run(engine, [case.request(0), again, case.request(5, temperature=1.0)])
    assert spoken(again) == spoken(alone[0])
