"""Rotary positions of Qwen2.5-Omni on three axes (TMRoPE, arXiv:2503.20215).

Text and audio advance all three axes together; a picture spans height and width at one time; a video's
frames lie at their times, in steps of ``1 / position_id_per_seconds`` s. A video and its sound take turns, in
chunks of ``seconds_per_chunk``.
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
from sglang_omni.models.omni.positions import MediaRules, Positions


@dataclass(frozen=True)
class Qwen25PositionRules(MediaRules):
    """Qwen2.5-Omni's rules.

    Attributes:
        seconds_per_chunk: Of a video and of its sound, between which the other takes its turn.
    """

    seconds_per_chunk: float

    @classmethod
    def from_config(cls, config: Mapping[str, Any], tokens: MediaTokens) -> Self:
        return cls(
            tokens,
            config.get("position_id_per_seconds", 25),
            config["vision_config"].get("spatial_merge_size", 2),
            config.get("seconds_per_chunk", 2),
        )

    def audio_tokens(self, frames: int) -> int:
        """The number of tokens of a clip, from its mel frames: one of four, at its end of three."""
        return (convolved(frames) - 2) // 2 + 1

    def is_seen(self, grid: Sequence[int], seconds_per_grid: float, heard: int) -> NDArray[np.bool_]:
        seen = self._whole(self.visual_positions(grid, seconds_per_grid))[0]
        return np.concatenate([np.full(length, kind) for kind, length in self._turns(seen, heard)])

    def for_speech(self, media: MediaShape) -> MediaShape:
        return media

    def rope_positions(self, token_ids: Sequence[int], media: MediaShape) -> RotaryPositions | None:
        """As of ``MediaRules``. Frames between positions go to the one before them."""
        if not media["image_grids"] and not media["video_grids"]:
            return None
        ids, tokens = np.asarray(token_ids), self.tokens
        images = iter(media["image_grids"])
        videos = iter(zip(media["video_grids"], media["video_seconds_per_grid"], strict=True))
        audios = iter(media["audio_frames"])
        pieces: list[Positions] = []
        at = 0
        places = np.flatnonzero(np.isin(ids, list(tokens.media)))
        for place in places.tolist():
            if place < at:
                continue
            has_sound = ids[place] == tokens.video and media["use_audio_in_video"]
            # As in transformers, the marks around a video and those around its sound share their positions.
            marks = 2 if has_sound else 0
            pieces.append(_after(pieces, _linear(place - at - marks)))
            pieces.append(_after(pieces, np.zeros((3, marks), np.float32)))
            if ids[place] == tokens.image:
                found = [self._whole(self.visual_positions(next(images), 1.0))]
            elif ids[place] == tokens.audio:
                found = [_linear(self.audio_tokens(next(audios)))]
            elif not has_sound:
                found = [self._whole(self.visual_positions(*next(videos)))]
            else:
                found = self._with_sound(*next(videos), self.audio_tokens(next(audios)))
            start = _next(pieces)
            pieces += [piece + start for piece in found]
            pieces.append(_after(pieces, np.zeros((3, marks), np.float32)))
            at = place + sum(piece.shape[1] for piece in found) + marks
        pieces.append(_after(pieces, _linear(len(ids) - at)))
        positions = np.concatenate(pieces, axis=1)
        delta = int(positions.max()) + 1 - len(ids)
        return RotaryPositions(torch.from_numpy(positions.astype(np.int64)), delta)

    def _with_sound(self, grid: Sequence[int], seconds_per_grid: float, heard: int) -> list[Positions]:
        """The turns of a video and its sound, both from position 0 on."""
        rest = {True: self._whole(self.visual_positions(grid, seconds_per_grid)), False: _linear(heard)}
        found = []
        for is_seen, length in self._turns(rest[True][0], heard):
            found.append(rest[is_seen][:, :length])
            rest[is_seen] = rest[is_seen][:, length:]
        return found

    def _turns(self, seen: NDArray[np.float32], heard: int) -> list[tuple[bool, int]]:
        """Whose turn it is, the video's or its sound's, and for how many tokens.

        Args:
            seen: Times of the video's tokens, in positions.
            heard: Tokens of the sound.
        """
        per_chunk = int(self.per_second * self.seconds_per_chunk)
        videos, audios = _chunks(seen, per_chunk), _chunks(np.arange(heard), per_chunk)
        turns = []
        for index in range(max(len(videos), len(audios))):
            turns += [(True, videos[index])] if index < len(videos) else []
            turns += [(False, audios[index])] if index < len(audios) else []
        return turns

    @staticmethod
    def _whole(positions: Positions) -> Positions:
        return np.floor(positions)


def convolved(frames: int) -> int:
    """The length of ``frames`` mel frames after the audio encoder's convolution of stride 2."""
    return (frames - 1) // 2 + 1


def _chunks(times: NDArray[Any], per_chunk: int) -> list[int]:
    """Lengths of chunks. As in transformers, each token after a boundary that was jumped over ends one more
    chunk, until the boundaries have caught up."""
    lengths: list[int] = []
    start = 0
    for index, time in enumerate(times.tolist()):
        if time >= (len(lengths) + 1) * per_chunk:
            lengths.append(index - start)
            start = index
    return [*lengths, len(times) - start]


def _linear(length: int) -> Positions:
    return np.broadcast_to(np.arange(length, dtype=np.float32), (3, length))


def _next(pieces: Sequence[Positions]) -> np.float32:
    """The position after those of the last piece, of several turns that of the last one."""
    last = next((piece for piece in reversed(pieces) if piece.shape[1]), None)
    return np.float32(0) if last is None else last.max() + np.float32(1)


def _after(pieces: Sequence[Positions], relative: Positions) -> Positions:
    return relative + _next(pieces)
