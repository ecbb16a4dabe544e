"""Engines of either kind, and what tests do with them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from sglang_omni.engines.build import build_engine
from sglang_omni.engines.options import DecoderSpec, EngineKind, EngineOptions

KINDS: list[EngineKind] = ["omni", "sglang"]
# SGLang's also as on a GPU: a step is launched before the tokens of the last one are read.
WAYS: dict[str, tuple[EngineKind, dict[str, Any]]] = {
    "omni": ("omni", {}),
    "sglang": ("sglang", {}),
    "overlap": ("sglang", {"overlap_schedule": True}),
}


class Build(Protocol):
    def __call__(self, spec: DecoderSpec, **options: Any) -> Any:
        """``options`` are fields of ``EngineOptions``."""
        ...


@contextmanager
def engines(kind: EngineKind = "sglang") -> Iterator[Build]:
    """Makes engines, and closes them at the end."""
    built: list[Any] = []

    def build(spec: DecoderSpec, **options: Any) -> Any:
        defaults = {"max_total_tokens": 1024, "chunked_prefill_size": 64, "page_size": 1, "num_threads": 1}
        built.append(build_engine(kind, spec, EngineOptions(**{**defaults, **options})))
        return built[-1]

    yield build
    if kind == "sglang":
        for engine in built:
            engine.close()


def expect_short_answers(engine: Any) -> None:
    """As after many short requests: SGLang then admits more than the pool holds if they are long."""
    if hasattr(engine.scheduler, "new_token_ratio_tracker"):
        engine.scheduler.new_token_ratio_tracker.current = 0.05


def assert_empty(engine: Any) -> None:
    """No KV is in use, and SGLang's accounts of its pools add up."""
    stats = engine.stats()
    assert [stats[name] for name in ("num_running_reqs", "num_queue_reqs", "kv_used_tokens")] == [0, 0, 0]
    if hasattr(engine, "check_pools"):
        engine.check_pools()
