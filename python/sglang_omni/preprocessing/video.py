"""Encoded videos of any common kind -> RGB frames, and the sound that goes with them."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sglang_omni.preprocessing.audio import AudioClip, decode_audio
from sglang_omni.preprocessing.image import MAX_ASPECT_RATIO
from sglang_omni.proto import RequestError

if TYPE_CHECKING:
    from numpy.typing import NDArray


class VideoInfo(NamedTuple):
    """A video's picture: how many frames it has, how many a second on average, and their size in pixels."""

    num_frames: int
    fps: float
    width: int
    height: int


@dataclass(frozen=True)
class VideoLimits:
    """
    Attributes:
        frames: That are taken of a video.
        pixels: Of all the frames taken together.
        seconds: Length of the video.
    """

    frames: int = 768
    pixels: int = 300_000_000
    seconds: float = 3600.0


def decode_video(
    data: bytes,
    *,
    param: str,
    limits: VideoLimits,
    choose_frames: Callable[[VideoInfo], Sequence[int]] | None = None,
) -> NDArray[np.uint8]:
    """Frames of a video, uint8 (n, height, width, 3).

    Args:
        data: The encoded file; its kind is found from its content.
        param: The request field it came from, for error messages.
        choose_frames: Which frames to take, ascending; all of them where it is None.

    Raises:
        RequestError: The data are no video, or one that is over a limit.
    """
    with _opened(data, param) as container:
        info = _info(container, param)
        _check_layout(info, param, limits)
        chosen = range(info.num_frames) if choose_frames is None else choose_frames(info)
        _check_count(len(chosen), info, param, limits)
        wanted, last = set(chosen), max(chosen)
        frames = []
        for index, frame in enumerate(container.decode(video=0)):
            if (frame.width, frame.height) != (info.width, info.height):
                raise RequestError(
                    f"{param} changes its size in the middle of the video", param=param, code="invalid_video"
                )
            if index in wanted:
                frames.append(frame.to_ndarray(format="rgb24"))
            if index >= last:
                break
    if not frames:
        _refuse(param)
    return np.stack(frames)


def decode_sound_track(
    data: bytes, *, param: str, sample_rate: int = 16_000, max_seconds: float = 300.0
) -> AudioClip:
    """The sound of a video, as ``decode_audio`` gives it.

    Raises:
        RequestError: It has none, or one that is too long.
    """
    with _opened(data, param) as container:
        if not container.streams.audio:
            raise RequestError(
                f"{param} has no sound track, which use_audio_in_video needs: send the video without it",
                param=param,
                code="no_sound_track",
            )
    return decode_audio(data, param=param, sample_rate=sample_rate, max_seconds=max_seconds)


@contextmanager
def _opened(data: bytes, param: str) -> Iterator[Any]:
    import av
    import av.error

    try:
        with av.open(io.BytesIO(data), mode="r", metadata_errors="ignore") as container:
            yield container
    except (av.error.FFmpegError, ValueError, IndexError) as exc:
        if isinstance(exc, RequestError):
            raise
        raise RequestError(_not_video(param), param=param, code="invalid_video") from exc


def _info(container: Any, param: str) -> VideoInfo:
    if not container.streams.video:
        _refuse(param)
    stream = container.streams.video[0]
    if stream.codec_context is None or not stream.width or not stream.height:
        _refuse(param)
    # Counted, which decodes nothing: headers may say something else, or nothing.
    num_frames = sum(1 for packet in container.demux(stream) if packet.size)
    container.seek(0)
    fps = float(stream.average_rate or stream.base_rate or 0)
    if not num_frames or not fps:
        _refuse(param)
    return VideoInfo(num_frames, fps, stream.width, stream.height)


def _check_layout(info: VideoInfo, param: str, limits: VideoLimits) -> None:
    seconds = info.num_frames / info.fps
    if seconds > limits.seconds:
        raise RequestError(
            f"{param} is {seconds:.0f} s long; the limit is {limits.seconds:g} s",
            param=param,
            code="video_too_long",
        )
    if max(info.width, info.height) > MAX_ASPECT_RATIO * min(info.width, info.height):
        raise RequestError(
            f"{param} has frames of {info.width} x {info.height} pixels; one side may be at most "
            f"{MAX_ASPECT_RATIO} times the other",
            param=param,
            code="invalid_video",
        )


def _check_count(count: int, info: VideoInfo, param: str, limits: VideoLimits) -> None:
    size = info.width * info.height
    most = min(limits.frames, limits.pixels // size)
    if count > most:
        raise RequestError(
            f"{param} would be seen in {count} frames of {info.width} x {info.height} pixels, of which "
            f"{most} are accepted: send a shorter or smaller video, or give video_fps to take fewer frames",
            param=param,
            code="video_too_long",
        )


def _not_video(param: str) -> str:
    return f"{param} is not a video that can be decoded; send MP4, WebM, MKV, MOV or AVI"


def _refuse(param: str) -> None:
    raise RequestError(_not_video(param), param=param, code="invalid_video")
