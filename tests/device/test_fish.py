"""What a frame of Fish S2-Pro costs on a GPU, with widths near the published ones and 3 slow layers of 36."""

from __future__ import annotations

import copy
import inspect
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from fake_cuda import DEVICE, Step, fake_gpu
from fish_s2_oracle import CONFIG
from graph_recorders import CountingRecorder
from torch import Tensor

from sglang_omni.engines import build
from sglang_omni.engines.build import build_omni_engine
from sglang_omni.engines.engine import OmniEngine
from sglang_omni.engines.options import EngineOptions
from sglang_omni.engines.request import EngineRequest
from sglang_omni.model_runner.attention import has_paged_attention
from sglang_omni.model_runner.draws import Drawn
from sglang_omni.model_runner.request_sampling import RequestSampling
from sglang_omni.model_runner.runner import ModelRunner
from sglang_omni.model_runner.sampling import Choice, Sampler
from sglang_omni.models.fish_s2_pro.components import checkpoint as checkpoint_module
from sglang_omni.models.fish_s2_pro.components.checkpoint import FishS2Checkpoint, Heads
from sglang_omni.models.fish_s2_pro.components.dual_ar import dual_ar_decoder, dual_ar_strategy
from sglang_omni.models.frames import strategy as frame_strategy
from sglang_omni.models.frames.state import FramePrompt, FrameState

GROUPS, START = 10, 1100
WIDTHS = {"dim": 2560, "head_dim": 128, "intermediate_size": 9728, "n_head": 32, "n_local_heads": 8}
TEXT = {"vocab_size": START + 4096, "n_layer": 3, "max_seq_len": 32_768}
AUDIO = {"vocab_size": 4096, "n_layer": 4, "max_seq_len": GROUPS + 1, "num_codebooks": GROUPS}


class Shapes:
    """A checkpoint of empty tensors, whatever is asked for."""

    def __init__(
        self,
        path: Path,
        dtype: torch.dtype,
        component: str = "",
        *,
        heads: Heads,
        device: torch.device | str = "cpu",
    ) -> None:
        self._dtype, self._device = dtype, device

    def take(self, name: str, shape: Sequence[int]) -> Tensor:
        return torch.empty(*shape, dtype=self._dtype).to(self._device)

    def finish(self, *, optional: Sequence[str] = ()) -> None:
        pass


@pytest.fixture
def recorder() -> CountingRecorder | None:
    return None


@pytest.fixture
def engine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, recorder: CountingRecorder | None
) -> Iterator[OmniEngine]:
    config = copy.deepcopy(CONFIG)
    config["text_config"] |= WIDTHS | TEXT
    config["audio_decoder_config"] |= WIDTHS | AUDIO | {"text_dim": WIDTHS["dim"]}
    config |= {"semantic_start_token_id": START, "semantic_end_token_id": START + 4095, "eos_token_id": 5}
    (tmp_path / "config.json").write_text(json.dumps(config))
    monkeypatch.setattr(checkpoint_module, "FishCheckpoint", Shapes)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
    # In inference mode, operations would be counted before they are decomposed.
    monkeypatch.setattr(ModelRunner, "execute", inspect.unwrap(ModelRunner.execute))
    monkeypatch.setattr(build, "recorder_for", lambda device, cuda_graph: recorder)
    monkeypatch.setattr(frame_strategy, "recorder_for", lambda device, cuda_graph: recorder)
    checkpoint = FishS2Checkpoint.from_dir(tmp_path)
    with fake_gpu():
        strategy = dual_ar_strategy(checkpoint, torch.bfloat16, DEVICE)
        options = EngineOptions(dtype="bfloat16", device=DEVICE, max_total_tokens=4096, prefix_cache=False)
        strategy.record_graphs(options.max_running_requests)
        yield build_omni_engine(dual_ar_decoder(checkpoint, strategy), options)


def speak(engine: OmniEngine, temperature: float) -> list[FrameState]:
    """Two texts, one of them in a voice of four frames."""
    states = []
    for number in range(2):
        frames = {place: torch.zeros(GROUPS, dtype=torch.long) for place in range(3, 3 + 4 * number)}
        sampling = RequestSampling(temperature=temperature, top_k=30, top_p=0.8, max_new_tokens=50)
        prompt = FramePrompt([frames.get(place, 7) for place in range(20)])
        states.append(FrameState(prompt, sampling))
        request = EngineRequest(str(number), [7] * 20, sampling, state=states[-1], cacheable=False)
        states[-1].generator = request.generator
        engine.add(request)
    return states


def step(engine: OmniEngine) -> Step:
    with Step(value=START + 9) as counted:
        engine.step()
    return counted


def greedily(sampler: Sampler, logits: Tensor, rows: object) -> Choice:
    return Choice(Drawn(logits.argmax(dim=-1)))


def test_greedy_frames(engine: OmniEngine) -> None:
    states = speak(engine, temperature=0.0)
    prompt = step(engine)
    frame = step(engine)
    # The tokens that the host chose go back for the other codes of their frames.
    assert (frame.host_reads, frame.uploads, frame.downloads) == (1, 2, 1)
    assert prompt.host_reads == 1
    assert prompt.uploads <= 8
    assert [len(state.frames) for state in states] == [2, 2]
    assert {str(codes.device) for state in states for codes in state.frames} == {DEVICE}


def test_drawing_asks_nothing_of_the_host(engine: OmniEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    speak(engine, temperature=0.8)
    # The first codes are the sampler's matter.
    monkeypatch.setattr(Sampler, "choose", greedily)
    step(engine)
    frame = step(engine)
    assert frame.host_reads == 1
    # What is drawn with goes along with the tokens.
    assert frame.uploads == 2


@pytest.mark.parametrize("recorder", [CountingRecorder()])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_frame_is_replayed(
    engine: OmniEngine, recorder: CountingRecorder, monkeypatch: pytest.MonkeyPatch, temperature: float
) -> None:
    monkeypatch.setattr(Sampler, "choose", greedily)
    speak(engine, temperature)
    step(engine)
    before = len(recorder.replayed)
    frame = step(engine)
    assert (frame.host_reads, frame.uploads) == (1, 2)
    # The slow decoder's step, if torch attends over pages; and all other codes of the frame.
    if has_paged_attention():
        assert len(recorder.replayed) - before == 2
        assert frame.num_launches <= 20
    else:
        assert len(recorder.replayed) - before == 1
