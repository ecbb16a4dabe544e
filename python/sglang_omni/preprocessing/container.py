"""Opening of media files with FFmpeg such that only their own bytes are read.

FFmpeg knows some four hundred formats. Some of them describe streams (SDP, which opens ports), list other
files (concat, HLS, DASH) or name devices: a hundred such bytes could read any file that the server can.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sglang_omni.preprocessing.deadline import Aborted, Check
from sglang_omni.proto import RequestError

# FFmpeg's demuxers of files that contain all of their media.
VIDEO_FORMATS = ("avi", "matroska", "mov")
AUDIO_FORMATS = (
    *("aac", "aiff", "amr", "amrnb", "amrwb", "au", "caf", "flac", "mp3", "ogg", "w64", "wav"),
    *VIDEO_FORMATS,
)
# FFmpeg's decoders.
VIDEO_CODECS = (
    *("h264", "hevc", "vp8", "libvpx", "vp9", "libvpx-vp9", "av1", "libdav1d", "libaom-av1"),
    *("mpeg4", "mjpeg", "h263", "mpeg1video", "mpeg2video", "theora", "prores"),
)
AUDIO_CODECS = (
    *("aac", "aac_fixed", "alac", "flac", "mp2", "mp2float", "mp3", "mp3float", "opus", "libopus", "vorbis"),
    *("libvorbis", "ac3", "eac3", "amrnb", "amrwb", "libopencore_amrnb", "libopencore_amrwb", "gsm_ms"),
    *("adpcm_ms", "adpcm_ima_wav", "adpcm_ima_qt", "pcm_alaw", "pcm_mulaw", "pcm_u8", "pcm_s8", "pcm_s16le"),
    *("pcm_s16be", "pcm_s24le", "pcm_s24be", "pcm_s32le", "pcm_s32be", "pcm_f32le", "pcm_f32be", "pcm_f64le"),
    "pcm_f64be",
)
# FFmpeg decodes a few frames to probe the streams, before their size is known here.
_MAX_PROBED_PIXELS = 1 << 26


@contextmanager
def opened(data: bytes, formats: tuple[str, ...], check: Check) -> Iterator[Any]:
    """A PyAV container that reads ``data`` and nothing else.

    Args:
        formats: Demuxers that may be used.
        check: Called at each read. If it raises, FFmpeg sees the end of the file and returns; the exception
            is then raised again here.

    Raises:
        av.error.FFmpegError: The file has none of these formats, or is damaged.
    """
    import av

    source = _MediaFile(data, check)
    options = {
        "format_whitelist": ",".join(formats),
        "codec_whitelist": ",".join(AUDIO_CODECS + VIDEO_CODECS),
        "protocol_whitelist": "none",
        "max_pixels": str(_MAX_PROBED_PIXELS),
    }
    try:
        with av.open(source, mode="r", metadata_errors="ignore", options=options) as container:
            yield container
    finally:
        if source.stopped is not None:
            raise source.stopped


def first_stream(container: Any, kind: str) -> Any | None:
    """The first ``"audio"`` or ``"video"`` stream; None if there is none, or its codec is not allowed."""
    streams = getattr(container.streams, kind)
    # A codec unknown to FFmpeg has no context.
    if not streams or streams[0].codec_context is None:
        return None
    codecs = AUDIO_CODECS if kind == "audio" else VIDEO_CODECS
    return streams[0] if streams[0].codec_context.name in codecs else None


class _MediaFile(io.BytesIO):
    """A file in memory that keeps its check's exception, which FFmpeg would only log."""

    def __init__(self, data: bytes, check: Check) -> None:
        super().__init__(data)
        self.stopped: Exception | None = None
        self._check = check

    def read(self, size: int | None = -1, /) -> bytes:
        if self.stopped is None:
            try:
                self._check()
            except (Aborted, RequestError) as exc:
                self.stopped = exc
        return b"" if self.stopped is not None else super().read(size)
