"""Decoding ends at its deadline or when its request is aborted, and stays within its limits."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable

import numpy as np
import pytest
from sample_media import silence, sound, sound_by_ffmpeg, still, video
from scheduler_runs import running

from sglang_omni.preprocessing.audio import decode_audio
from sglang_omni.preprocessing.deadline import Aborted, Check, Deadline, until_aborted
from sglang_omni.preprocessing.video import VideoLimits, decode_sound_track, decode_video
from sglang_omni.proto import RequestError, StagePayload
from sglang_omni.scheduling.messages import IncomingMessage
from sglang_omni.scheduling.simple_scheduler import SimpleScheduler

WAIT_S = 60.0


FILM = video(1, 30, 10, with_sound=True)
DECODES: dict[str, Callable[[Check], object]] = {
    "FLAC": lambda check: decode_audio(silence(60, 48_000), param="file", check=check),
    "M4A": lambda check: decode_audio(
        sound_by_ffmpeg(np.zeros(20 * 48_000, np.float32), 48_000, "mp4", "aac"), param="file", check=check
    ),
    "a film": lambda check: decode_video(FILM, param="file", limits=VideoLimits(), check=check),
    "its sound": lambda check: decode_sound_track(FILM, param="file", check=check),
}


@pytest.mark.parametrize("name", DECODES)
@pytest.mark.parametrize("part", [0.0, 0.3, 0.9])
def test_it_ends_at_any_point_and_nothing_is_logged(
    name: str, part: float, capfd: pytest.CaptureFixture[str]
) -> None:
    calls = [0]

    def count() -> None:
        calls[0] += 1

    DECODES[name](count)
    last = int(part * calls[0]) + 1
    calls[0] = 0

    def end() -> None:
        calls[0] += 1
        if calls[0] >= last:
            raise Aborted

    with pytest.raises(Aborted):
        DECODES[name](end)
    assert calls[0] <= last + 1
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("name", DECODES)
def test_a_deadline_is_the_requests_error(name: str) -> None:
    with pytest.raises(RequestError, match="file takes longer than 0 s") as refused:
        DECODES[name](Deadline(0.0, param="file"))
    assert (refused.value.code, refused.value.param, refused.value.status) == ("media_timeout", "file", 400)


def test_a_thread_is_free_once_its_request_is_aborted() -> None:
    """Half an hour of silence decoded over and over would hold the stage's only thread for ever."""
    clip = silence(60, 48_000)
    started = threading.Event()

    def compute(payload: StagePayload, aborted: Callable[[], bool]) -> str:
        while payload.data == "endless":
            started.set()
            decode_audio(clip, param="file", check=until_aborted(aborted))
        return "done"

    with running(SimpleScheduler(compute, sees_abort=True)) as scheduler:
        for name in ("endless", "short"):
            scheduler.inbox.put(IncomingMessage(name, "new_request", StagePayload(name, None, name)))
        assert started.wait(WAIT_S)
        scheduler.abort("endless")
        answer = scheduler.outbox.get(timeout=WAIT_S)
        assert (answer.request_id, answer.data) == ("short", "done")


def test_samples_of_all_channels_count() -> None:
    # Eight channels at 96 kHz: as much work as sixteen times the clip.
    data = silence(8, 96_000, channels=8)
    with pytest.raises(RequestError, match="3840000 samples in its 8 channels at 96000 Hz") as refused:
        decode_audio(data, param="file", max_seconds=10.0)
    assert refused.value.code == "audio_too_long"
    assert decode_audio(silence(8, 48_000, channels=8), param="file", max_seconds=10.0).duration == 8.0


def test_frames_that_are_not_taken_count() -> None:
    data = video(1, 12, 4)
    limits = VideoLimits(decoded_frames=5)

    assert len(decode_video(data, param="file", limits=limits, choose_frames=lambda info: [0, 4])) == 2
    with pytest.raises(RequestError, match="have 6 frames of 96 x 64 pixels decoded, of which 5") as refused:
        decode_video(data, param="file", limits=limits, choose_frames=lambda info: [0, 5])
    assert (refused.value.code, refused.value.param) == ("video_too_large", "file")
    with pytest.raises(RequestError, match="12 frames of 96 x 64 pixels decoded, of which 11"):
        decode_video(data, param="file", limits=VideoLimits(decoded_pixels=11 * 96 * 64))


def test_a_frame_may_not_be_huge() -> None:
    with pytest.raises(RequestError, match=r"4160 x 4160 pixels, 17\.3 megapixels; the limit is 16\.8"):
        decode_video(still(4160, 1), param="file", limits=VideoLimits())


def test_a_length_that_the_file_claims_is_enough_to_refuse_it() -> None:
    data = bytearray(still(64, 3, container="matroska"))
    place = data.index(b"\x44\x89\x88") + 3
    data[place : place + 8] = struct.pack(">d", 7_200_000.0)
    with pytest.raises(RequestError, match="7200 s long; the limit is 3600 s"):
        decode_video(bytes(data), param="file", limits=VideoLimits())


def test_a_check_ends_a_video_within_its_frames() -> None:
    """Also between those that are not wanted: six hundred calls are of packets that are counted before."""
    calls = 0

    def check() -> None:
        nonlocal calls
        calls += 1
        if calls == 1000:
            raise Aborted

    with pytest.raises(Aborted):
        decode_video(
            still(512, 600),
            param="file",
            limits=VideoLimits(frames=10**6, pixels=10**12, decoded_pixels=10**12),
            choose_frames=lambda info: [info.num_frames - 1],
            check=check,
        )
    assert calls == 1000


def test_a_wav_that_claims_more_than_it_has() -> None:
    data = bytearray(sound(1, 1.0))
    data[40:44] = (0xFFFFFFF0).to_bytes(4, "little")
    assert decode_audio(bytes(data), param="file").duration == pytest.approx(1.0, abs=0.01)
