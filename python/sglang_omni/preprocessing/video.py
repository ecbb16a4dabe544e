"""Decoding of videos in any common format to RGB frames, and of their sound."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sglang_omni.preprocessing.audio import AudioClip, decode_audio
from sglang_omni.preprocessing.container import VIDEO_FORMATS, first_stream, opened
from sglang_omni.preprocessing.deadline import Check, go_on
from sglang_omni.preprocessing.image import MAX_ASPECT_RATIO
from sglang_omni.proto import RequestError

if TYPE_CHECKING:
    from numpy.typing import NDArray


class VideoInfo(NamedTuple):
    """A video's number of frames, average frames per second, and frame size in pixels."""

    num_frames: int
    fps: float
    width: int
    height: int


@dataclass(frozen=True)
class VideoLimits:
    """Limits of one video.

    Attributes:
        frames: Number of frames taken.
        pixels: Pixels of all frames taken.
        seconds: Length of the video.
        frame_pixels: Width times height.
        decoded_frames: Number of frames decoded: all up to the last one taken.
        decoded_pixels: Pixels of all frames decoded.
    """

    frames: int = 768
    pixels: int = 300_000_000
    seconds: float = 3600.0
    frame_pixels: int = 1 << 24
    decoded_frames: int = 250_000
    decoded_pixels: int = 20_000_000_000


def decode_video(
    data: bytes,
    *,
    param: str,
    limits: VideoLimits,
    choose_frames: Callable[[VideoInfo], Sequence[int]] | None = None,
    check: Check = go_on,
) -> NDArray[np.uint8]:
    """Frames of a video, uint8 (n, height, width, 3).

    Args:
        data: The encoded file; its format is found from its content.
        param: The request's field, for error messages.
        choose_frames: Returns the indices of the frames to take, ascending; None takes all.
        check: Called between the pieces of the work; an exception that it raises ends the work.

    Raises:
        RequestError: The data are not a video, or the video exceeds a limit.
    """
    with _opened(data, param, check) as container:
        stream = _stream(container, param, limits)
        info = _info(container, stream, param, check)
        _check_layout(info, param, limits)
        chosen = range(info.num_frames) if choose_frames is None else choose_frames(info)
        wanted, last = set(chosen), max(chosen)
        _check_frames(len(chosen), last + 1, info, param, limits)
        frames = []
        for index, frame in enumerate(_frames(container, stream, check)):
            if (frame.width, frame.height) != (info.width, info.height):
                raise RequestError(
                    f"{param} changes its size in the middle of the video", param=param, code="invalid_video"
                )
            if index in wanted:
                frames.append(frame.to_ndarray(format="rgb24"))
            if index >= last:
                break
    if not frames:
        raise _not_video(param)
    return np.stack(frames)


def decode_sound_track(
    data: bytes, *, param: str, sample_rate: int = 16_000, max_seconds: float = 300.0, check: Check = go_on
) -> AudioClip:
    """Decodes the sound of a video to mono samples.

    Args:
        data: The encoded video.
        param: The request's field, for error messages.
        sample_rate: Rate of the result, in Hz.
        max_seconds: Longest accepted sound.
        check: Called between the pieces of the work; an exception that it raises ends the work.

    Raises:
        RequestError: The video has no sound, or its sound is too long.
    """
    with _opened(data, param, check) as container:
        if not container.streams.audio:
            raise RequestError(
                f"{param} has no sound track, which use_audio_in_video needs: send the video without it",
                param=param,
                code="no_sound_track",
            )
    return decode_audio(data, param=param, sample_rate=sample_rate, max_seconds=max_seconds, check=check)


@contextmanager
def _opened(data: bytes, param: str, check: Check) -> Iterator[Any]:
    import av.error

    try:
        with opened(data, VIDEO_FORMATS, check) as container:
            yield container
    except (av.error.FFmpegError, ValueError, IndexError) as exc:
        if isinstance(exc, RequestError):
            raise
        raise _not_video(param) from exc


def _stream(container: Any, param: str, limits: VideoLimits) -> Any:
    import av

    stream = first_stream(container, "video")
    if stream is None or not stream.width or not stream.height:
        raise _not_video(param)
    if stream.width * stream.height > limits.frame_pixels:
        raise RequestError(
            f"{param} has frames of {stream.width} x {stream.height} pixels, "
            f"{stream.width * stream.height / 1e6:.1f} megapixels; the limit is "
            f"{limits.frame_pixels / 1e6:.1f} megapixels: send a smaller video",
            param=param,
            code="video_too_large",
        )
    claimed = (container.duration or 0) / av.time_base
    if claimed > limits.seconds:
        raise _too_long(claimed, param, limits)
    # Frames may be larger than the header says.
    stream.codec_context.options = {"max_pixels": str(limits.frame_pixels)}
    return stream


def _info(container: Any, stream: Any, param: str, check: Check) -> VideoInfo:
    width, height = stream.width, stream.height
    # Count packets, without decoding: the header's number may be wrong or missing.
    num_frames = 0
    for packet in container.demux(stream):
        check()
        num_frames += bool(packet.size)
    container.seek(0)
    fps = float(stream.average_rate or stream.base_rate or 0)
    if not num_frames or not fps:
        raise _not_video(param)
    return VideoInfo(num_frames, fps, width, height)


def _frames(container: Any, stream: Any, check: Check) -> Iterator[Any]:
    for packet in container.demux(stream):
        check()
        for frame in packet.decode():
            check()
            yield frame


def _check_layout(info: VideoInfo, param: str, limits: VideoLimits) -> None:
    seconds = info.num_frames / info.fps
    if seconds > limits.seconds:
        raise _too_long(seconds, param, limits)
    if max(info.width, info.height) > MAX_ASPECT_RATIO * min(info.width, info.height):
        raise RequestError(
            f"{param} has frames of {info.width} x {info.height} pixels; one side may be at most "
            f"{MAX_ASPECT_RATIO} times the other",
            param=param,
            code="invalid_video",
        )


def _check_frames(taken: int, decoded: int, info: VideoInfo, param: str, limits: VideoLimits) -> None:
    """Frames that are not taken are decoded too, because later ones are made from them."""
    size = info.width * info.height
    frames = f"frames of {info.width} x {info.height} pixels"
    if taken > (most := min(limits.frames, limits.pixels // size)):
        raise RequestError(
            f"{param} would be seen in {taken} {frames}, of which {most} are accepted: send a shorter or "
            "smaller video, or give video_fps to take fewer frames",
            param=param,
            code="video_too_long",
        )
    if decoded > (most := min(limits.decoded_frames, limits.decoded_pixels // size)):
        raise RequestError(
            f"{param} would have {decoded} {frames} decoded, of which {most} are accepted, taken or not: "
            "send a shorter or smaller video",
            param=param,
            code="video_too_large",
        )


def _too_long(seconds: float, param: str, limits: VideoLimits) -> RequestError:
    text = f"{param} is {seconds:.0f} s long; the limit is {limits.seconds:g} s"
    return RequestError(text, param=param, code="video_too_long")


def _not_video(param: str) -> RequestError:
    text = f"{param} is not a video that can be decoded; send MP4, WebM, MKV, MOV or AVI"
    return RequestError(text, param=param, code="invalid_video")
