"""Model execution: weights, paged attention, sampling."""

from sglang_omni.model_runner.config import DecoderConfig
from sglang_omni.model_runner.decoder import Decoder
from sglang_omni.model_runner.kv_cache import PagedKVCache
from sglang_omni.model_runner.request_sampling import RequestSampling
from sglang_omni.model_runner.runner import ModelRunner

__all__ = ["Decoder", "DecoderConfig", "ModelRunner", "PagedKVCache", "RequestSampling"]
