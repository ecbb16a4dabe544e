"""The stage factories of Fish Audio S2-Pro; each runs, and loads its models, in its stage's process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Unpack

from sglang_omni.models.decoder.args import DecoderArgs
from sglang_omni.models.fish_s2_pro.components.checkpoint import FishS2Checkpoint
from sglang_omni.models.fish_s2_pro.config import MAX_PASSAGE_FRAMES
from sglang_omni.models.fish_s2_pro.memory import GPU_CODEC_FRAMES, dual_ar_demand
from sglang_omni.models.frames.stages import LoadedDecoders, speak_stage
from sglang_omni.models.loading import available_cores, loading, placement
from sglang_omni.scheduling.simple_scheduler import SimpleScheduler

if TYPE_CHECKING:
    import torch

    from sglang_omni.engines.encoder import EncoderRequest
    from sglang_omni.engines.options import EngineKind, EngineOptions
    from sglang_omni.scheduling.code2wav_scheduler import Code2WavScheduler
    from sglang_omni.scheduling.omni_scheduler import OmniScheduler
    from sglang_omni.scheduling.turns import SchedulePolicy


def create_preprocess(
    model_path: str,
    *,
    voices_dir: str | None = None,
    max_speech_chars: int = 16_384,
    passage_bytes: int = 300,
    max_voice_seconds: float = 60.0,
    max_voice_bytes: int = 32_000_000,
    max_decode_seconds: float = 30.0,
    allowed_media_hosts: Sequence[str] = (),
) -> SimpleScheduler:
    """The stage from a text, and perhaps a voice, to token ids and samples.

    Args:
        model_path: Directory of a Fish Audio S2 checkpoint.
        voices_dir: A folder of named voices: a recording NAME.wav and what it says, NAME.txt, for each.
        max_speech_chars: Limit of a text.
        passage_bytes: UTF-8 of a passage; a longer text is cut at sentences, and spoken passage by passage.
        max_voice_seconds: Limit of the length of a voice's recording.
        max_voice_bytes: Limit of its encoded size.
        max_decode_seconds: Limit of the time to fetch and decode it.
        allowed_media_hosts: Hosts of its URL: ``"host"`` at the scheme's port or ``"host:port"``; ``"*"``
            allows all.
    """
    from sglang_omni.models.fish_s2_pro.components.codec import SAMPLE_RATE
    from sglang_omni.models.fish_s2_pro.components.codec_weights import frame_length
    from sglang_omni.models.fish_s2_pro.preprocess import FishS2Preprocessor
    from sglang_omni.models.fish_s2_pro.voices import find_voices
    from sglang_omni.models.frames.preprocess import SpokenLimits
    from sglang_omni.preprocessing.text import load_tokenizer

    preprocessor = FishS2Preprocessor(
        FishS2Checkpoint.from_dir(model_path),
        load_tokenizer(model_path),
        sample_rate=SAMPLE_RATE,
        frame_length=frame_length(model_path),
        limits=SpokenLimits(
            max_speech_chars,
            passage_bytes,
            max_voice_seconds,
            max_voice_bytes,
            max_decode_seconds,
            allowed_media_hosts,
        ),
        voices=find_voices(voices_dir) if voices_dir else None,
    )
    # Decoding and tokenizing release the interpreter's lock: a long request does not delay a short one.
    return SimpleScheduler(preprocessor, max_concurrency=4, sees_abort=True)


def create_voice_encoder(
    model_path: str,
    *,
    gpu_id: int | None = None,
    num_threads: int | None = None,
    cache_bytes: int = 16_000_000,
    max_batch_frames: int = GPU_CODEC_FRAMES,
) -> OmniScheduler[EncoderRequest]:
    """The stage from a recording of a voice to its codes, computed in float32.

    Args:
        model_path: Directory of a Fish Audio S2 checkpoint.
        gpu_id: The GPU; None for the CPU.
        num_threads: torch's threads in this process; None leaves torch's default.
        cache_bytes: Size of the cache of the codes of repeated recordings; 0 for none. A minute of a voice
            takes 100 kB.
        max_batch_frames: Frames computed at once: pieces of all recordings of a batch, or of one.
    """
    import torch

    from sglang_omni.models.fish_s2_pro.components.codec import FishCodecEncoder
    from sglang_omni.models.fish_s2_pro.voice_encoder import VoiceEncoder
    from sglang_omni.models.frames.reference import reference_scheduler

    if num_threads is not None:
        torch.set_num_threads(num_threads)
    _, device = placement("float32", gpu_id)
    with loading(f"the codec's encoder of {model_path} on {device}"):
        codec = FishCodecEncoder.load(model_path, torch.float32, device)
    return reference_scheduler(
        VoiceEncoder(codec, max_batch_frames),
        cache_bytes=cache_bytes,
        max_batch_cost=max_batch_frames,
        warm_up_samples=2 * codec.frame_length,
    )


def create_dual_ar(
    model_path: str,
    *,
    engine: EngineKind | None = None,
    max_passage_frames: int = MAX_PASSAGE_FRAMES,
    **args: Unpack[DecoderArgs],
) -> OmniScheduler:
    """The stage from passages of text to frames of codes, as they come.

    Args:
        model_path: Directory of a Fish Audio S2 checkpoint.
        engine: ``"sglang"``, the default on a GPU if it is installed, or ``"omni"``, the default on a CPU.
        max_passage_frames: The longest speech of a passage, some 48 s, if the request has no limit of the
            whole. A passage that does not end is cut there.
        args: Of its engine.
    """
    checkpoint = FishS2Checkpoint.from_dir(model_path)
    args["num_threads"] = args.get("num_threads") or available_cores()

    def load(options: EngineOptions, dtype: torch.dtype) -> LoadedDecoders:
        from sglang_omni.models.fish_s2_pro.components.dual_ar import dual_ar_decoder, dual_ar_strategy
        from sglang_omni.models.fish_s2_pro.dual_ar import DualAR
        from sglang_omni.preprocessing.text import load_tokenizer
        from sglang_omni.preprocessing.tokenizing import TextTokenizer

        strategy = dual_ar_strategy(checkpoint, dtype, options.device)
        speaker = DualAR(
            checkpoint,
            TextTokenizer(load_tokenizer(model_path)),
            max_passage_frames=max_passage_frames,
            pool_tokens=options.max_total_tokens,
        )
        return LoadedDecoders(strategy, dual_ar_decoder(checkpoint, strategy), speaker)

    return speak_stage(checkpoint.path, load, lambda args: dual_ar_demand(checkpoint, args), engine, args)


def create_codec(
    model_path: str,
    *,
    gpu_id: int | None = None,
    num_threads: int | None = None,
    chunk_size: int = 24,
    first_chunk_size: int = 3,
    max_batch_frames: int | None = None,
    cuda_graph: bool = True,
    schedule_policy: SchedulePolicy = "fcfs",
) -> Code2WavScheduler:
    """The stage from frames of codes to speech, chunk by chunk, computed in float32: 16 bits would be heard.

    Args:
        model_path: Directory of a Fish Audio S2 checkpoint.
        gpu_id: The GPU; None for the CPU.
        num_threads: CPU threads; all cores by default.
        chunk_size: Frames of a chunk, 46 ms each.
        first_chunk_size: Frames of the first chunk; later chunks grow up to ``chunk_size``.
        max_batch_frames: Frames decoded at once, of requests whose chunks are equally long; by default 64 on
            a CPU, 128 on a GPU.
        cuda_graph: True if chunks' decoding on a GPU is captured as CUDA graphs if it can be.
        schedule_policy: ``"deadline"`` decodes first for the listener whose sound runs out first, ``"fcfs"``
            in the order in which chunks are complete.

    Raises:
        ValueError: The codec has other codes than the decoders.
    """
    import torch

    from sglang_omni.models.fish_s2_pro.components.codec import SAMPLE_RATE, FishCodecDecoder
    from sglang_omni.scheduling.code2wav_scheduler import Code2WavScheduler

    checkpoint = FishS2Checkpoint.from_dir(model_path)
    _, device = placement("float32", gpu_id)
    torch.set_num_threads(num_threads or available_cores())
    with loading(f"the codec of {checkpoint.path} on {device}"):
        decoder = FishCodecDecoder.load(checkpoint.path, torch.float32, device)
    checkpoint.check_codec(decoder.codebook_sizes)
    scheduler = Code2WavScheduler(
        decoder,
        device,
        stream_chunk_size=chunk_size,
        left_context_size=None,
        sample_rate=SAMPLE_RATE,
        first_chunk_size=first_chunk_size,
        max_batch_frames=max_batch_frames or (64 if gpu_id is None else GPU_CODEC_FRAMES),
        num_code_groups=len(decoder.codebook_sizes),
        schedule_policy=schedule_policy,
    )
    decoder.record_graphs(scheduler.chunking.sizes, scheduler.max_batch_frames, cuda_graph=cuda_graph)
    return scheduler
