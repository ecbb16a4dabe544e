"""How a family of models lays media out: their tokens, and rotary positions on three axes (M-RoPE)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from sglang_omni.model_runner.sequence import RotaryPositions
from sglang_omni.models.omni.checkpoint import MediaCheckpoint, MediaTokens
from sglang_omni.models.omni.payloads import MediaShape, Prompt
from sglang_omni.proto import RequestError

Positions = NDArray[np.float32]


@dataclass(frozen=True)
class MediaRules(ABC):
    """The parts of a checkpoint's config that determine where media lie in a prompt.

    Attributes:
        tokens: Token ids of the media's placeholders.
        per_second: Positions a second (``position_id_per_seconds``).
        merge_size: Patches of one token, along each side.
    """

    tokens: MediaTokens
    per_second: float
    merge_size: int

    @classmethod
    @abstractmethod
    def from_config(cls, config: Mapping[str, Any], tokens: MediaTokens) -> Self:
        """The thinker's rules, from ``thinker_config`` of ``config.json``."""

    @abstractmethod
    def audio_tokens(self, frames: int) -> int:
        """The number of tokens of a clip, from its mel frames."""

    @abstractmethod
    def rope_positions(self, token_ids: Sequence[int], media: MediaShape) -> RotaryPositions | None:
        """The positions of a prompt; None if they are the tokens' indices. Equal to transformers'
        ``get_rope_index``, also for a part of the prompt that ``media`` belongs to.

        Raises:
            ValueError: The positions cannot be known.
        """

    @abstractmethod
    def is_seen(self, grid: Sequence[int], seconds_per_grid: float, heard: int) -> NDArray[np.bool_]:
        """Which of the tokens of a video with its sound are the video's, in their order in the prompt.

        Args:
            grid: The video's patches along time, height and width.
            seconds_per_grid: Seconds between its temporal patches.
            heard: Tokens of the sound.
        """

    @abstractmethod
    def for_speech(self, media: MediaShape) -> MediaShape:
        """The media as the talker's positions take them."""

    def for_talker(self, config: Mapping[str, Any]) -> Self:
        """The talker's rules, with the positions a second in ``talker_config`` of ``config.json``."""
        return replace(self, per_second=config.get("position_id_per_seconds", 25))

    def visual_tokens(self, grid: Sequence[int]) -> int:
        """The number of tokens of an image or video, from its patches along time, height and width."""
        t, h, w = grid
        return t * (h // self.merge_size) * (w // self.merge_size)

    def visual_positions(self, grid: Sequence[int], seconds_per_grid: float) -> Positions:
        """Positions (3, tokens) relative to the visual's first one, ordered by time, row, column."""
        t, h, w = grid[0], grid[1] // self.merge_size, grid[2] // self.merge_size
        steps = np.arange(t, dtype=np.float32) * np.float32(seconds_per_grid) * np.float32(self.per_second)
        columns = np.broadcast_to(np.arange(w, dtype=np.float32), (t, h, w))
        rows = np.broadcast_to(np.arange(h, dtype=np.float32)[:, None], (t, h, w))
        times = np.broadcast_to(steps[:, None, None], (t, h, w))
        return np.stack([times, rows, columns]).reshape(3, -1)


@dataclass(frozen=True)
class PositionLimit:
    """The rotary positions that one decoder of a checkpoint knows: its kernels read a table of this length.

    Attributes:
        decoder: ``"thinker"`` or ``"talker"``.
        rules: Its positions.
        num_positions: Length of the table (``max_position_embeddings``).
    """

    decoder: str
    rules: MediaRules
    num_positions: int

    def check(self, prompt: Prompt) -> None:
        """
        Raises:
            RequestError: A prompt's positions go on beyond the table. A video's frames lie at their times, so
                a long one may need more positions than it has tokens.
        """
        ids, delta = prompt["prompt_token_ids"], prompt["position_delta"]
        if prompt["positions"] is None:
            return
        if self.decoder == "talker":
            own = self.rules.rope_positions(ids, self.rules.for_speech(prompt["media"]))
            delta = 0 if own is None else own.delta
        last = len(ids) + delta - 1
        if last >= self.num_positions:
            raise RequestError(
                f"the positions of the prompt go up to {last}, because its videos last so long, but the "
                f"{self.decoder} of this model knows {self.num_positions}: 0 to {self.num_positions - 1}; "
                "send a shorter video",
                param="messages",
                code="context_length_exceeded",
            )


def position_limits(checkpoint: MediaCheckpoint[Any, Any], rules: MediaRules) -> dict[str, PositionLimit]:
    """The limits of a checkpoint's decoders that have one, by decoder. ``rules`` are the thinker's."""
    by_decoder = {"thinker": rules}
    if checkpoint.talker is not None:
        by_decoder["talker"] = rules.for_talker(checkpoint.config["talker_config"])
    return {
        decoder: PositionLimit(decoder, own_rules, int(num_positions))
        for decoder, own_rules in by_decoder.items()
        if (num_positions := checkpoint.decoder_fields(decoder).get("max_position_embeddings")) is not None
    }


def convolved(frames: int) -> int:
    """The length of ``frames`` mel frames after an ``audio_tower``'s three convolutions of stride 2."""
    for _ in range(3):
        frames = (frames + 1) // 2
    return frames
