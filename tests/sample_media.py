"""Pictures, sounds and videos made at test time, and the message parts that carry them."""

from __future__ import annotations

import base64
import io
import struct
import zlib
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray


def picture(
    seed: int = 0, width: int = 120, height: int = 96, *, kind: str = "PNG", mode: str = "RGB", **save: Any
) -> bytes:
    """An encoded picture of soft random blobs; ``save`` goes to PIL's ``save``."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(_pixels(seed, width, height)).convert(mode).save(buffer, kind, **save)
    return buffer.getvalue()


def png_header(width: int, height: int) -> bytes:
    """The beginning of a PNG file, of whatever size it claims to be."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunk = b"IHDR" + header
    start = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + chunk + struct.pack(">I", zlib.crc32(chunk))
    return start + struct.pack(">I", 100) + b"IDAT"


def sound(seed: int = 0, seconds: float = 1.0, rate: int = 16_000, channels: int = 1) -> bytes:
    """A WAV file (16 bits) of three random tones and some noise."""
    import soundfile

    buffer = io.BytesIO()
    soundfile.write(buffer, _samples(seed, seconds, rate, channels), rate, format="WAV", subtype="PCM_16")
    return buffer.getvalue()


def silence(seconds: float, rate: int = 8000, kind: str = "FLAC", channels: int = 1) -> bytes:
    """A file of zeros, which FLAC holds in next to nothing."""
    import soundfile

    buffer = io.BytesIO()
    soundfile.write(buffer, np.zeros((round(seconds * rate), channels), np.int16), rate, format=kind)
    return buffer.getvalue()


def video(
    seed: int = 0,
    frames: int = 6,
    fps: int = 2,
    width: int = 96,
    height: int = 64,
    *,
    with_sound: bool = False,
    sound_rate: int = 16_000,
) -> bytes:
    """An MP4 file whose picture changes with every frame, silent or with a sound track as long as it."""
    import av

    buffer = io.BytesIO()
    with av.open(buffer, "w", format="mp4") as container:
        stream = container.add_stream("mpeg4", rate=fps)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        stream.bit_rate = 2_000_000
        track = container.add_stream("aac", rate=sound_rate, layout="mono") if with_sound else None
        for index in range(frames):
            frame = av.VideoFrame.from_ndarray(_pixels(100 * seed + index, width, height), format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
        if track is not None:
            samples = _samples(seed, frames / fps, sound_rate, 1).reshape(1, -1).astype(np.float32)
            clip = av.AudioFrame.from_ndarray(samples, format="fltp", layout="mono")
            clip.sample_rate, clip.pts, clip.time_base = sound_rate, 0, Fraction(1, sound_rate)
            container.mux(track.encode(clip))
            container.mux(track.encode())
    return buffer.getvalue()


def sound_by_ffmpeg(samples: NDArray[np.float32], rate: int, container: str, codec: str) -> bytes:
    """One channel, in a container and a codec that libsndfile may not know."""
    import av

    buffer = io.BytesIO()
    with av.open(buffer, "w", format=container) as file:
        stream = file.add_stream(codec, rate=rate, layout="mono")
        frame = av.AudioFrame.from_ndarray(samples.reshape(1, -1), format="fltp", layout="mono")
        frame.sample_rate = rate
        size = stream.codec_context.frame_size or 1024
        resampler = av.AudioResampler(stream.format.name, "mono", rate, size)
        for piece in (*resampler.resample(frame), *resampler.resample(None)):
            file.mux(stream.encode(piece))
        file.mux(stream.encode(None))
    return buffer.getvalue()


def still(size: int = 64, frames: int = 1, *, container: str = "mp4", codec: str = "mpeg4") -> bytes:
    """A silent film in which nothing moves."""
    import av

    buffer = io.BytesIO()
    with av.open(buffer, "w", format=container) as file:
        stream = file.add_stream(codec, rate=30)
        stream.width = stream.height = size
        stream.pix_fmt = "yuv420p"
        frame = av.VideoFrame.from_ndarray(np.zeros((size * 3 // 2, size), np.uint8), format="yuv420p")
        for index in range(frames):
            frame.pts = index
            file.mux(stream.encode(frame))
        file.mux(stream.encode(None))
    return buffer.getvalue()


def data_url(data: bytes, kind: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def text_part(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def image_part(data: bytes) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": data_url(data, "image/png")}}


def audio_part(data: bytes, kind: str = "wav") -> dict[str, Any]:
    return {
        "type": "input_audio",
        "input_audio": {"data": base64.b64encode(data).decode(), "format": kind},
    }


def video_part(data: bytes) -> dict[str, Any]:
    return {"type": "video_url", "video_url": {"url": data_url(data, "video/mp4")}}


def user(*content: str | dict[str, Any]) -> dict[str, Any]:
    """A message of the user's; plain strings are text parts."""
    parts = [text_part(part) if isinstance(part, str) else part for part in content]
    return {"role": "user", "content": parts}


def decoded_sound(data: bytes) -> NDArray[np.float32]:
    """Mono at 16 kHz, the way librosa loads a file."""
    import soundfile
    import soxr

    samples, rate = soundfile.read(io.BytesIO(data), dtype="float32", always_2d=True)
    mono = samples.mean(axis=1)
    return mono if rate == 16_000 else soxr.resample(mono, rate, 16_000)


def decoded_video(data: bytes) -> tuple[NDArray[np.uint8], NDArray[np.float32] | None]:
    """All frames (n, height, width, 3), and the sound track at 16 kHz."""
    import av

    with av.open(io.BytesIO(data)) as container:
        frames = np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])
    with av.open(io.BytesIO(data)) as container:
        if not container.streams.audio:
            return frames, None
        rate = container.streams.audio[0].rate
        track = np.concatenate([frame.to_ndarray()[0] for frame in container.decode(audio=0)])
    if rate != 16_000:
        import soxr

        track = soxr.resample(track, rate, 16_000)
    return frames, np.clip(track, -1.0, 1.0).astype(np.float32)


def _pixels(seed: int, width: int, height: int) -> NDArray[np.uint8]:
    blobs = np.random.default_rng([seed, 1]).random((4, 5, 3))
    rows = np.linspace(0, 3, height).round().astype(int)
    columns = np.linspace(0, 4, width).round().astype(int)
    return (blobs[rows][:, columns] * 255).astype(np.uint8)


def _samples(seed: int, seconds: float, rate: int, channels: int) -> NDArray[np.float64]:
    generator = np.random.default_rng([seed, 2])
    time = np.arange(round(seconds * rate))[:, None] / rate
    pitches = generator.uniform(100, 1500, (3, 1, channels))
    tones = np.sin(2 * np.pi * pitches * time).mean(axis=0) * 0.5
    return tones + generator.normal(0, 0.02, tones.shape)


def sounds_of_videos(processor: Any, of_videos: list[int | None]) -> dict[str, Any]:
    """How an omni processor of transformers is told that sounds are videos' own, and newer ones also which.

    Args:
        processor: The processor.
        of_videos: For each sound, the index of its video; None for one of its own.
    """
    if hasattr(processor, "load_audio_from_video"):
        return {"load_audio_from_video": True, "audio_from_video_indices": of_videos}
    return {"use_audio_in_video": True}
