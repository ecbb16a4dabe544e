"""Stages whose factories load nothing, and write down what they were given; on PYTHONPATH, in every process.

Each process appends ``{"stage", "environment", "gpu_id", "tp_rank"}`` to the file that STAGES_FILE names.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.util
import json
import os
import sys
from collections.abc import Callable
from typing import Any

_MODULE = "sglang_omni.pipeline.stage.build"


class _Finder(importlib.abc.MetaPathFinder):
    """Replaces the factories that the stages' builder imports."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != _MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.loader is not None
        execute = spec.loader.exec_module

        def replaced(module: Any) -> None:
            execute(module)
            load = module.import_callable
            module.import_callable = lambda dotted, **where: _without_model(load(dotted, **where), **where)

        spec.loader.exec_module = replaced  # type: ignore[method-assign]
        return spec


def _without_model(factory: Callable[..., Any], stage: str, **_: Any) -> Callable[..., Any]:
    @functools.wraps(factory)
    def build(*args: Any, **kwargs: Any) -> Any:
        from sglang_omni.scheduling.simple_scheduler import SimpleScheduler

        given = {name: kwargs.get(name) for name in ("gpu_id", "tp_rank", "engine", "max_total_tokens")}
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        line = json.dumps({"stage": stage, "visible": visible, "pid": os.getpid(), **given})
        with open(os.environ["STAGES_FILE"], "a") as file:
            file.write(line + "\n")

        class OfRanks(SimpleScheduler):
            def join_ranks(self, ranks: Any) -> None:
                """Nothing is computed, so ranks have nothing to agree on."""

        return OfRanks(lambda payload: payload)

    return build


sys.meta_path.insert(0, _Finder())
