"""Only the bytes of a medium are read, and only in listed formats and codecs."""

from __future__ import annotations

import io
import socket
import struct
import threading
from collections.abc import Callable
from pathlib import Path

import av
import numpy as np
import pytest
import soundfile
from sample_media import sound, sound_by_ffmpeg, still, video

from sglang_omni.preprocessing.audio import decode_audio
from sglang_omni.preprocessing.container import AUDIO_CODECS, AUDIO_FORMATS, VIDEO_CODECS
from sglang_omni.preprocessing.video import VideoLimits, decode_sound_track, decode_video
from sglang_omni.proto import RequestError


def hear(data: bytes) -> object:
    return decode_audio(data, param="file", max_seconds=1.0)


def hear_video(data: bytes) -> object:
    return decode_sound_track(data, param="file", max_seconds=1.0)


def see(data: bytes) -> object:
    return decode_video(data, param="file", limits=VideoLimits())


DECODERS: list[Callable[[bytes], object]] = [hear, hear_video, see]


def refused(decode: Callable[[bytes], object], data: bytes) -> str | None:
    with pytest.raises(RequestError) as error:
        decode(data)
    return error.value.code


@pytest.mark.parametrize("decode", DECODERS)
def test_a_description_of_a_stream_opens_no_port(decode: Callable[[bytes], object]) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    sdp = (
        "v=0\r\no=- 0 0 IN IP4 127.0.0.1\r\ns=x\r\nc=IN IP4 127.0.0.1\r\nt=0 0\r\n"
        f"m=audio {port} RTP/AVP 0\r\na=rtpmap:0 PCMU/8000\r\n"
    )
    done = threading.Event()

    def send() -> None:
        """Two minutes of sound, 20 ms at a time, as fast as they come."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            for number in range(6000):
                if done.wait(0.002):
                    return
                head = struct.pack(">BBHII", 0x80, 0, number, 160 * number, 1)
                sender.sendto(head + bytes(160), ("127.0.0.1", port))

    thread = threading.Thread(target=send)
    thread.start()
    try:
        # One that listened would hear more than it may.
        assert refused(decode, sdp.encode()) in ("invalid_audio", "invalid_video")
    finally:
        done.set()
        thread.join()


LISTS = {
    "ffconcat": "ffconcat version 1.0\nfile {file}\n",
    "ffconcat with streams": "ffconcat version 1.0\nstream\nfile {file}\nduration 1\n",
    "HLS": "#EXTM3U\n#EXT-X-VERSION:3\n#EXT-X-TARGETDURATION:10\n#EXTINF:1.0,\n{file}\n#EXT-X-ENDLIST\n",
    "HLS, master": "#EXTM3U\n#EXT-X-STREAM-INF:BANDWIDTH=1280000\n{file}\n",
    "DASH": '<?xml version="1.0"?><MPD xmlns="urn:mpeg:dash:schema:mpd:2011" type="static" '
    'mediaPresentationDuration="PT1S" profiles="urn:mpeg:dash:profile:isoff-on-demand:2011"><Period>'
    '<AdaptationSet mimeType="audio/wav"><Representation id="1" bandwidth="1"><BaseURL>{file}</BaseURL>'
    "</Representation></AdaptationSet></Period></MPD>",
    "RTSP": "RTSPtextrtsp://127.0.0.1:1/{file}\n",
    "M3U": "#EXTM3U\n{file}\n",
}


@pytest.mark.parametrize("name", LISTS)
@pytest.mark.parametrize("decode", DECODERS)
@pytest.mark.parametrize("kind", ["wav", "mp4"])
def test_a_list_of_files_reads_none(
    name: str, decode: Callable[[bytes], object], kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = Path(f"a.{kind}")
    file.write_bytes(sound(1, 0.5) if kind == "wav" else video(1, 2, 4, with_sound=True))
    for path in (file, f"file:{file}", file.absolute(), f"subfile,,start,0,end,0,,:{file}"):
        data = LISTS[name].format(file=path).encode()
        assert refused(decode, data) in ("invalid_audio", "invalid_video")


def boxes(data: bytes, replace: Callable[[bytes, bytes], bytes]) -> bytes:
    """An MP4's boxes, each content as ``replace(name, content)`` gives it."""
    out, at = b"", 0
    while at < len(data):
        size, name = struct.unpack_from(">I4s", data, at)
        content = data[at + 8 : at + size]
        if name in (b"moov", b"trak", b"mdia", b"minf", b"dinf"):
            content = boxes(content, replace)
        content = replace(name, content)
        out += struct.pack(">I4s", len(content) + 8, name) + content
        at += size
    return out


def test_a_film_whose_data_are_in_another_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """QuickTime's references to other files; without them the numbers are read from the file itself."""
    monkeypatch.chdir(tmp_path)
    whole = video(1, 4, 4)
    Path("a.mp4").write_bytes(whole)
    paths = b"\0\x12" + struct.pack(">H", 6) + b"/a.mp4" + struct.pack(">hH", 2, 5) + b"a.mp4\0"
    alias = bytes(10) + b"\x05disk\0" + bytes(22) + bytes(12) + b"\x05a.mp4" + bytes(58) + bytes(32) + paths

    def elsewhere(name: bytes, content: bytes) -> bytes:
        if name == b"dref":
            entry = bytes(4) + alias + struct.pack(">h", -1)
            return struct.pack(">II", 0, 1) + struct.pack(">I4s", len(entry) + 8, b"alis") + entry
        # What this file itself has there is nothing.
        return bytes(len(content)) if name == b"mdat" else content

    assert see(boxes(whole, lambda name, content: content)) is not None
    with pytest.raises(RequestError):
        see(boxes(whole, elsewhere))


def sound_in(container: str, codec: str) -> bytes:
    return sound_by_ffmpeg(np.zeros(4096, np.float32), 16_000, container, codec)


@pytest.mark.parametrize(
    ("container", "codec"), [("nut", "pcm_s16le"), ("voc", "pcm_s16le"), ("matroska", "tta")]
)
def test_sound_in_what_is_not_listed(container: str, codec: str) -> None:
    assert refused(hear, sound_in(container, codec)) == "invalid_audio"


@pytest.mark.parametrize(
    ("container", "codec"),
    [("nut", "mpeg4"), ("mpegts", "mpeg2video"), ("matroska", "ffv1"), ("avi", "snow")],
)
def test_pictures_in_what_is_not_listed(container: str, codec: str) -> None:
    assert refused(see, still(container=container, codec=codec)) == "invalid_video"


@pytest.mark.parametrize(
    ("container", "codec"),
    [("caf", "pcm_s16le"), ("w64", "pcm_s16le"), ("matroska", "pcm_s16le"), ("aiff", "pcm_s16be")],
)
def test_sound_in_what_is_listed(container: str, codec: str) -> None:
    assert hear(sound_in(container, codec)) is not None


def test_the_lists_are_ffmpegs_names() -> None:
    formats = {name for names in av.formats_available for name in names.split(",")}
    assert {"mov", "matroska", "avi", "wav", "ogg"} <= set(AUDIO_FORMATS) & formats
    assert {"h264", "hevc", "vp9", "mpeg4"} <= set(VIDEO_CODECS) & av.codecs_available
    assert {"aac", "flac", "vorbis", "pcm_s16le"} <= set(AUDIO_CODECS) & av.codecs_available


def test_a_damaged_mp3_is_heard_and_fills_no_log(capfd: pytest.CaptureFixture[str]) -> None:
    buffer = io.BytesIO()
    tone = 0.5 * np.sin(2 * np.pi * 440 * np.arange(44_100) / 44_100)
    soundfile.write(buffer, tone, 44_100, format="MP3")
    data = bytearray(buffer.getvalue())
    damage = np.random.default_rng(0)
    for position in damage.integers(len(data) // 3, len(data), 40):
        data[position] = damage.integers(256)

    clip = decode_audio(bytes(data), param="file")

    assert 0.3 < clip.duration < 1.1
    assert clip.samples.std() > 0.1
    assert capfd.readouterr().err == ""
