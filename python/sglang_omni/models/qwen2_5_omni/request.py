"""Request parameters of Qwen2.5-Omni's codec."""

from __future__ import annotations

from typing import Literal, NamedTuple

from sglang_omni.model_runner.request_sampling import RequestSampling
from sglang_omni.models.omni import request as request_params
from sglang_omni.models.qwen2_5_omni.request_params import CODE2WAV
from sglang_omni.proto import OmniRequest, RequestError

# Codes of a speech that is decoded at once (30 s): its attention takes memory by the square of their number.
REFERENCE_CODES = 1500


class WaveOptions(NamedTuple):
    """How codes become sound.

    Attributes:
        chunking: "blocks" for chunks of a few blocks with those around them; "reference" for all codes at
            once, as in transformers.
        seed: Of the noise that the sound is made of.
    """

    chunking: Literal["blocks", "reference"]
    seed: int


def wave_options(request: OmniRequest) -> WaveOptions:
    """``stage_params: {"code2wav": {"chunking": "blocks" | "reference", "seed": N}}``; the seed is by default
    that of the request, and 0 if it has none.

    Raises:
        RequestError: A value is out of its range.
    """
    own = request_params.own_params(request, "code2wav", CODE2WAV)
    chunking = own.get("chunking", "blocks")
    if chunking not in ("blocks", "reference"):
        raise RequestError(
            f"stage_params.code2wav.chunking must be 'blocks' or 'reference', got {chunking!r}",
            param="stage_params.code2wav.chunking",
            code="invalid_value",
        )
    seed = request.params.get("seed") or 0
    return WaveOptions(chunking, request_params.int_param(own, "code2wav", "seed", 0, 2**63 - 1, seed))


def check_codec(request: OmniRequest, sampling: RequestSampling) -> None:
    """
    Raises:
        RequestError: A parameter of the codec's stage is out of its range, or the speech may be too long for
            its chunking.
    """
    most = sampling.max_new_tokens
    assert most is not None, "the defaults set it"
    if wave_options(request).chunking == "reference" and most > REFERENCE_CODES:
        raise RequestError(
            f"stage_params.code2wav.chunking 'reference' decodes a speech at once, of {REFERENCE_CODES} "
            f"codes at most: set talker_max_new_tokens to that or less, it is {most}",
            param="talker_max_new_tokens",
            code="invalid_value",
        )
