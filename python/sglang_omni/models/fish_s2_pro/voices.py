"""Named voices: a folder with a recording NAME.wav and what it says, NAME.txt, for each of them."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

# The model's own choice.
DEFAULT_VOICE = "default"
# Recordings may have these endings.
_SOUNDS = (".wav", ".flac", ".mp3", ".ogg", ".m4a")


class NamedVoice(NamedTuple):
    """A recording's file, and what it says."""

    sound: Path
    text: str


def find_voices(folder: str | Path) -> dict[str, NamedVoice]:
    """The voices in a folder, by their names in lower case.

    Raises:
        FileNotFoundError: There is no such folder.
        ValueError: A recording has no text, two have one name, or there is none at all.
    """
    directory = Path(folder).expanduser()
    if not directory.is_dir():
        raise FileNotFoundError(f"voices_dir: there is no folder {directory}")
    voices: dict[str, NamedVoice] = {}
    for sound in sorted(directory.iterdir()):
        if sound.suffix.lower() not in _SOUNDS:
            continue
        name, text = sound.stem.lower(), sound.with_suffix(".txt")
        if name in voices or name == DEFAULT_VOICE:
            taken = "is the model's own voice" if name == DEFAULT_VOICE else f"is also {voices[name].sound}"
            raise ValueError(f"voices_dir: {sound} has the name {name!r}, which {taken}")
        if not text.is_file():
            raise ValueError(f"voices_dir: {sound} lacks {text.name}, with what it says")
        voices[name] = NamedVoice(sound, text.read_text(encoding="utf-8").strip())
    if not voices:
        raise ValueError(f"voices_dir: {directory} holds no NAME.wav with a NAME.txt")
    return voices
