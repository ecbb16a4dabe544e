"""The stage factories of Qwen2.5-Omni's encoders; each runs, and loads its model, in its stage's process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from sglang_omni.models.omni import encoding
from sglang_omni.models.omni.encoding import AudioEncoderArgs, ImageEncoderArgs

if TYPE_CHECKING:
    from sglang_omni.engines.encoder import EncoderRequest
    from sglang_omni.scheduling.omni_scheduler import OmniScheduler


def create_image_encoder(model_path: str, **args: Unpack[ImageEncoderArgs]) -> OmniScheduler[EncoderRequest]:
    """The stage from ``{"visuals": [VisualInput]}`` to ``{"visuals": [VisualOutput]}``."""
    from sglang_omni.models.qwen2_5_omni.family import FAMILY

    return encoding.image_encoder_stage(FAMILY, model_path, **args)


def create_audio_encoder(model_path: str, **args: Unpack[AudioEncoderArgs]) -> OmniScheduler[EncoderRequest]:
    """The stage from ``{"audios": [AudioInput]}`` to ``{"audios": [AudioOutput]}``."""
    from sglang_omni.models.qwen2_5_omni.family import FAMILY

    return encoding.audio_encoder_stage(FAMILY, model_path, **args)
