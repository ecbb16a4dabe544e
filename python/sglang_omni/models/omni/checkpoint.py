"""Settings of a checkpoint that sees, hears and may speak, read without importing torch."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar

if TYPE_CHECKING:
    from sglang_omni.model_runner.config import DecoderConfig


@dataclass(frozen=True)
class MediaTokens:
    """Token ids in the thinker's vocabulary; the defaults are those of transformers."""

    audio: int = 151646
    image: int = 151655
    video: int = 151656
    vision_start: int = 151652
    audio_start: int = 151647

    @property
    def media(self) -> frozenset[int]:
        """Placeholders of media, whose input rows come from encoders."""
        return frozenset((self.audio, self.image, self.video))


Tokens = TypeVar("Tokens", bound=MediaTokens)
Speech = TypeVar("Speech")


@dataclass(frozen=True)
class MediaCheckpoint(ABC, Generic[Tokens, Speech]):
    """A checkpoint's directory, and what ``config.json`` and ``generation_config.json`` there say.

    Attributes:
        model, model_type: The model's name, and ``model_type`` of its ``config.json``.
        thinker_parts: What ``thinker_config`` must have.
        recommended_sampling: How the model's authors let the thinker draw its tokens.
        talker_defaults: How the talker draws codes where ``generation_config.json`` does not say it.
        default_voice: In lower case; a checkpoint may lack it.
        config: The whole ``config.json``, of which components read their own parts.
        generation: The whole ``generation_config.json``; empty if there is none.
        tokens: Special tokens of the thinker.
        talker: The talker's settings; None if the checkpoint answers in text only.
    """

    model: ClassVar[str]
    model_type: ClassVar[str]
    thinker_parts: ClassVar[tuple[str, ...]]
    recommended_sampling: ClassVar[Mapping[str, float]]
    talker_defaults: ClassVar[Mapping[str, float]]
    default_voice: ClassVar[str]

    path: Path
    config: Mapping[str, Any]
    generation: Mapping[str, Any]
    tokens: Tokens
    talker: Speech | None

    @classmethod
    def from_dir(cls, model_path: str | Path) -> Self:
        """
        Raises:
            FileNotFoundError: There is no ``config.json``.
            ValueError: The checkpoint is that of another model, or incomplete.
        """
        directory = Path(model_path).expanduser()
        path = directory / "config.json"
        if not path.is_file():
            raise FileNotFoundError(
                f"{directory} is no {cls.model} checkpoint: it has no config.json; give the directory that "
                "holds it beside the safetensors files"
            )
        config = json.loads(path.read_text(encoding="utf-8"))
        if config.get("model_type") != cls.model_type:
            raise ValueError(
                f"{path} is of model_type {config.get('model_type')!r}; {cls.model}'s is {cls.model_type!r}"
            )
        thinker = cls._part(config, "thinker_config", path)
        for name in cls.thinker_parts:
            cls._part(thinker, name, path)
        generation_path = directory / "generation_config.json"
        generation = (
            json.loads(generation_path.read_text(encoding="utf-8")) if generation_path.is_file() else {}
        )
        speaks = config.get("enable_audio_output", True) and config.get("talker_config")
        talker = cls._talker_of(config, path) if speaks else None
        return cls(directory, config, generation, cls._tokens_of(config), talker)

    @classmethod
    @abstractmethod
    def _tokens_of(cls, config: Mapping[str, Any]) -> Tokens:
        """The thinker's special tokens, from the whole ``config.json``."""

    @classmethod
    @abstractmethod
    def _talker_of(cls, config: Mapping[str, Any], path: Path) -> Speech:
        """The talker's settings, from the whole ``config.json``, which is at ``path``.

        Raises:
            ValueError: Some are missing.
        """

    @classmethod
    def _part(cls, config: Mapping[str, Any], name: str, path: Path) -> Mapping[str, Any]:
        part = config.get(name)
        if not isinstance(part, Mapping):
            raise ValueError(f"{path} has no {name}: it is no complete {cls.model} checkpoint")
        return part

    @property
    @abstractmethod
    def voices(self) -> Mapping[str, Any]:
        """What the checkpoint has for each of its voices, by lower-case name."""

    @property
    def thinker_config(self) -> Mapping[str, Any]:
        return self.config["thinker_config"]

    def decoder_fields(self, decoder: str) -> Mapping[str, Any]:
        """What ``config.json`` says of the layers of the ``"thinker"`` or the ``"talker"``."""
        part = self.config[f"{decoder}_config"]
        # A talker may have them at its top.
        fields: Mapping[str, Any] = part.get("text_config", part)
        return fields

    def thinker_shape(self, model_type: str) -> DecoderConfig:
        """The shape of the thinker, a decoder of this ``model_type``."""
        # Its package imports torch.
        from sglang_omni.model_runner.config import DecoderConfig

        thinker = self.thinker_config
        fields = {
            **thinker["text_config"],
            # transformers ties by the thinker's field, not by that of text_config.
            "tie_word_embeddings": thinker.get("tie_word_embeddings", False),
            "eos_token_id": self.ends,
        }
        return DecoderConfig.from_dict(fields, model_type)

    @property
    def ends(self) -> tuple[int, ...]:
        """Tokens that end an answer, by any of the configs."""
        # Its package imports torch.
        from sglang_omni.model_runner.config import end_tokens

        thinker = self.thinker_config
        return end_tokens(self.generation, self.config, thinker, thinker["text_config"])

    def require_talker(self) -> Speech:
        """
        Raises:
            ValueError: The checkpoint has no talker.
        """
        if self.talker is None:
            raise ValueError(
                f"{self.path} answers in text alone: its config.json has enable_audio_output false or no "
                "talker_config; serve it with the text pipeline"
            )
        return self.talker
