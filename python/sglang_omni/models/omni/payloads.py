"""The ``data`` of payloads between the stages of models that see, hear and read.

T is a prompt's length in tokens, H the thinker's hidden size, K its number of deepstack levels. Media come
in the order of their placeholders in the prompt, those of each kind among themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypedDict

if TYPE_CHECKING:
    from torch import Tensor

    from sglang_omni.answers.reader import Reading

VisualKind = Literal["image", "video"]


class VisualInput(TypedDict):
    """An image or a video, ready for the encoder.

    Attributes:
        key: Hash of everything that the encoder's output depends on.
        pixel_values: (t * h * w, channels * temporal_patch * patch * patch) float32.
        grid_thw: Patches along time, height and width, before they are merged.
        seconds_per_grid: Seconds between a video's temporal patches; None for an image.
    """

    kind: VisualKind
    key: bytes
    pixel_values: Tensor
    grid_thw: tuple[int, int, int]
    seconds_per_grid: float | None


class AudioInput(TypedDict):
    """An audio clip, or a video's sound track.

    Attributes:
        key: Hash of everything that the encoder's output depends on.
        input_features: (mel bins, frames) float32, without padding.
        window_frames: Length to which the clip's pieces are padded before their convolution: that of the
            longest piece in the request, at most ``2 * n_window``. If the encoder's output depends on it, a
            short clip's differs beside a longer clip.
    """

    key: bytes
    input_features: Tensor
    window_frames: int


class MediaShape(TypedDict):
    """The shapes of a prompt's media, on which positions depend.

    Attributes:
        image_grids: (t, h, w) of each image.
        video_grids: (t, h, w) of each video.
        video_seconds_per_grid: Seconds between temporal patches of each video.
        audio_frames: Mel frames of each clip.
        use_audio_in_video: True if each video's sound is interleaved with it.
    """

    image_grids: list[tuple[int, int, int]]
    video_grids: list[tuple[int, int, int]]
    video_seconds_per_grid: list[float]
    audio_frames: list[int]
    use_audio_in_video: bool


def no_media() -> MediaShape:
    """That of a prompt of text alone."""
    return MediaShape(
        image_grids=[],
        video_grids=[],
        video_seconds_per_grid=[],
        audio_frames=[],
        use_audio_in_video=False,
    )


class Prompt(TypedDict):
    """preprocess -> image_encoder, audio_encoder and thinker; each stage gets the fields that it reads.

    Attributes:
        prompt_token_ids: T ids, with one placeholder for each row of an encoder's output.
        key_token_ids: T ids for the prefix cache: each placeholder is replaced by an id outside the
            vocabulary that stands for the medium's content.
        positions: (3, T) int64 rotary positions; None if they are the tokens' indices.
        position_delta: Position of the answer's first token, less T.
        media: Shapes of the media, for the talker's own positions.
        visuals: Images, then videos.
        reading: How the answer must be read; None if all of it is content.
    """

    prompt_token_ids: list[int]
    key_token_ids: list[int]
    positions: Tensor | None
    position_delta: int
    media: MediaShape
    visuals: list[VisualInput]
    audios: list[AudioInput]
    reading: Reading | None


class VisualOutput(TypedDict):
    """image_encoder -> thinker, one for each image and video.

    Attributes:
        embeds: (t * h * w / merge ** 2, H).
        deepstack: K of (t * h * w / merge ** 2, H).
    """

    embeds: Tensor
    deepstack: list[Tensor]


class AudioOutput(TypedDict):
    """audio_encoder -> thinker, one for each clip: ``embeds`` (m, H)."""

    embeds: Tensor


class ThinkerInput(TypedDict):
    """The thinker's merged payload: the prompt, and what encoders gave for its media.

    Attributes:
        prompt_token_ids, key_token_ids, positions, position_delta, media, reading: As in ``Prompt``.
        visuals: Images, then videos.
    """

    prompt_token_ids: list[int]
    key_token_ids: list[int]
    positions: Tensor | None
    position_delta: int
    media: MediaShape
    visuals: list[VisualOutput]
    audios: list[AudioOutput]
    reading: Reading | None


class TalkerInput(TypedDict):
    """preprocess -> talker, as soon as the prompt is known; hidden states of the media come as a stream."""

    prompt_token_ids: list[int]
    media: MediaShape
