"""OmniEngine and its parts: continuous batching over a paged KV cache."""

from sglang_omni.engines.build import build_engine
from sglang_omni.engines.engine import OmniEngine
from sglang_omni.engines.options import DecoderSpec, EngineOptions
from sglang_omni.engines.request import EngineRequest, RequestStatus
from sglang_omni.model_runner.request_sampling import RequestSampling

# The name by which code outside knows it.
SamplingParams = RequestSampling

__all__ = [
    "DecoderSpec",
    "EngineOptions",
    "EngineRequest",
    "OmniEngine",
    "RequestSampling",
    "RequestStatus",
    "SamplingParams",
    "build_engine",
]
