"""CSM on both engines: every code of every frame equals that of transformers' ``generate``."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from csm_oracle import RATE, CsmOracle, Said
from engine_runs import run
from graph_recorders import FakeRecorder, recorder_on
from sglang_engines import engines

from sglang_omni.engines.base import Engine
from sglang_omni.engines.request import EngineRequest
from sglang_omni.models.codecs.mimi import MimiEncoder, VoiceRecording
from sglang_omni.models.csm.components.checkpoint import CsmCheckpoint
from sglang_omni.models.csm.components.frames import CsmFrames
from sglang_omni.models.frames import strategy as frame_strategy
from sglang_omni.models.frames.earlier import LastPart
from sglang_omni.models.frames.speaking import FrameSpeaker
from sglang_omni.models.frames.speech import SpeechParts
from sglang_omni.models.frames.state import FrameState
from sglang_omni.models.frames.strategy import FrameStrategy
from sglang_omni.proto import OmniRequest, StagePayload

MAX_FRAMES = 30
TEXTS = [f"Hello number {index}, and{' so on' * index}." for index in range(8)]
SAID = "Hi there"
# SGLang computes float32 on CPUs alone.
ENGINES = [("omni", "cpu"), ("sglang", "cpu"), *([("omni", "cuda:0")] * (torch.cuda.device_count() > 0))]


@pytest.fixture(scope="module")
def sound() -> Any:
    return (np.random.default_rng(0).standard_normal(RATE + 500) * 0.2).astype(np.float32)


def in_context(index: int) -> bool:
    return index % 3 == 1


@pytest.fixture(scope="module")
def said(csm: CsmOracle, sound: Any) -> list[Said]:
    """What transformers says: every third text after a recording of its voice."""
    return [
        csm.speak(
            text,
            MAX_FRAMES,
            voice=str(index),
            **({"said": SAID, "sound": sound} if in_context(index) else {}),
        )
        for index, text in enumerate(TEXTS)
    ]


class Case:
    def __init__(self, csm: CsmOracle, sound: Any, said: list[Said], build: Any, device: str) -> None:
        self.csm, self.said, self.build, self.device = csm, said, build, device
        self.checkpoint = CsmCheckpoint.from_dir(csm.path)
        self.frames = CsmFrames(self.checkpoint, torch.float32, device)
        self.speaker = FrameSpeaker("speak", self.frames.prompt, {}, {}, LastPart(512))
        recording = VoiceRecording(key=b"", samples=torch.from_numpy(sound))
        ((self.voice,),) = MimiEncoder(csm.model.codec_model).encode([recording])

    def engine(self, *, record: bool = False, **options: Any) -> Engine:
        # Graphs are recorded of new decoders: earlier steps have made their buffers.
        frames = CsmFrames(self.checkpoint, torch.float32, self.device) if record else self.frames
        strategy = FrameStrategy(frames)
        if record:
            strategy.record_graphs(8)
        given = {"page_size": None, "max_total_tokens": 2048, "device": self.device, **options}
        return self.build(self.checkpoint.decoder(strategy), prefix_cache=False, **given)

    def request(self, index: int, **params: Any) -> EngineRequest:
        params = {"temperature": 0.0, "max_new_tokens": MAX_FRAMES, **params}

        def ids(text: str) -> list[int]:
            return self.csm.inputs(text, voice=str(index))["input_ids"][0].tolist()

        parts = SpeechParts(parts=[ids(TEXTS[index])], opening=[])
        if in_context(index):
            parts |= {"reference": ids(SAID), "reference_codes": self.voice}
        return self.speaker.build_request(StagePayload(str(index), OmniRequest(None, params), parts))

    def check(self, requests: list[EngineRequest]) -> None:
        for request in requests:
            said = self.said[int(request.request_id)]
            assert frames(request) == said.frames
            assert request.finish_reason == ("stop" if said.ended else "length")


def frames(request: EngineRequest) -> list[list[int]]:
    assert isinstance(request.state, FrameState)
    return [frame.tolist() for frame in request.state.frames]


@pytest.fixture(scope="module", params=ENGINES, ids="-".join)
def case(request: pytest.FixtureRequest, csm: CsmOracle, sound: Any, said: list[Said]) -> Iterator[Case]:
    kind, device = request.param
    with engines(kind) as build:
        yield Case(csm, sound, said, build, device)


@pytest.fixture(scope="module")
def engine(case: Case) -> Engine:
    return case.engine()


def test_what_is_said_tells_something(said: list[Said]) -> None:
    assert 2 <= sum(speech.ended for speech in said) <= 6
    assert len({str(speech.frames) for speech in said}) == len(said)
    assert max(len(set(map(tuple, speech.frames))) for speech in said) > MAX_FRAMES // 2


def test_drawn_codes_depend_on_the_seed_alone(case: Case, engine: Engine) -> None:
    def drawn(seed: int) -> EngineRequest:
        return case.request(1, temperature=0.9, top_k=20, seed=seed)

    alone = [drawn(seed) for seed in (1, 2)]
    for request in alone:
        run(engine, [request])
    assert frames(alone[0]) != frames(alone[1])
    again, other = drawn(1), case.request(0)
    run(engine, [other, again])
    assert frames(again) == frames(alone[0])
    case.check([other])
    assert all(0 <= code < 64 for frame in frames(again) for code in frame)


def test_frames_of_graphs_are_the_same(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = recorder_on(case.device)
    monkeypatch.setattr(frame_strategy, "recorder_for", lambda device, cuda_graph: recorder)
    engine = case.engine(record=True)
    together = [case.request(index) for index in range(8)]
    run(engine, together)
    case.check(together)
    if isinstance(recorder, FakeRecorder):
        assert len(recorder.replayed) >= MAX_FRAMES


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model_type": "llama"}, "no CSM checkpoint"),
        ({"num_codebooks": 3}, "one number of codebooks"),
        ({"hidden_act": "gelu"}, "hidden_act"),
    ],
)
def test_another_checkpoint_is_refused(
    csm: CsmOracle, tmp_path: Path, fields: dict[str, Any], message: str
) -> None:
    config = json.loads((csm.path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, **fields}))
    with pytest.raises(ValueError, match=message):
        CsmCheckpoint.from_dir(tmp_path)


def test_decoders_that_share_a_table_have_it_once(csm: CsmOracle, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    path = shutil.copytree(csm.path, tmp_path / "shared")
    index = path / "transformers.safetensors.index.json"
    weight_map = json.loads(index.read_text())["weight_map"]
    shard = path / weight_map.pop("backbone_model.embed_tokens.embed_audio_tokens.weight")
    weights = load_file(shard)
    own = weights.pop("backbone_model.embed_tokens.embed_audio_tokens.weight")
    save_file(weights, shard)
    index.write_text(json.dumps({"weight_map": weight_map}))
    shared = CsmFrames(CsmCheckpoint.from_dir(path), torch.float32, "cpu")
    other = CsmFrames(CsmCheckpoint.from_dir(csm.path), torch.float32, "cpu")
    frame = torch.tensor([[1, 2, 3, 4]])
    table = load_file(path / weight_map["depth_decoder.model.embed_tokens.weight"])[
        "depth_decoder.model.embed_tokens.weight"
    ]
    rows = [1, 67 + 2, 134 + 3, 201 + 4]
    torch.testing.assert_close(shared.frame_rows(frame)[0], table[rows].sum(0))
    torch.testing.assert_close(other.frame_rows(frame)[0], own[rows].sum(0))
