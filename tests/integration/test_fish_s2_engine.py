"""Fish Audio S2-Pro on both engines: every code equals that of a plain loop that recomputes everything."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from engine_runs import run
from fish_s2_oracle import CODES, END, GROUPS, START, TEXT_TOKENS, FishS2
from graph_recorders import FakeRecorder, recorder_on
from safetensors.torch import load_file, save_file

from sglang_omni.engines.base import Engine
from sglang_omni.engines.build import build_engine
from sglang_omni.engines.options import EngineKind, EngineOptions
from sglang_omni.engines.request import EngineRequest
from sglang_omni.model_runner.request_sampling import RequestSampling
from sglang_omni.models.fish_s2_pro.components.checkpoint import FishS2Checkpoint
from sglang_omni.models.fish_s2_pro.components.dual_ar import dual_ar_decoder, dual_ar_strategy
from sglang_omni.models.frames import strategy as frame_strategy
from sglang_omni.models.frames.state import FramePrompt, FrameState

MAX_NEW_TOKENS = 14
# Kind of engine, device, and seed of the weights. SGLang computes float32 on CPUs alone.
ENGINES: list[tuple[EngineKind, str, int]] = [
    *(("omni", "cpu", seed) for seed in range(3)),
    ("sglang", "cpu", 0),
    *(("omni", "cuda:0", seed) for seed in range(torch.cuda.device_count() and 3)),
]


class Speech(NamedTuple):
    """A prompt, with the frames of a voice where it has one, and what is said to it."""

    prompt: list[int]
    prompt_frames: dict[int, list[int]]
    tokens: list[int]
    frames: list[list[int]]


class Case(NamedTuple):
    checkpoint: FishS2Checkpoint
    speeches: list[Speech]
    kind: EngineKind
    device: str

    def engine(self, *, record: bool = False, **options: int) -> Engine:
        strategy = dual_ar_strategy(self.checkpoint, torch.float32, self.device)
        if record:
            strategy.record_graphs(4)
        given = {"max_total_tokens": 1024, "num_threads": 1, "prefix_cache": False, **options}
        return build_engine(
            self.kind,
            dual_ar_decoder(self.checkpoint, strategy),
            EngineOptions(device=self.device, **given),
        )

    def request(self, index: int, sampling: RequestSampling | None = None) -> EngineRequest:
        speech = self.speeches[index]
        sampling = sampling or RequestSampling(temperature=0.0, max_new_tokens=MAX_NEW_TOKENS)
        voice = {place: torch.tensor(frame) for place, frame in speech.prompt_frames.items()}
        rows = [voice.get(place, token) for place, token in enumerate(speech.prompt)]
        state = FrameState(FramePrompt(rows), sampling)
        request = EngineRequest(str(index), speech.prompt, sampling, state=state, cacheable=False)
        state.generator = request.generator
        return request

    def check(self, requests: list[EngineRequest]) -> None:
        for request, speech in zip(requests, self.speeches, strict=True):
            assert frames(request) == speech.frames
            assert request.output_token_ids == speech.tokens


def frames(request: EngineRequest) -> list[list[int]]:
    assert isinstance(request.state, FrameState)
    return [frame.tolist() for frame in request.state.frames]


@pytest.fixture(scope="module", params=ENGINES, ids=lambda param: "-".join(map(str, param)))
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    torch.set_num_threads(1)
    kind, device, seed = request.param
    fish = FishS2.make(tmp_path_factory.mktemp(f"fish-s2-{seed}"), seed=seed)
    chance = random.Random(seed)
    speeches = []
    for length, num_frames in ((9, 0), (40, 12), (23, 0), (30, 1)):
        prompt = [chance.randrange(TEXT_TOKENS) for _ in range(length)]
        voice = {i: [chance.randrange(CODES) for _ in range(GROUPS)] for i in range(5, 5 + num_frames)}
        for place, frame in voice.items():
            prompt[place] = START + frame[0]
        speeches.append(Speech(prompt, voice, *fish.speak(prompt, MAX_NEW_TOKENS, voice)))
    return Case(FishS2Checkpoint.from_dir(fish.path), speeches, kind, device)


def test_drawn_codes_depend_on_the_seed_alone(case: Case) -> None:
    engine = case.engine()

    def drawn(seed: int) -> EngineRequest:
        sampling = RequestSampling(temperature=0.9, top_p=0.9, seed=seed, max_new_tokens=MAX_NEW_TOKENS)
        return case.request(1, sampling)

    alone = [drawn(seed) for seed in (1, 2)]
    for request in alone:
        run(engine, [request])
    assert frames(alone[0]) != frames(alone[1])
    again, other = drawn(1), case.request(0)
    run(engine, [other, again])
    assert frames(again) == frames(alone[0])
    assert frames(other) == case.speeches[0].frames
    assert all(0 <= code < CODES for frame in frames(again) for code in frame)


def test_frames_of_graphs_are_the_same(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = recorder_on(case.device)
    monkeypatch.setattr(frame_strategy, "recorder_for", lambda device, cuda_graph: recorder)
    engine = case.engine(record=True)
    together = [case.request(i) for i in range(4)]
    run(engine, together)
    case.check(together)
    if isinstance(recorder, FakeRecorder):
        assert len(recorder.replayed) >= max(len(speech.frames) for speech in case.speeches)


def test_the_end_makes_no_frame(case: Case) -> None:
    for speech in case.speeches:
        assert len(speech.frames) == len(speech.tokens) - (speech.tokens[-1] == END)


@pytest.mark.parametrize("missing", ["audio_decoder.layers.1.attention.wqkv.weight"])
def test_a_missing_or_unknown_tensor_is_named(tmp_path: Path, missing: str) -> None:
    path = FishS2.make(tmp_path, seed=0).path
    index = path / "model.safetensors.index.json"
    weight_map = json.loads(index.read_text())["weight_map"]
    shard = path / weight_map.pop(missing)
    index.write_text(json.dumps({"weight_map": weight_map}))
    checkpoint = FishS2Checkpoint.from_dir(path)
    with pytest.raises(ValueError, match=missing):
        dual_ar_strategy(checkpoint, torch.float32)
    tensors = load_file(shard)
    save_file({**tensors, "audio_decoder.other": torch.zeros(1)}, shard)
    weight_map |= {missing: shard.name, "audio_decoder.other": shard.name}
    index.write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(ValueError, match=r"audio_decoder\.other"):
        dual_ar_strategy(checkpoint, torch.float32)
