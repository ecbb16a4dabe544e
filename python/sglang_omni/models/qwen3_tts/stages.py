"""The stage factories of Qwen3-TTS's texts and talker; each runs and loads its models in its own process.

Those of its codec are in ``codec_stages``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

from sglang_omni.models.decoder.args import DecoderArgs
from sglang_omni.models.frames.memory import speak_demand
from sglang_omni.models.frames.stages import LoadedDecoders, SpokenArgs, preprocess_stage, speak_stage
from sglang_omni.models.qwen3_tts.components.checkpoint import Qwen3TTSCheckpoint
from sglang_omni.models.qwen3_tts.kinds import request_params
from sglang_omni.scheduling.simple_scheduler import SimpleScheduler

if TYPE_CHECKING:
    import torch

    from sglang_omni.engines.options import EngineKind, EngineOptions
    from sglang_omni.scheduling.omni_scheduler import OmniScheduler

# ``generate`` of the authors' package: no speech ends before its second frame.
_MIN_FRAMES = 2


def create_preprocess(
    model_path: str, *, max_part_bytes: int = 4096, **args: Unpack[SpokenArgs]
) -> SimpleScheduler:
    """The stage from a text, and perhaps the recording of a voice, to token ids and samples.

    Args:
        model_path: Directory of a Qwen3-TTS checkpoint.
        max_part_bytes: A longer text is spoken in parts, of whole sentences where they are not longer. By
            default a part takes some four minutes, of eleven that the published limit of frames has room for.
        args: The other limits and options.
    """
    from sglang_omni.models.qwen3_tts.components.spoken import Qwen3TTSTexts

    checkpoint = Qwen3TTSCheckpoint.from_dir(model_path)
    takes = request_params(checkpoint.config, checkpoint.kind)
    return preprocess_stage(Qwen3TTSTexts(checkpoint), takes, max_part_bytes, args)


def create_speak(
    model_path: str, *, engine: EngineKind | None = None, **args: Unpack[DecoderArgs]
) -> OmniScheduler[Any]:
    """The stage from token ids to frames of codes, as they are made.

    Args:
        model_path: Directory of a Qwen3-TTS checkpoint.
        engine: ``"sglang"``, the default on a GPU if it is installed, or ``"omni"``, the default on a CPU.
        args: Of its engine.
    """
    checkpoint = Qwen3TTSCheckpoint.from_dir(model_path)

    def load(options: EngineOptions, dtype: torch.dtype) -> LoadedDecoders:
        from sglang_omni.models.frames.earlier import NothingEarlier
        from sglang_omni.models.frames.speaking import FrameSpeaker
        from sglang_omni.models.qwen3_tts.components.frames import Qwen3TTSFrames, Qwen3TTSStrategy
        from sglang_omni.models.qwen3_tts.components.prompts import Qwen3TTSPrompts

        strategy = Qwen3TTSStrategy(Qwen3TTSFrames(checkpoint, dtype, options.device))
        speaker = FrameSpeaker(
            "speak",
            Qwen3TTSPrompts(checkpoint),
            checkpoint.sampling,
            checkpoint.residual_sampling,
            NothingEarlier(),
            min_frames=_MIN_FRAMES,
            end_token=checkpoint.tags.eos,
        )
        return LoadedDecoders(strategy, checkpoint.decoder(strategy), speaker)

    return speak_stage(
        checkpoint.path, load, lambda args: speak_demand(model_path, checkpoint.talker, args), engine, args
    )
