"""Videos: their frames, their sound, and the limits that are checked before frames are kept."""

from __future__ import annotations

import io

import av
import numpy as np
import pytest
from sample_media import picture, sound, video

from sglang_omni.preprocessing.video import VideoLimits, decode_sound_track, decode_video
from sglang_omni.proto import RequestError


def all_frames(data: bytes) -> np.ndarray:
    with av.open(io.BytesIO(data)) as container:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])


def remuxed(data: bytes, kind: str) -> bytes:
    """The same frames in a container that does not announce their number."""
    buffer = io.BytesIO()
    with av.open(io.BytesIO(data)) as source, av.open(buffer, "w", format=kind) as target:
        stream = target.add_stream_from_template(source.streams.video[0])
        for packet in source.demux(source.streams.video[0]):
            if packet.dts is not None:
                packet.stream = stream
                target.mux(packet)
    return buffer.getvalue()


@pytest.mark.parametrize("kind", ["mp4", "matroska", "mov"])
def test_all_frames(kind: str) -> None:
    data = video(1, 9, 3)
    if kind != "mp4":
        data = remuxed(data, kind)
    frames = decode_video(data, param="video", limits=VideoLimits())
    assert frames.shape == (9, 64, 96, 3)
    assert np.array_equal(frames, all_frames(data))


def test_chosen_frames() -> None:
    data = video(1, 12, 3)
    seen = []

    def choose(info):
        seen.append(info)
        return [0, 5, 11]

    frames = decode_video(data, param="video", limits=VideoLimits(), choose_frames=choose)
    assert seen == [(12, 3.0, 96, 64)]
    assert np.array_equal(frames, all_frames(data)[[0, 5, 11]])


def test_the_sound_track_is_the_audio_of_the_file() -> None:
    clip = decode_sound_track(video(2, 4, 2, with_sound=True, sound_rate=48_000), param="video")
    assert clip.sample_rate == 16_000
    assert clip.duration == pytest.approx(2.0, abs=0.1)
    assert clip.samples.std() > 0.1


@pytest.mark.parametrize(
    ("data", "limits", "expected"),
    [
        (video(1, 30, 2), VideoLimits(frames=20), "seen in 30 frames of 96 x 64 pixels, of which 20 are"),
        (video(1, 6), VideoLimits(pixels=96 * 64 * 4), "of which 4 are accepted"),
        (video(1, 30, 1), VideoLimits(seconds=20), "video is 30 s long; the limit is 20 s"),
        (video(1, 6)[:400], VideoLimits(), "video is not a video"),
        (b"no video", VideoLimits(), "video is not a video that can be decoded; send MP4"),
        (sound(1), VideoLimits(), "video is not a video"),
    ],
)
def test_what_is_no_video_or_too_long_is_refused(data: bytes, limits: VideoLimits, expected: str) -> None:
    with pytest.raises(RequestError, match=expected) as caught:
        decode_video(data, param="video", limits=limits)
    assert caught.value.param == "video"


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (video(1, 4), "video has no sound track, which use_audio_in_video needs"),
        (picture(1), "video"),
        (b"nothing", "video is not a video"),
    ],
)
def test_a_video_without_sound_is_refused_where_it_is_needed(data: bytes, expected: str) -> None:
    with pytest.raises(RequestError, match=expected):
        decode_sound_track(data, param="video")


def test_damaged_files_are_refused_or_decoded_but_never_fail_otherwise() -> None:
    generator = np.random.default_rng(1)
    whole = video(2, 4, with_sound=True)
    for _ in range(40):
        damaged = bytearray(whole)
        for place in generator.integers(0, len(whole), 12):
            damaged[place] = generator.integers(256)
        for decode in (
            lambda data: decode_video(data, param="video", limits=VideoLimits(frames=50)),
            lambda data: decode_sound_track(data, param="video"),
        ):
            try:
                decode(bytes(damaged))
            except RequestError:
                continue
