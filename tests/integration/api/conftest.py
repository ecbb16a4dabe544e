"""What tests of the API share: a server in front of a scripted pipeline, and its clients."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import httpx
import openai
import pytest
from scripted_pipeline import CAPABILITIES, ScriptedPipeline, serving
from waiting import PATIENCE

from sglang_omni.client import SyncClient
from sglang_omni.serve.state import Capabilities


@pytest.fixture(scope="session")
def serve() -> Callable[..., AbstractContextManager[tuple[ScriptedPipeline, str]]]:
    """Serves a scripted pipeline of its own that can do what it is told it can; gives it and the base URL."""

    @contextmanager
    def own(capabilities: Capabilities, name: str, **limits: int) -> Iterator[tuple[ScriptedPipeline, str]]:
        scripted = ScriptedPipeline()
        with serving(scripted, capabilities, name, **limits) as base_url:
            yield scripted, base_url

    return own


@pytest.fixture(scope="session")
def served() -> Iterator[tuple[ScriptedPipeline, str]]:
    scripted = ScriptedPipeline()
    with serving(scripted, CAPABILITIES, "scripted") as base_url:
        yield scripted, base_url


@pytest.fixture
def pipeline(served: tuple[ScriptedPipeline, str]) -> Iterator[ScriptedPipeline]:
    scripted = served[0]
    scripted.reset()
    yield scripted
    # A caller that left is noticed a moment later: in this test, not in the next.
    left_by = time.monotonic() + PATIENCE
    while scripted.running and time.monotonic() < left_by:
        time.sleep(0.005)
    assert not scripted.running, "a request outlived its test"


@pytest.fixture
def base_url(served: tuple[ScriptedPipeline, str], pipeline: ScriptedPipeline) -> str:
    return served[1]


@pytest.fixture
def http(base_url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=base_url, trust_env=False, timeout=PATIENCE) as client:
        yield client


@pytest.fixture
def api(base_url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{base_url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(params=["coordinator", "http"])
def client(request: pytest.FixtureRequest, pipeline: ScriptedPipeline, base_url: str) -> Iterator[SyncClient]:
    """The package's client, in front of the pipeline itself and of its server."""
    if request.param == "http":
        with SyncClient(base_url) as over_http:
            yield over_http
        return
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    with SyncClient(pipeline, loop=loop) as in_process:
        yield in_process
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()
