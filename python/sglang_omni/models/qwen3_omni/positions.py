"""Rotary positions on three axes (time, height, width), and the interleaving of a video's frames and sound.

Qwen2.5-Omni (arXiv:2503.20215) calls them TMRoPE. Text and audio advance all three axes together; a picture
spans height and width at one time; a video's frames lie at their times, in steps of
``1 / position_id_per_seconds`` s. If the sound is interleaved, frames and sound are ordered by time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from sglang_omni.model_runner.sequence import RotaryPositions
from sglang_omni.models.omni.checkpoint import MediaTokens
from sglang_omni.models.omni.payloads import MediaShape
from sglang_omni.models.omni.positions import MediaRules, Positions, convolved

# Positions a second, by which a video's tokens are interleaved with those of its sound.
SOUND_RATE = 13.0


@dataclass(frozen=True)
class PositionRules(MediaRules):
    """Qwen3-Omni's rules.

    Attributes:
        audio_window: Mel frames of a piece of audio; two pieces are convolved at once (``n_window``).
    """

    audio_window: int

    @classmethod
    def from_config(cls, config: Mapping[str, Any], tokens: MediaTokens) -> Self:
        return cls(
            tokens,
            config.get("position_id_per_seconds", 25),
            config["vision_config"].get("spatial_merge_size", 2),
            config["audio_config"].get("n_window", 50),
        )

    def audio_tokens(self, frames: int) -> int:
        """The number of tokens of a clip, from its mel frames; each window is convolved by itself."""
        window = 2 * self.audio_window
        return frames // window * convolved(window) + convolved(frames % window)

    def is_seen(self, grid: Sequence[int], seconds_per_grid: float, heard: int) -> NDArray[np.bool_]:
        seen = self.visual_tokens(grid)
        times = np.repeat(np.arange(grid[0]), seen // grid[0]) * seconds_per_grid * SOUND_RATE
        return interleave(times, heard) < seen

    def for_speech(self, media: MediaShape) -> MediaShape:
        # As in transformers, the talker's positions ignore interleaved sound.
        return {**media, "use_audio_in_video": False}

    def rope_positions(self, token_ids: Sequence[int], media: MediaShape) -> RotaryPositions | None:
        """As of ``MediaRules``.

        Raises:
            ValueError: Positions of a video are not whole numbers: its frame rate does not fit.
        """
        if not media["image_grids"] and not media["video_grids"]:
            return None
        pieces = _Pieces(np.asarray(token_ids), media, self)
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


def interleave(video_times: NDArray[Any], num_audio: int) -> NDArray[np.int64]:
    """The order by time of a video's tokens followed by the ``num_audio`` tokens of its sound, which are at
    times 0, 1, ... At equal times the video comes first."""
    times = np.concatenate([video_times, np.arange(num_audio)])
    return np.argsort(times, kind="stable")


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
