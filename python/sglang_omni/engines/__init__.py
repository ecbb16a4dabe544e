"""OmniEngine and its parts: continuous batching over a paged KV cache."""

from sglang_omni.engines.engine import OmniEngine, build_text_engine
from sglang_omni.engines.request import EngineRequest, RequestStatus
from sglang_omni.model_runner.sampling_params import SamplingParams

__all__ = ["EngineRequest", "OmniEngine", "RequestStatus", "SamplingParams", "build_text_engine"]
