"""Engines of any kind, run to the end of their requests."""

from __future__ import annotations

from collections.abc import Sequence

from sglang_omni.engines.base import Engine
from sglang_omni.engines.request import EngineRequest

# More steps than any test needs: an engine that makes no progress must not hang the run.
MAX_STEPS = 3000


def finish(engine: Engine) -> None:
    """Steps while the engine has work."""
    for _ in range(MAX_STEPS):
        if not engine.has_work:
            return
        engine.step()
    raise AssertionError(f"still at work after {MAX_STEPS} steps: {engine.stats()}")


def run(engine: Engine, requests: Sequence[EngineRequest]) -> list[list[int]]:
    """Returns the tokens of each request's answer."""
    for request in requests:
        engine.add(request)
    finish(engine)
    return [request.output_token_ids for request in requests]
