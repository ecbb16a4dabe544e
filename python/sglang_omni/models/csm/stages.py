"""The stage factories of CSM; each runs, and loads its models, in its stage's process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

from sglang_omni.models.csm.components.checkpoint import CsmCheckpoint
from sglang_omni.models.csm.request_params import REQUEST_PARAMS
from sglang_omni.models.decoder.args import DecoderArgs
from sglang_omni.models.frames.memory import speak_demand
from sglang_omni.models.frames.stages import LoadedDecoders, SpokenArgs, preprocess_stage, speak_stage
from sglang_omni.scheduling.simple_scheduler import SimpleScheduler

if TYPE_CHECKING:
    import torch

    from sglang_omni.engines.options import EngineKind, EngineOptions
    from sglang_omni.scheduling.omni_scheduler import OmniScheduler


def create_preprocess(
    model_path: str, *, max_part_bytes: int = 100, **args: Unpack[SpokenArgs]
) -> SimpleScheduler:
    """The stage from a text, and perhaps the recording of a voice, to token ids and samples.

    Args:
        model_path: Directory of a CSM checkpoint.
        max_part_bytes: A longer text is spoken in parts, of whole sentences where they are not longer.
        args: The other limits and options.
    """
    from sglang_omni.models.csm.components.spoken import CsmTurns

    turns = CsmTurns(CsmCheckpoint.from_dir(model_path))
    return preprocess_stage(turns, REQUEST_PARAMS, max_part_bytes, args)


def create_speak(
    model_path: str, *, engine: EngineKind | None = None, **args: Unpack[DecoderArgs]
) -> OmniScheduler[Any]:
    """The stage from token ids to frames of codes, as they are made.

    Args:
        model_path: Directory of a CSM checkpoint.
        engine: ``"sglang"``, the default on a GPU if it is installed, or ``"omni"``, the default on a CPU.
        args: Of its engine.
    """
    checkpoint = CsmCheckpoint.from_dir(model_path)

    def load(options: EngineOptions, dtype: torch.dtype) -> LoadedDecoders:
        from sglang_omni.models.csm.components.frames import CsmFrames
        from sglang_omni.models.frames.earlier import LastPart
        from sglang_omni.models.frames.speaking import FrameSpeaker
        from sglang_omni.models.frames.strategy import FrameStrategy

        frames = CsmFrames(checkpoint, dtype, options.device)
        strategy = FrameStrategy(frames)
        speaker = FrameSpeaker(
            "speak",
            frames.prompt,
            checkpoint.sampling,
            checkpoint.residual_sampling,
            LastPart(checkpoint.backbone.max_position_embeddings),
        )
        return LoadedDecoders(strategy, checkpoint.decoder(strategy), speaker)

    return speak_stage(
        checkpoint.path, load, lambda args: speak_demand(model_path, checkpoint.backbone, args), engine, args
    )
