"""Rotary positions on three axes (time, height, width), and the interleaving of a video's frames and sound.

Qwen2.5-Omni (arXiv:2503.20215) calls them TMRoPE. Text and audio advance all three axes together; a picture
spans height and width at one time; a video's frames lie at their times, in steps of
``1 / position_id_per_seconds`` s. If the sound is interleaved, frames and sound are ordered by time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from sglang_omni.model_runner.sequence import RotaryPositions
from sglang_omni.models.qwen3_omni.components.checkpoint import Qwen3OmniCheckpoint, TokenIds
from sglang_omni.models.qwen3_omni.payloads import MediaShape, Prompt
from sglang_omni.proto import RequestError

Positions = NDArray[np.float32]
# A number of frames, or an int64 tensor of such numbers.
Frames = TypeVar("Frames", int, torch.Tensor)


@dataclass(frozen=True)
class PositionRules:
    """The parts of a checkpoint's config that determine positions.

    Attributes:
        tokens: Token ids of the media's placeholders.
        per_second: Positions a second (``position_id_per_seconds``).
        merge_size: Patches of one token, along each side.
        audio_window: Mel frames of a piece of audio; two pieces are convolved at once (``n_window``).
    """

    tokens: TokenIds
    per_second: float
    merge_size: int
    audio_window: int

    @classmethod
    def from_config(cls, config: Mapping[str, Any], tokens: TokenIds) -> PositionRules:
        """The thinker's rules, from ``thinker_config`` of ``config.json``."""
        return cls(
            tokens,
            config.get("position_id_per_seconds", 25),
            config["vision_config"].get("spatial_merge_size", 2),
            config["audio_config"].get("n_window", 50),
        )

    def for_talker(self, config: Mapping[str, Any]) -> PositionRules:
        """The talker's rules, with the positions a second in ``talker_config`` of ``config.json``."""
        return replace(self, per_second=config.get("position_id_per_seconds", 25))

    def visual_tokens(self, grid: Sequence[int]) -> int:
        """The number of tokens of an image or video, from its patches along time, height and width."""
        t, h, w = grid
        return t * (h // self.merge_size) * (w // self.merge_size)

    def audio_tokens(self, frames: int) -> int:
        """The number of tokens of a clip, from its mel frames; each window is convolved by itself."""
        window = 2 * self.audio_window
        return frames // window * convolved(window) + convolved(frames % window)

    def visual_positions(self, grid: Sequence[int], seconds_per_grid: float) -> Positions:
        """Positions (3, tokens) relative to the visual's first one, ordered by time, row, column."""
        t, h, w = grid[0], grid[1] // self.merge_size, grid[2] // self.merge_size
        steps = np.arange(t, dtype=np.float32) * np.float32(seconds_per_grid) * np.float32(self.per_second)
        columns = np.broadcast_to(np.arange(w, dtype=np.float32), (t, h, w))
        rows = np.broadcast_to(np.arange(h, dtype=np.float32)[:, None], (t, h, w))
        times = np.broadcast_to(steps[:, None, None], (t, h, w))
        return np.stack([times, rows, columns]).reshape(3, -1)


def interleave(video_times: NDArray[Any], num_audio: int) -> NDArray[np.int64]:
    """The order by time of a video's tokens followed by the ``num_audio`` tokens of its sound, which are at
    times 0, 1, ... At equal times the video comes first."""
    times = np.concatenate([video_times, np.arange(num_audio)])
    return np.argsort(times, kind="stable")


def rope_positions(
    token_ids: Sequence[int], media: MediaShape, rules: PositionRules
) -> RotaryPositions | None:
    """The positions of a prompt; None without images and videos, when they are the tokens' indices.

    Equal to transformers' ``get_rope_index``, also for a part of the prompt that ``media`` belongs to: the
    talker's, for which transformers leaves ``use_audio_in_video`` False.

    Raises:
        ValueError: Positions of a video are not whole numbers: its frame rate does not fit.
    """
    if not media["image_grids"] and not media["video_grids"]:
        return None
    pieces = _Pieces(np.asarray(token_ids), media, rules)
    while pieces.place_next():
        pass
    pieces.text_until(len(token_ids))
    positions = np.concatenate(pieces.done, axis=1)
    # In float32, 13 steps of 1/13 s are not exactly 1.
    whole = np.rint(positions)
    if np.abs(positions - whole).max() > 0.01:
        raise ValueError("positions of a video's frames are not whole numbers: choose another video_fps")
    delta = int(whole.max()) + 1 - len(token_ids)
    return RotaryPositions(torch.from_numpy(whole.astype(np.int64)), delta)


@dataclass(frozen=True)
class PositionLimit:
    """The rotary positions that one decoder of a checkpoint knows: its kernels read a table of this length.

    Attributes:
        decoder: ``"thinker"`` or ``"talker"``.
        rules: Its positions.
        num_positions: Length of the table (``max_position_embeddings``).
    """

    decoder: str
    rules: PositionRules
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
            own = rope_positions(ids, {**prompt["media"], "use_audio_in_video": False}, self.rules)
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


def position_limits(checkpoint: Qwen3OmniCheckpoint, rules: PositionRules) -> dict[str, PositionLimit]:
    """The limits of a checkpoint's decoders that have one, by decoder. ``rules`` are the thinker's."""
    parts = {"thinker": (checkpoint.thinker_config, rules)}
    if checkpoint.talker is not None:
        talker = checkpoint.config["talker_config"]
        parts["talker"] = (talker, rules.for_talker(talker))
    return {
        name: PositionLimit(name, own_rules, int(num_positions))
        for name, (config, own_rules) in parts.items()
        if (num_positions := config["text_config"].get("max_position_embeddings")) is not None
    }


class _Pieces:
    """Collects a prompt's positions, medium by medium."""

    def __init__(self, ids: NDArray[np.int64], media: MediaShape, rules: PositionRules) -> None:
        self.ids, self.media, self.rules = ids, media, rules
        self.done: list[Positions] = []
        self._next: np.float32 = np.float32(0)
        self._at = 0
        tokens = rules.tokens
        self._vision_starts = np.flatnonzero(ids[:-1] == tokens.vision_start)
        self._audio_starts = np.flatnonzero(ids == tokens.audio_start)
        after = ids[self._vision_starts + 1]
        shown = tokens.audio_start if media["use_audio_in_video"] else tokens.video
        self._left_images = int((after == tokens.image).sum())
        self._left_videos = int((after == shown).sum())
        self._left_audios = len(self._audio_starts)
        self._images = iter(media["image_grids"])
        self._videos = iter(zip(media["video_grids"], media["video_seconds_per_grid"], strict=True))
        self._audios = iter(media["audio_frames"])

    def place_next(self) -> bool:
        """Adds the positions of the next medium and of the text before it; False if no medium is left."""
        looks = self._left_images > 0 or self._left_videos > 0
        vision = self._first(self._vision_starts) if looks else None
        audio = self._first(self._audio_starts) if self._left_audios > 0 else None
        if vision is None and audio is None:
            return False
        if vision is None or (audio is not None and audio < vision):
            assert audio is not None
            self.text_until(audio + 1)
            self._advance(self._linear(self.rules.audio_tokens(next(self._audios))))
            self._left_audios -= 1
        elif audio == vision + 1:
            self.text_until(vision + 2)
            self._video_with_sound()
            self._left_videos -= 1
            self._left_audios -= 1
        elif self.ids[vision + 1] == self.rules.tokens.image:
            self.text_until(vision + 1)
            # An image has one time step, so the step's length has no effect.
            self._advance(self.rules.visual_positions(next(self._images), 1.0))
            self._left_images -= 1
        else:
            self.text_until(vision + 1)
            self._advance(self.rules.visual_positions(*next(self._videos)))
            self._left_videos -= 1
        return True

    def text_until(self, end: int) -> None:
        if end > self._at:
            self._advance(self._linear(end - self._at))

    def _video_with_sound(self) -> None:
        seen = self.rules.visual_positions(*next(self._videos))
        heard = self._linear(self.rules.audio_tokens(next(self._audios)))
        order = interleave(seen[0], heard.shape[1])
        self._advance(np.concatenate([seen, heard], axis=1)[:, order])
        # The next position follows those of the tokens that were left when the frames or the sound ended.
        is_seen = order < seen.shape[1]
        rest = np.flatnonzero(is_seen != is_seen[-1])
        self._next = self.done[-1][:, rest[-1] + 1 if len(rest) else 0 :].max() + 1

    def _linear(self, length: int) -> Positions:
        return np.broadcast_to(np.arange(length, dtype=np.float32), (3, length))

    def _advance(self, relative: Positions) -> None:
        self.done.append(relative + self._next)
        self._at += relative.shape[1]
        self._next = self.done[-1].max() + 1

    def _first(self, places: NDArray[np.int64]) -> int | None:
        index = int(np.searchsorted(places, self._at))
        return int(places[index]) if index < len(places) else None


def convolved(frames: Frames) -> Frames:
    """The length of ``frames`` mel frames after the audio encoder's three convolutions of stride 2."""
    for _ in range(3):
        frames = (frames + 1) // 2
    return frames
