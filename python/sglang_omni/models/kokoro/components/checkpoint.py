"""A checkpoint of Kokoro: its settings, and which files it has. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from sglang_omni.preprocessing.text import read_json
from sglang_omni.weight_files import weight_files_in

VOICES = "voices"
DEFAULT_VOICE = "af_heart"
# What begins and ends each text's phonemes.
_ENDS = 2
# A letter of the phonemes that Chinese has in the model of version 1.1, by which it is known.
_BOPOMOFO = "ㄅ"


@dataclass(frozen=True)
class KokoroCheckpoint:
    """
    Attributes:
        path: Its directory.
        config: ``config.json``.
    """

    path: Path
    config: Mapping[str, Any]

    @classmethod
    def from_dir(cls, path: str | Path) -> KokoroCheckpoint:
        """
        Raises:
            FileNotFoundError: There is no config.json.
            ValueError: It is of no Kokoro model.
        """
        directory = Path(path)
        config = read_json(directory / "config.json")
        if not config:
            raise FileNotFoundError(f"{directory} lacks config.json: download the checkpoint again")
        if missing := [name for name in ("istftnet", "plbert", "vocab") if name not in config]:
            raise ValueError(f"{directory} is no Kokoro checkpoint: config.json has no {', '.join(missing)}")
        return cls(directory, config)

    @property
    def weights(self) -> Path:
        """The file of the weights.

        Raises:
            FileNotFoundError, ValueError: There is none, or several are there.
        """
        return self.path / weight_files_in(self.path).files[0]

    @cached_property
    def voices(self) -> tuple[str, ...]:
        """The names of its voices, the default first.

        Raises:
            FileNotFoundError: There are none.
        """
        names = sorted(file.stem for file in (self.path / VOICES).glob("*.pt"))
        if not names:
            raise FileNotFoundError(
                f"{self.path} has no {VOICES}/*.pt, which hold the voices: download the checkpoint again"
            )
        return tuple(sorted(names, key=lambda name: name != DEFAULT_VOICE))

    @property
    def vocab(self) -> Mapping[str, int]:
        """The ids of phonemes, each a character."""
        vocab: Mapping[str, int] = self.config["vocab"]
        return vocab

    @property
    def max_phonemes(self) -> int:
        """Of a text that is spoken at once."""
        return int(self.config["plbert"]["max_position_embeddings"]) - _ENDS

    @property
    def spells_chinese(self) -> bool:
        """True if its phonemes of Chinese are letters of bopomofo, as of version 1.1."""
        return _BOPOMOFO in self.vocab
