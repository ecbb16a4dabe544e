"""The stage factories of the codec: recordings of voices to what models read of them, and codes to speech."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

from sglang_omni.models.codecs.loading import CodecArgs, loading_codec

if TYPE_CHECKING:
    from torch import Tensor

    from sglang_omni.models.frames.speech import SpeechParts
    from sglang_omni.proto import StagePayload
    from sglang_omni.scheduling.code2wav_scheduler import Code2WavScheduler
    from sglang_omni.scheduling.omni_scheduler import OmniScheduler
    from sglang_omni.scheduling.turns import SchedulePolicy


def create_reference(
    model_path: str,
    *,
    cache_bytes: int = 16_000_000,
    max_batch_samples: int = 1_440_000,
    **args: Unpack[CodecArgs],
) -> OmniScheduler[Any]:
    """The stage from the recording of a voice to its codes and its vector, of a Base model.

    Args:
        model_path: Directory of the checkpoint.
        cache_bytes: Size of the cache of both for repeated recordings; 0 for none.
        max_batch_samples: Limit of the samples of a batch's recordings, which are equally long.
        args: Of both encoders.
    """
    from sglang_omni.models.frames.reference import reference_scheduler
    from sglang_omni.models.qwen3_tts.components.voice_encoder import RecordedVoiceEncoder

    with loading_codec(model_path, **args) as place:
        encoder = RecordedVoiceEncoder.load(model_path, *place)
    return reference_scheduler(encoder, cache_bytes=cache_bytes, max_batch_cost=max_batch_samples)


def create_code2wav(
    model_path: str,
    *,
    chunk_size: int = 25,
    first_chunk_size: int = 2,
    max_batch_frames: int = 64,
    cuda_graph: bool = True,
    schedule_policy: SchedulePolicy = "fcfs",
    **args: Unpack[CodecArgs],
) -> Code2WavScheduler:
    """The stage from frames of codes to speech, chunk by chunk.

    A voice's recording is decoded before the speech, without a sound of it: the speech continues it.

    Args:
        model_path: Directory of the checkpoint.
        chunk_size: Frames of a chunk, 80 ms each.
        first_chunk_size: Frames of the first chunk; later chunks grow up to ``chunk_size``.
        max_batch_frames: Frames decoded at once, of requests whose chunks are equally long.
        cuda_graph: True if chunks' decoding on a GPU is captured as CUDA graphs if it can be.
        schedule_policy: ``"deadline"`` decodes first for the listener whose sound runs out first, ``"fcfs"``
            in the order in which chunks are complete.
        args: Of the decoder.
    """
    from sglang_omni.models.codecs.speech_codec import speech_scheduler
    from sglang_omni.models.qwen3_tts.components.codec import Qwen3TTSDecoder

    with loading_codec(model_path, **args) as (dtype, device):
        codec = Qwen3TTSDecoder.load(model_path, dtype, device)
    return speech_scheduler(
        codec,
        device,
        chunk_size=chunk_size,
        first_chunk_size=first_chunk_size,
        max_batch_frames=max_batch_frames,
        cuda_graph=cuda_graph,
        schedule_policy=schedule_policy,
        context_of=_recording,
    )


def _recording(payload: StagePayload) -> Tensor | None:
    data: SpeechParts = payload.data
    return data.get("reference_codes")
