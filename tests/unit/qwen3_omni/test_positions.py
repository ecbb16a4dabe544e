"""Rotary positions of any order of media equal those that transformers' thinker and talker compute."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

from sglang_omni.models.omni.payloads import MediaShape
from sglang_omni.models.qwen3_omni.components.checkpoint import Qwen3OmniCheckpoint
from sglang_omni.models.qwen3_omni.positions import PositionRules, interleave


class PromptMaker:
    """Random prompts of placeholders, as preprocessing lays them out."""

    def __init__(self, rules: PositionRules, seed: int, *, with_sound: bool) -> None:
        self._rules, self._random, self._with_sound = rules, random.Random(seed), with_sound
        self.ids: list[int] = []
        self.media = MediaShape(
            image_grids=[],
            video_grids=[],
            video_seconds_per_grid=[],
            audio_frames=[],
            use_audio_in_video=with_sound,
        )
        for _ in range(self._random.randint(1, 6)):
            self._random.choice([self._text, self._image, self._audio, self._video])()
        self._text()

    def _text(self) -> None:
        self.ids += [5] * self._random.randint(1, 9)

    def _image(self) -> None:
        grid = self._grid(1)
        self.media["image_grids"].append(grid)
        tokens = self._rules.tokens
        self.ids += [tokens.vision_start, *[tokens.image] * self._rules.visual_tokens(grid), 6]

    def _audio(self) -> None:
        tokens = self._rules.tokens
        self.ids += [tokens.audio_start, *[tokens.audio] * self._frames(), 7]

    def _video(self) -> None:
        tokens, rules = self._rules.tokens, self._rules
        grid, seconds = self._grid(self._random.randint(1, 5)), self._random.choice([1.0, 2.0])
        self.media["video_grids"].append(grid)
        self.media["video_seconds_per_grid"].append(seconds)
        seen = rules.visual_tokens(grid)
        if not self._with_sound:
            self.ids += [tokens.vision_start, *[tokens.video] * seen, 6]
            return
        times = rules.visual_positions(grid, seconds)[0]
        order = interleave(times, self._frames())
        mixed = np.where(order < seen, tokens.video, tokens.audio).tolist()
        self.ids += [tokens.vision_start, tokens.audio_start, *mixed, 7, 6]

    def _frames(self) -> int:
        frames = self._random.randint(1, 500)
        self.media["audio_frames"].append(frames)
        return self._rules.audio_tokens(frames)

    def _grid(self, time: int) -> tuple[int, int, int]:
        return time, 2 * self._random.randint(1, 6), 2 * self._random.randint(1, 6)


def expected_positions(model: Any, ids: list[int], media: MediaShape, with_sound: bool) -> Any:
    tokens = torch.tensor([ids])
    images, videos = media["image_grids"], media["video_grids"]
    return model.get_rope_index(
        tokens,
        torch.tensor(images) if images else None,
        torch.tensor(videos) if videos else None,
        torch.ones_like(tokens),
        with_sound,
        torch.tensor(media["audio_frames"]),
        torch.tensor(media["video_seconds_per_grid"]),
    )


@pytest.fixture(scope="module")
def rules(qwen3_omni) -> PositionRules:
    checkpoint = Qwen3OmniCheckpoint.from_dir(qwen3_omni().path)
    return PositionRules.from_config(checkpoint.thinker_config, checkpoint.tokens)


@pytest.mark.parametrize("kind", ["silent videos", "videos with sound", "the talker's"])
def test_random_prompts(qwen3_omni, rules: PositionRules, kind: str) -> None:
    """The talker is not told that videos have their sound with them, and counts otherwise."""
    model = qwen3_omni().model
    part = model.talker if kind == "the talker's" else model.thinker
    reported = kind == "videos with sound"
    with_pictures = 0
    if part is model.talker:
        assert part.config.position_id_per_seconds != rules.per_second
        rules = rules.for_talker(Qwen3OmniCheckpoint.from_dir(qwen3_omni().path).config["talker_config"])
    for seed in range(120):
        prompt = PromptMaker(rules, seed, with_sound=kind != "silent videos")
        found = rules.rope_positions(prompt.ids, {**prompt.media, "use_audio_in_video": reported})
        positions, delta = expected_positions(part, prompt.ids, prompt.media, reported)
        if found is None:
            assert torch.equal(positions[:, 0].long(), torch.arange(len(prompt.ids)).expand(3, -1))
            continue
        with_pictures += 1
        assert torch.equal(found.prompt, positions[:, 0].long()), (seed, prompt.media)
        assert found.delta == int(delta), seed
    assert with_pictures > 60


def test_every_rate_that_divides_the_positions(rules: PositionRules) -> None:
    tokens, frames = rules.tokens, 300
    ids = [tokens.vision_start, *[tokens.video] * frames]
    media: MediaShape = {
        "image_grids": [],
        "video_grids": [(frames, 2, 2)],
        "audio_frames": [],
        "use_audio_in_video": False,
    }
    for step in range(1, 100):
        found = rules.rope_positions(ids, {**media, "video_seconds_per_grid": [step / rules.per_second]})
        assert found is not None
        assert found.prompt[0, 1:].tolist() == [1 + step * index for index in range(frames)]


def test_frames_between_positions_are_refused(rules: PositionRules) -> None:
    prompt = PromptMaker(rules, 0, with_sound=False)
    prompt.media["video_grids"], prompt.media["video_seconds_per_grid"] = [(2, 2, 2)], [2 / 3]
    tokens = rules.tokens
    media: MediaShape = {**prompt.media, "image_grids": [], "audio_frames": []}
    ids = [5, tokens.vision_start, tokens.video, tokens.video, 6]
    with pytest.raises(ValueError, match="not whole numbers"):
        rules.rope_positions(ids, media)
