"""EngineExecutor drives the project's own engines in a pipeline of the legacy form."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from sglang_engines import engines
from text_engines import prompts, text_engine
from tiny_checkpoints import TinyCheckpoint
from tokenizers import Tokenizer

from sglang_omni.config import ExecutorConfig, PipelineConfig, PipelineRunner, StageConfig, compile_pipeline
from sglang_omni.engines import DecoderSpec, EngineRequest, OmniEngine, RequestSampling
from sglang_omni.executors import EngineExecutor, FusedExecutor
from sglang_omni.models.speech_chat.components.smollm2 import ensure_checkpoint
from sglang_omni.pipeline.coordinator import Coordinator
from sglang_omni.preprocessing.text import PromptEncoder
from sglang_omni.proto import CompleteMessage, OmniRequest, StagePayload, StreamMessage

HERE = __name__
Make = Callable[..., TinyCheckpoint]
# What the stages' factories return; a config has dotted paths of factories only.
executors: dict[str, Any] = {}


def create(name: str) -> Any:
    return executors[name]


def end(request_id: str, output: StagePayload) -> None:
    return None


def build_request(payload: StagePayload) -> EngineRequest:
    sampling = RequestSampling.from_params({"temperature": 0, **payload.request.params})
    return EngineRequest(payload.request_id, payload.data["raw_inputs"], sampling)


def tokens(payload: StagePayload, request: EngineRequest) -> list[int]:
    return request.output_token_ids


@asynccontextmanager
async def running(executor: Any) -> AsyncIterator[Coordinator]:
    executors["engine"] = executor
    stage = StageConfig(
        name="engine",
        executor=ExecutorConfig(factory=f"{HERE}.create", args={"name": "engine"}),
        get_next=f"{HERE}.end",
    )
    coordinator, stages = compile_pipeline(PipelineConfig(stages=[stage]))
    async with PipelineRunner(coordinator, stages):
        yield coordinator


def ask(prompt: list[int], **params: Any) -> OmniRequest:
    return OmniRequest(prompt, params)


async def test_many_requests_share_its_batches(tiny_checkpoint: Make) -> None:
    checkpoint = tiny_checkpoint("llama")
    engine = text_engine(checkpoint.path, max_total_tokens=1024)
    many = prompts(1, [5, 17, 30, 2, 60])
    async with running(EngineExecutor(engine, build_request, tokens)) as coordinator:
        asked = [coordinator.submit(f"r{i}", ask(prompt, max_new_tokens=20)) for i, prompt in enumerate(many)]
        assert await asyncio.gather(*asked) == [checkpoint.greedy(prompt, 20) for prompt in many]
    assert engine.stats()["max_batch_size"] > 1
    assert not engine.has_work


async def test_the_engine_on_sglang(tiny_checkpoint: Make) -> None:
    checkpoint = tiny_checkpoint("llama")
    with engines() as build:
        executor = EngineExecutor(build(DecoderSpec.from_dir(checkpoint.path)), build_request, tokens)
        (prompt,) = prompts(2, [12])
        async with running(executor) as coordinator:
            got = await coordinator.submit("r", ask(prompt, max_new_tokens=6))
    assert got == checkpoint.greedy(prompt, 6)


async def test_what_it_stores_by_default(tiny_checkpoint: Make) -> None:
    checkpoint = tiny_checkpoint("llama")
    (prompt,) = prompts(3, [8])
    async with running(EngineExecutor(text_engine(checkpoint.path), build_request)) as coordinator:
        stored = await coordinator.submit("r", ask(prompt, max_new_tokens=3))
    answer = {"token_ids": checkpoint.greedy(prompt, 3), "finish_reason": "length"}
    assert stored == {"raw_inputs": prompt, "model_output": answer}


@pytest.mark.parametrize("fused", [False, True])
async def test_tokens_are_streamed(fused: bool, tiny_checkpoint: Make) -> None:
    checkpoint = tiny_checkpoint("llama")
    executor: Any = EngineExecutor(text_engine(checkpoint.path), build_request, tokens)
    if fused:
        executor = FusedExecutor([lambda payload: payload, executor])
    (prompt,) = prompts(4, [9])
    async with running(executor) as coordinator:
        messages = [m async for m in coordinator.stream("r", ask(prompt, max_new_tokens=7))]
    chunks = [m.chunk for m in messages if isinstance(m, StreamMessage)]
    (result,) = (m.result for m in messages if isinstance(m, CompleteMessage))
    assert chunks == [{"token_ids": [token]} for token in result]
    assert result == checkpoint.greedy(prompt, 7)


async def test_a_link_in_the_middle_keeps_no_stream(tiny_checkpoint: Make) -> None:
    inner = EngineExecutor(text_engine(tiny_checkpoint("llama").path), build_request, tokens)
    async with running(FusedExecutor([inner, lambda payload: len(payload.data)])) as coordinator:
        assert await coordinator.submit("r", ask([3, 4], max_new_tokens=5)) == 5
        assert inner._engine._streams == {}  # type: ignore[attr-defined]
        assert inner._engine._results == {}  # type: ignore[attr-defined]


async def test_one_requests_failure_is_its_own(tiny_checkpoint: Make) -> None:
    checkpoint = tiny_checkpoint("llama")
    engine = text_engine(checkpoint.path, max_total_tokens=64)
    (prompt,) = prompts(5, [10])

    def odd(payload: StagePayload) -> Any:
        if payload.request.params.get("seed") == 7:
            return "no request"
        request = build_request(payload)
        if payload.request.params.get("seed") == 8:
            request.request_id = "another"
        return request

    async with running(EngineExecutor(engine, odd, tokens)) as coordinator:
        asked = [
            coordinator.submit("long", ask(prompt * 10)),
            coordinator.submit("hot", ask(prompt, temperature=-1)),
            coordinator.submit("typed", ask(prompt, seed=7)),
            coordinator.submit("named", ask(prompt, seed=8)),
            coordinator.submit("good", ask(prompt, max_new_tokens=4)),
        ]
        long, hot, typed, named, good = await asyncio.gather(*asked, return_exceptions=True)
    assert "the prompt has 100 tokens" in str(long)
    assert "temperature must be" in str(hot)
    assert "must return an EngineRequest, got a str" in str(typed)
    assert "'another' for request 'named'" in str(named)
    assert good == checkpoint.greedy(prompt, 4)


async def test_an_abort_reaches_the_running_batch(tiny_checkpoint: Make) -> None:
    engine = text_engine(tiny_checkpoint("llama").path)
    (prompt,) = prompts(6, [10])
    async with running(EngineExecutor(engine, build_request, tokens)) as coordinator:
        endless = asyncio.create_task(
            coordinator.submit("endless", ask(prompt, max_new_tokens=245, ignore_eos=True))
        )
        while not engine.scheduler.running:
            await asyncio.sleep(0.001)
        assert await coordinator.abort("endless")
        with pytest.raises(asyncio.CancelledError):
            await endless
        assert len(await coordinator.submit("next", ask(prompt, max_new_tokens=2))) == 2
        assert engine.stats()["kv_used_tokens"] == 0


async def test_a_failed_step_fails_what_was_in_it(
    tiny_checkpoint: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = tiny_checkpoint("llama")
    engine = text_engine(checkpoint.path)
    (prompt,) = prompts(7, [10])
    async with running(EngineExecutor(engine, build_request, tokens)) as coordinator:
        with monkeypatch.context() as patch:

            def fail(*args: object) -> None:
                raise OSError("the model is on fire")

            patch.setattr(engine.runner, "execute", fail)
            with pytest.raises(RuntimeError, match="the model is on fire"):
                await coordinator.submit("unlucky", ask(prompt))
        assert await coordinator.submit("r", ask(prompt, max_new_tokens=2)) == checkpoint.greedy(prompt, 2)


class Crashing(OmniEngine):
    """An engine that fails without the fault of a request."""

    def stats(self) -> dict[str, int]:
        if self._requests:
            raise OSError("the counters are on fire")
        return super().stats()


async def test_an_engine_that_breaks_ends_its_stage(tiny_checkpoint: Make) -> None:
    engine = text_engine(tiny_checkpoint("llama").path)
    crashing = Crashing(engine.scheduler, engine.builder, engine.runner)
    async with running(EngineExecutor(crashing, build_request, tokens)) as coordinator:
        with pytest.raises(RuntimeError, match="the counters are on fire"):
            await asyncio.wait_for(coordinator.submit("r", ask([5, 6])), 60)


async def test_a_real_model_answers() -> None:
    """SmolLM2 served in the legacy form: two requests at once, one of them streamed."""
    checkpoint = ensure_checkpoint()
    prompt_encoder = PromptEncoder(checkpoint)
    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))

    def chat(payload: StagePayload) -> EngineRequest:
        prompt = prompt_encoder.encode_messages([{"role": "user", "content": payload.data["raw_inputs"]}])
        return EngineRequest(payload.request_id, prompt, RequestSampling(temperature=0.0, max_new_tokens=24))

    def text(payload: StagePayload, request: EngineRequest) -> dict[str, Any]:
        return {"text": tokenizer.decode(request.output_token_ids), "finish_reason": request.finish_reason}

    async with running(EngineExecutor(text_engine(checkpoint, num_threads=1), chat, text)) as coordinator:

        async def streamed() -> list[Any]:
            question = OmniRequest("What is the capital of France?")
            return [message async for message in coordinator.stream("streamed", question)]

        whole, (*chunks, last) = await asyncio.gather(
            coordinator.submit("whole", OmniRequest("What is the capital of France?")), streamed()
        )
    assert "Paris" in whole["text"]
    assert whole["finish_reason"] == "stop"
    written = tokenizer.decode([chunk.chunk["token_ids"][0] for chunk in chunks])
    assert written == last.result["text"] == whole["text"]
