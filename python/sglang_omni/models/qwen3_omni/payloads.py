"""What the stages of Qwen3-Omni hand one another: the ``data`` of their payloads.

T is a prompt's length in tokens, H the thinker's hidden size, K its number of deepstack levels. Media come
in the order of their placeholders in the prompt, those of each kind among themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypedDict

if TYPE_CHECKING:
    from torch import Tensor

VisualKind = Literal["image", "video"]


class VisualInput(TypedDict):
    """An image or a video, ready for the encoder.

    Attributes:
        key: Hash of the content and of everything else that the encoder's output depends on.
        pixel_values: (t * h * w, channels * temporal_patch * patch * patch) float32.
        grid_thw: Patches along time, height and width, before they are merged.
        seconds_per_grid: Of a video: seconds from one temporal patch to the next.
    """

    kind: VisualKind
    key: bytes
    pixel_values: Tensor
    grid_thw: tuple[int, int, int]
    seconds_per_grid: float | None


class AudioInput(TypedDict):
    """An audio clip, or a video's sound track.

    Attributes:
        key: As ``VisualInput``'s.
        input_features: (mel bins, frames) float32, without padding.
        window_frames: What pieces of the clip are padded to before they are convolved: the longest piece in
            the request, at most ``2 * n_window``. A short clip comes out otherwise beside a longer one.
    """

    key: bytes
    input_features: Tensor
    window_frames: int


class MediaShape(TypedDict):
    """What positions depend on: the media without their content.

    Attributes:
        image_grids: (t, h, w) of each image.
        video_grids: (t, h, w) of each video.
        video_seconds_per_grid: Of each video.
        audio_frames: Of each clip, in mel frames.
        use_audio_in_video: Whether each video's sound is interleaved with it.
    """

    image_grids: list[tuple[int, int, int]]
    video_grids: list[tuple[int, int, int]]
    video_seconds_per_grid: list[float]
    audio_frames: list[int]
    use_audio_in_video: bool


class Prompt(TypedDict):
    """preprocess -> image_encoder, audio_encoder and aggregate; each gets what it reads of it.

    Attributes:
        prompt_token_ids: T ids, media as one placeholder a row of their encoder's output.
        key_token_ids: The same with placeholders replaced by ids outside the vocabulary that stand for the
            media's content.
        positions: (3, T) int64 rotary positions, or None where they are the tokens' places.
        position_delta: See ``RotaryPositions``.
        media: Their shapes, for the talker's own positions.
        visuals: Images, then videos.
    """

    prompt_token_ids: list[int]
    key_token_ids: list[int]
    positions: Tensor | None
    position_delta: int
    media: MediaShape
    visuals: list[VisualInput]
    audios: list[AudioInput]


class VisualOutput(TypedDict):
    """image_encoder -> aggregate, an item for each visual.

    Attributes:
        embeds: (t * h * w / merge ** 2, H).
        deepstack: K of (t * h * w / merge ** 2, H).
    """

    embeds: Tensor
    deepstack: list[Tensor]


class AudioOutput(TypedDict):
    """audio_encoder -> aggregate, an item for each clip: ``embeds`` (m, H)."""

    embeds: Tensor


class ThinkerInput(TypedDict):
    """aggregate -> thinker; a text prompt's media fields are None.

    Attributes:
        media_positions: (m,) int64 places of the placeholders in the prompt, ascending.
        media_embeds: (m, H), what takes their places.
        visual_positions: (v,) int64, those of images and videos among them.
        deepstack: K of (v, H).
    """

    prompt_token_ids: list[int]
    key_token_ids: list[int]
    positions: Tensor | None
    position_delta: int
    media_positions: Tensor | None
    media_embeds: Tensor | None
    visual_positions: Tensor | None
    deepstack: list[Tensor]


class TalkerInput(TypedDict):
    """preprocess -> talker, as soon as the prompt is known; what it hears of the media comes as a stream."""

    prompt_token_ids: list[int]
    media: MediaShape


class ThinkerText(TypedDict):
    """thinker -> talker, a stream: new tokens of the answer.

    Attributes:
        media_hidden: (m, H) of the prompt's placeholders, in the order of ``ThinkerInput.media_positions``;
            in the first item of a prompt with media, None elsewhere.
    """

    token_ids: list[int]
    media_hidden: Tensor | None
