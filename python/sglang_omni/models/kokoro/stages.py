"""The stage factories of Kokoro; each runs, and loads what it needs, in its stage's process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sglang_omni.models.kokoro.components.checkpoint import KokoroCheckpoint
from sglang_omni.models.loading import available_cores, loading, placement
from sglang_omni.scheduling.simple_scheduler import SimpleScheduler

if TYPE_CHECKING:
    from sglang_omni.scheduling.stream_scheduler import StreamScheduler
    from sglang_omni.scheduling.turns import SchedulePolicy


def create_preprocess(
    model_path: str, *, max_speech_chars: int = 16_384, max_part_phonemes: int = 510
) -> SimpleScheduler:
    """The stage from a text to parts of phonemes.

    Args:
        model_path: Directory of a Kokoro checkpoint.
        max_speech_chars: Limit of a text.
        max_part_phonemes: Of what is spoken at once. The first sound comes earlier if there are fewer; speech
            is best by whole sentences.
    """
    from sglang_omni.models.kokoro.phonemes import KokoroPhonemes
    from sglang_omni.models.kokoro.preprocess import KokoroPreprocessor

    checkpoint = KokoroCheckpoint.from_dir(model_path)
    phonemes = KokoroPhonemes(checkpoint, max_part_phonemes)
    # espeak-ng has one state in a process: one text after the other.
    return SimpleScheduler(KokoroPreprocessor(checkpoint, phonemes, max_speech_chars))


def create_voice(
    model_path: str,
    *,
    gpu_id: int | None = None,
    num_threads: int | None = None,
    schedule_policy: SchedulePolicy = "fcfs",
) -> StreamScheduler:
    """The stage from phonemes to speech, in float32.

    Args:
        model_path: Directory of a Kokoro checkpoint.
        gpu_id: The GPU; None for the CPU.
        num_threads: CPU threads; all cores by default, as no other stage computes much.
        schedule_policy: ``"deadline"`` speaks first for the listener whose sound runs out first, ``"fcfs"``
            for the request that has waited longest for its next part.
    """
    import torch

    from sglang_omni.models.kokoro.components.weights import KokoroVoices, load_kokoro
    from sglang_omni.models.kokoro.speak import KokoroSession
    from sglang_omni.preprocessing.request import wants_stream
    from sglang_omni.scheduling.stream_scheduler import StreamScheduler

    torch.set_num_threads(num_threads or available_cores())
    checkpoint = KokoroCheckpoint.from_dir(model_path)
    device = placement("float32", gpu_id)[1]
    with loading(f"{model_path}, float32 on {device},"):
        model = load_kokoro(checkpoint, device)
    voices = KokoroVoices(checkpoint)
    space = checkpoint.vocab.get(" ", -1)
    return StreamScheduler(
        lambda: KokoroSession(model, voices, space),
        expects_stream=lambda payload: False,
        wants_chunks=lambda payload: wants_stream(payload.request),
        schedule_policy=schedule_policy,
    )
