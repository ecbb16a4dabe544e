"""A stage that adds to a request's list what its process sees of GPUs."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from sglang_omni.gpus import visible_gpus
from sglang_omni.proto import StagePayload


def load(gpu_id: int | None = None) -> Callable[[StagePayload], list[dict[str, Any]]]:
    def report(payload: StagePayload) -> list[dict[str, Any]]:
        names = ("CUDA_VISIBLE_DEVICES", "CUDA_MPS_PIPE_DIRECTORY")
        seen = {name: os.environ.get(name) for name in names}
        own = {**seen, "gpu_id": gpu_id, "gpus": [gpu.uuid for gpu in visible_gpus()]}
        return [*(payload.data if isinstance(payload.data, list) else []), own]

    return report
