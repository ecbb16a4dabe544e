"""Engines on SGLang, and what tests do with them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from sglang_omni.engines.options import DecoderSpec, EngineOptions
from sglang_omni.engines.sglang.build import build_sglang_engine

if TYPE_CHECKING:
    # The engine's builder prepares the import of SGLang.
    from sglang_omni.engines.sglang.engine import SGLangEngine


class Build(Protocol):
    def __call__(self, spec: DecoderSpec, **options: Any) -> SGLangEngine:
        """``options`` are fields of ``EngineOptions``."""
        ...


@contextmanager
def engines() -> Iterator[Build]:
    """Makes engines, and closes them at the end."""
    built: list[SGLangEngine] = []

    def build(spec: DecoderSpec, **options: Any) -> SGLangEngine:
        defaults = {"max_total_tokens": 1024, "chunked_prefill_size": 64, "num_threads": 1}
        built.append(build_sglang_engine(spec, EngineOptions(**{**defaults, **options})))
        return built[-1]

    yield build
    for engine in built:
        engine.close()


def expect_short_answers(engine: SGLangEngine) -> None:
    """As after many short requests: SGLang then admits more than the pool holds if they are long."""
    engine.scheduler.new_token_ratio_tracker.current = 0.05


def assert_empty(engine: SGLangEngine) -> None:
    """No KV is in use, and SGLang's accounts of its pools add up."""
    stats = engine.stats()
    assert [stats[name] for name in ("num_running_reqs", "num_queue_reqs", "kv_used_tokens")] == [0, 0, 0]
    engine.check_pools()
