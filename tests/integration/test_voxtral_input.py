"""Sound that comes to Voxtral Realtime while it writes, through the pipeline's processes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
from transcription_runs import RATE, recording, tones
from waiting import PATIENCE

from sglang_omni.config import EndpointsConfig
from sglang_omni.models.voxtral_realtime.config import VoxtralRealtimePipelineConfig
from sglang_omni.models.voxtral_realtime.tiny_checkpoint import make
from sglang_omni.pipeline.coordinator import Coordinator
from sglang_omni.pipeline.processes.runner import MultiProcessPipelineRunner
from sglang_omni.proto import CompleteMessage, OmniRequest, RequestError

pytestmark = pytest.mark.asyncio(loop_scope="module")
SOUNDS = [tones(seed, seconds) for seed, seconds in enumerate((6.0, 0.3, 3.07))]
TASK = {"task": "transcription"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def coordinator(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Coordinator]:
    folder = tmp_path_factory.mktemp("voxtral-input")
    own = {"transcribe": {"num_threads": 1}}
    config = VoxtralRealtimePipelineConfig(
        model_path=str(make(folder / "model", 3)),
        runtime_overrides=own,
        endpoints=EndpointsConfig(base_path=str(folder / "run")),
    )
    runner = MultiProcessPipelineRunner(config)
    await runner.start(timeout=300)
    try:
        yield runner.coordinator
    finally:
        await runner.stop()


async def pieces(sound: Any, size: int, said: asyncio.Event) -> AsyncGenerator[Any, None]:
    """The sound, whose last second comes once text has come of what was before."""
    last = max(0, len(sound) - RATE)
    for at in range(0, last, size):
        yield sound[at : min(at + size, last)]
    if last > RATE:
        await said.wait()
    yield sound[last:]


async def heard(coordinator: Coordinator, name: str, sound: Any, size: int) -> tuple[str, dict[str, Any]]:
    """The streamed text, and the result."""
    request, texts, said = OmniRequest({"sample_rate": RATE}, {"stream": True}, TASK), [], asyncio.Event()
    async with asyncio.timeout(PATIENCE):
        async for batch in coordinator.stream_batches(name, request, pieces(sound, size, said)):
            if isinstance(batch, CompleteMessage):
                return "".join(texts), batch.result
            texts += [message.chunk["text"] for message in batch]
            said.set()
    raise AssertionError("the stream has no end")


async def test_sound_that_comes_is_heard_as_the_recording(coordinator: Coordinator) -> None:
    whole = [
        await coordinator.submit(f"whole-{index}", OmniRequest({"audio": recording(sound)}, {}, TASK))
        for index, sound in enumerate(SOUNDS)
    ]
    assert all(answer["text"] for answer in whole)
    answers = await asyncio.gather(
        *(
            heard(coordinator, f"{size}-{index}", sound, size)
            for size in (320, 7001)
            for index, sound in enumerate(SOUNDS)
        )
    )
    for (streamed, result), right in zip(answers, [*whole, *whole], strict=True):
        assert streamed == right["text"]
        assert result == right


async def test_bad_sound_is_its_requests_alone(coordinator: Coordinator) -> None:
    async def bad() -> AsyncGenerator[Any, None]:
        yield np.zeros(RATE, np.float32)
        yield np.full(10, np.inf, np.float32)

    request = OmniRequest({"sample_rate": RATE}, {"stream": True}, TASK)
    with pytest.raises(RequestError, match="finite"):
        async for _ in coordinator.stream_batches("bad", request, bad()):
            pass
    streamed, result = await heard(coordinator, "good", SOUNDS[2], 1280)
    assert streamed == result["text"] != ""
