"""Thinker and talker decode through SGLang's runner of CUDA graphs: recorded on a CPU, the same tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from engine_runs import run
from qwen3_omni_oracle import Oracle
from recorded_graphs import record_decode_steps
from sample_media import audio_part, image_part, picture, sound, user, video, video_part
from sglang_engines import engines
from talker_oracle import spoken
from text_engines import greedy
from thinker_requests import ThinkerPrompt
from tiny_checkpoints import TinyCheckpoint

from sglang_omni.engines import DecoderSpec, EngineRequest, RequestSampling
from sglang_omni.models.qwen3_omni.components.checkpoint import Qwen3OmniCheckpoint
from sglang_omni.models.qwen3_omni.components.decoders import talker_decoder, thinker_decoder
from sglang_omni.models.qwen3_omni.components.talker_state import Qwen3TalkerState
from sglang_omni.models.qwen3_omni.components.talker_strategy import Qwen3TalkerStrategy

CONVERSATIONS = [
    [user("Name three rivers and the seas that they flow into.")],
    [user(image_part(picture(1)), "What is this?")],
    [user(video_part(video(5, frames=4, width=64)), audio_part(sound(2, 1.3)), "What happens?")],
]


def forbid_decoding(engine: Any) -> None:
    """From now on the model may only compute prompts; decode steps are repeated."""
    model = engine.scheduler.tp_worker.model_runner.model
    forward = model.forward

    def extend_only(input_ids: Any, positions: Any, batch: Any, **kwargs: Any) -> Any:
        assert batch.forward_mode.is_extend()
        return forward(input_ids, positions, batch, **kwargs)

    model.forward = extend_only


def test_thinker(qwen3_omni: Callable[..., Oracle], monkeypatch: pytest.MonkeyPatch) -> None:
    oracle = qwen3_omni(seed=0, shape="default")
    prompts = [ThinkerPrompt.of(oracle, messages, max_tokens=10) for messages in CONVERSATIONS]
    checkpoint = Qwen3OmniCheckpoint.from_dir(oracle.path)
    with engines("sglang") as build:
        engine = build(thinker_decoder(checkpoint, for_speech=True), max_total_tokens=4096)
        recorded = record_decode_steps(engine, [1, 4], monkeypatch)
        forbid_decoding(engine)
        for _ in range(2):
            # Three rows in a graph of four, then fewer as answers end.
            requests = [prompt.request(str(index)) for index, prompt in enumerate(prompts)]
            assert run(engine, requests) == [prompt.token_ids for prompt in prompts]
        alone = prompts[1].request("alone")
        assert run(engine, [alone]) == [prompts[1].token_ids]
    assert recorded.num_replays > 20


def test_talker(qwen3_omni: Callable[..., Oracle], monkeypatch: pytest.MonkeyPatch) -> None:
    oracle = qwen3_omni(seed=2, shape="deep")
    checkpoint = Qwen3OmniCheckpoint.from_dir(oracle.path)
    references = [
        spoken(oracle, messages, max_tokens=3 + 3 * index, max_new_tokens=12, penalty=1.5)
        for index, messages in enumerate(CONVERSATIONS)
    ]
    strategy = Qwen3TalkerStrategy.from_checkpoint(checkpoint, torch.float32)
    with engines("sglang") as build:
        engine = build(talker_decoder(checkpoint, strategy))
        recorded = record_decode_steps(engine, [2, 4], monkeypatch)
        forbid_decoding(engine)
        requests: list[EngineRequest] = []
        for index, reference in enumerate(references):
            state = reference.state(checkpoint)
            sampling = RequestSampling(
                temperature=0.0, repetition_penalty=reference.penalty, max_new_tokens=reference.max_new_tokens
            )
            requests.append(
                EngineRequest(
                    str(index),
                    state.prompt.token_ids,
                    sampling,
                    state=state,
                    positions=reference.positions,
                    cacheable=False,
                )
            )
        assert run(engine, requests) == [reference.first_codes for reference in references]
    for request, reference in zip(requests, references, strict=True):
        assert isinstance(request.state, Qwen3TalkerState)
        assert [frame.tolist() for frame in request.state.frames] == reference.codes.tolist()
    assert recorded.num_replays >= 11


def test_a_failed_capture_leaves_an_engine_without_graphs(
    tiny_checkpoint: Callable[..., TinyCheckpoint],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    checkpoint = tiny_checkpoint("llama")
    prompt = [1, 2, 3]
    with engines("sglang") as build:
        build(DecoderSpec.from_dir(checkpoint.path))
        from sglang_omni.engines.sglang import scheduler

        capture = scheduler.Scheduler.init_all_cuda_graphs
        backends: list[list[str]] = []

        def fail_once(self: Any) -> None:
            graphs = scheduler.get_exec().graph.cuda_graph_config
            backends.append([graphs.decode.backend, graphs.prefill.backend])
            if len(backends) == 1:
                raise RuntimeError("Capture cuda graph failed: no\nPossible solutions: ...")
            capture(self)

        monkeypatch.setattr(scheduler.Scheduler, "init_all_cuda_graphs", fail_once)
        monkeypatch.setattr(scheduler, "cuda_graph_fully_disabled", lambda: False)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
        engine = build(DecoderSpec.from_dir(checkpoint.path))

        assert run(engine, [greedy("a", prompt, 8)]) == [checkpoint.greedy(prompt, 8)]
    assert backends[1] == ["disabled", "disabled"]
    (line,) = [record.getMessage() for record in caplog.records if record.name == scheduler.__name__]
    assert line == (
        "CUDA graphs cannot be captured, so steps run without them: Capture cuda graph failed: no"
    )


@pytest.mark.parametrize("decode_fails", [False, True])
def test_a_failed_capture_of_prompts_leaves_that_of_decode_steps(
    tiny_checkpoint: Callable[..., TinyCheckpoint],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    decode_fails: bool,
) -> None:
    """Prompts' graphs are captured first, and are the larger ones."""
    checkpoint = tiny_checkpoint("llama")
    prompt = [1, 2, 3]
    with engines("sglang") as build:
        build(DecoderSpec.from_dir(checkpoint.path))
        from sglang.srt.model_executor.model_runner_components import cuda_graph_setup

        from sglang_omni.engines.sglang import scheduler

        initial = scheduler.Scheduler.init_all_cuda_graphs
        prefill, decode = cuda_graph_setup.capture_prefill_graph, cuda_graph_setup.capture_decode_graph
        attempts: list[tuple[str, str]] = []

        def as_on_a_gpu(self: Any) -> None:
            graphs = scheduler.get_exec().graph.cuda_graph_config
            if not attempts:
                graphs.decode.backend, graphs.prefill.backend = "full", "breakable"
            attempts.append((graphs.decode.backend, graphs.prefill.backend))
            initial(self)

        def capture_prefill(**kwargs: Any) -> Any:
            if attempts[-1][1] != "disabled":
                raise torch.cuda.OutOfMemoryError("prompts: out of memory")
            return prefill(**kwargs)

        def capture_decode(**kwargs: Any) -> Any:
            if decode_fails and attempts[-1][0] != "disabled":
                raise torch.cuda.OutOfMemoryError("decode: out of memory")
            return decode(**kwargs)

        monkeypatch.setattr(scheduler.Scheduler, "init_all_cuda_graphs", as_on_a_gpu)
        monkeypatch.setattr(cuda_graph_setup, "capture_prefill_graph", capture_prefill)
        monkeypatch.setattr(cuda_graph_setup, "capture_decode_graph", capture_decode)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
        engine = build(DecoderSpec.from_dir(checkpoint.path))

        assert run(engine, [greedy("a", prompt, 8)]) == [checkpoint.greedy(prompt, 8)]
    lines = [record.getMessage() for record in caplog.records if record.name == scheduler.__name__]
    expected = [("full", "breakable"), ("full", "disabled"), ("disabled", "disabled")]
    said = [
        "CUDA graphs cannot be captured, so prompts run without them: prompts: out of memory",
        "CUDA graphs cannot be captured, so steps run without them: decode: out of memory",
    ]
    assert attempts == expected[: 3 if decode_fails else 2]
    assert lines == said[: 2 if decode_fails else 1]
