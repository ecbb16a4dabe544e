"""Transcripts as subtitles: SubRip and WebVTT."""

from __future__ import annotations

from sglang_omni.generation.fields import TranscriptionSegment
from sglang_omni.generation.results import TranscriptionResult


def srt(result: TranscriptionResult) -> str:
    """A whole SubRip file, each segment a subtitle."""
    return "".join(
        f"{i}\n{_clock(s.start, ',')} --> {_clock(s.end, ',')}\n{s.text.strip()}\n\n"
        for i, s in enumerate(_subtitles(result), 1)
    )


def vtt(result: TranscriptionResult) -> str:
    """A whole WebVTT file, each segment a cue."""
    cues = (
        f"{_clock(s.start, '.')} --> {_clock(s.end, '.')}\n{s.text.strip()}\n\n" for s in _subtitles(result)
    )
    return "WEBVTT\n\n" + "".join(cues)


def _subtitles(result: TranscriptionResult) -> list[TranscriptionSegment]:
    if result.segments or not result.text:
        return result.segments
    return [TranscriptionSegment(0.0, result.duration or 0.0, result.text)]


def _clock(seconds: float, point: str) -> str:
    ms = round(seconds * 1000)
    return f"{ms // 3_600_000:02}:{ms // 60_000 % 60:02}:{ms // 1000 % 60:02}{point}{ms % 1000:03}"
