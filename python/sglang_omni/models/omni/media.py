"""Reading of a request's media: fetches and decodes them within limits, and makes the encoders' tensors."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from sglang_omni.models.omni.payloads import AudioInput, MediaShape, VisualInput
from sglang_omni.models.omni.positions import MediaRules
from sglang_omni.preprocessing.audio import decode_audio
from sglang_omni.preprocessing.deadline import Check, Deadline, go_on
from sglang_omni.preprocessing.image import decode_image, shrunk
from sglang_omni.preprocessing.media import media_bytes
from sglang_omni.preprocessing.messages import MediaKind, MediaPart
from sglang_omni.preprocessing.video import VideoInfo, VideoLimits, decode_sound_track, decode_video
from sglang_omni.proto import RequestError

# Limit of OpenAI's detail "low"; "high" and "auto" have the processor's own limit.
_LOW_DETAIL_PIXELS = 512 * 512

# Called with the number of tokens of the media so far, and the field of the last medium.
CheckLength = Callable[[int, str], None]
# Called with the number of tokens of one medium, before it is computed.
CheckTokens = Callable[[int], None]

SAMPLE_RATE = 16_000

Rules = TypeVar("Rules", bound=MediaRules)


@dataclass(frozen=True)
class MediaLimits:
    """Limits of a request.

    Attributes:
        images, audios, videos: Numbers of media of each kind.
        item_bytes: Encoded size of one medium.
        image_pixels: Width times height of an image.
        audio_seconds: Length of a clip, or of a video's sound.
        decode_seconds: Time to fetch and decode one medium.
        video: Limits of one video.
    """

    images: int = 32
    audios: int = 32
    videos: int = 8
    item_bytes: int = 256_000_000
    image_pixels: int = 50_000_000
    audio_seconds: float = 1800.0
    decode_seconds: float = 30.0
    video: VideoLimits = field(default_factory=VideoLimits)


@dataclass(frozen=True)
class VideoOptions:
    """A request's options for videos.

    Attributes:
        fps: Frames to take of each second. None takes every frame; positions then count as many a second as
            transformers takes a model's videos to have.
        with_sound: True if each video's sound is read too (``use_audio_in_video``).
    """

    fps: float | None = None
    with_sound: bool = False


@dataclass
class Media:
    """The encoders' inputs of a conversation; images, videos and audios each in the prompt's order."""

    images: list[VisualInput] = field(default_factory=list)
    videos: list[VisualInput] = field(default_factory=list)
    audios: list[AudioInput] = field(default_factory=list)

    def shape(self, *, with_sound: bool) -> MediaShape:
        return MediaShape(
            image_grids=[item["grid_thw"] for item in self.images],
            video_grids=[item["grid_thw"] for item in self.videos],
            video_seconds_per_grid=[item["seconds_per_grid"] or 0.0 for item in self.videos],
            audio_frames=[item["input_features"].shape[1] for item in self.audios],
            use_audio_in_video=with_sound and bool(self.videos),
        )


class MediaReader(ABC, Generic[Rules]):
    """Converts media parts to the encoders' inputs with a checkpoint's processor, as transformers does.

    Args:
        checkpoint: Its directory.
        allowed_hosts: Hosts of media URLs, as in ``media_bytes``.

    Attributes:
        processor_class: The name of the model's processor in transformers.
        video_options: What that processor gives its video processor, beside the checkpoint's options.
        default_fps: Frames a second of a video whose frames are all taken.

    Raises:
        FileNotFoundError: The checkpoint does not say how its media are prepared.
    """

    processor_class: ClassVar[str]
    video_options: ClassVar[Mapping[str, Any]]
    default_fps: ClassVar[float]

    def __init__(
        self,
        checkpoint: Path,
        rules: Rules,
        limits: MediaLimits,
        allowed_hosts: Collection[str] = (),
    ) -> None:
        import transformers

        _check_settings(checkpoint)
        processor = getattr(transformers, self.processor_class).from_pretrained(checkpoint)
        self._images = processor.image_processor
        self._videos = processor.video_processor
        self._features = processor.feature_extractor
        self._hop = int(self._features.hop_length)
        self._rules = rules
        self._limits = limits
        self._allowed_hosts = frozenset(allowed_hosts)

    @abstractmethod
    def _audios(self, clips: list[NDArray[np.float32]]) -> list[AudioInput]:
        """The encoder's inputs of all clips of a request, at 16 kHz."""

    @abstractmethod
    def _check_fps(self, fps: float) -> None:
        """
        Raises:
            RequestError: The model's positions do not allow this frame rate.
        """

    def read(
        self,
        parts: Sequence[MediaPart],
        options: VideoOptions,
        check_length: CheckLength,
        check: Check = go_on,
    ) -> Media:
        """
        Args:
            check_length: Refuses a prompt that is too long already, before the next medium is computed.
            check: Called between the pieces of the work; an exception that it raises ends the work.

        Raises:
            RequestError: There are too many media, or one cannot be fetched or decoded or exceeds a limit.
        """
        self._check_counts(parts)
        if options.fps is not None:
            self._check_fps(options.fps)
        media = Media()
        clips: list[NDArray[np.float32]] = []
        length = 0
        for part in parts:
            deadline = Deadline(self._limits.decode_seconds, param=part.param, check=check)
            data = media_bytes(
                part.source,
                param=part.param,
                max_bytes=self._limits.item_bytes,
                allowed_hosts=self._allowed_hosts,
                check=deadline,
            )
            deadline()
            fits = partial(_check_after, length, check_length, part.param)
            if part.kind == "image":
                media.images.append(self._image(data, part, fits))
                length += self._rules.visual_tokens(media.images[-1]["grid_thw"])
            elif part.kind == "video":
                media.videos.append(self._video(data, part.param, options, fits, deadline))
                length += self._rules.visual_tokens(media.videos[-1]["grid_thw"])
            if part.kind == "audio" or (part.kind == "video" and options.with_sound):
                clips.append(self._clip(data, part, deadline))
                length += self._rules.audio_tokens(len(clips[-1]) // self._hop)
                check_length(length, part.param)
        media.audios = self._audios(clips)
        return media

    def _image(self, data: bytes, part: MediaPart, fits: CheckTokens) -> VisualInput:
        image = decode_image(data, param=part.param, max_pixels=self._limits.image_pixels)
        if part.detail == "low":
            image = shrunk(image, _LOW_DETAIL_PIXELS)
        patches = self._images.get_number_of_image_patches(image.height, image.width, {})
        fits(patches // self._rules.merge_size**2)
        pixels = np.asarray(image)
        # Without input_data_format, it would log a guess for each narrow picture.
        output = self._images(images=[image], return_tensors="pt", input_data_format="channels_first")
        grid = _grid(output["image_grid_thw"])
        return VisualInput(
            kind="image",
            key=content_key("image", pixels, pixels.shape, grid),
            pixel_values=output["pixel_values"],
            grid_thw=grid,
            seconds_per_grid=None,
        )

    def _video(
        self, data: bytes, param: str, options: VideoOptions, fits: CheckTokens, check: Check
    ) -> VisualInput:
        def choose(info: VideoInfo) -> Sequence[int]:
            chosen = self._choose_frames(info, options.fps, param)
            patches = self._videos.get_num_of_video_patches(
                len(chosen), info.height, info.width, self.video_options
            )
            fits(patches // self._rules.merge_size**2)
            return chosen

        limits = self._limits.video
        frames = decode_video(data, param=param, limits=limits, choose_frames=choose, check=check)
        output = self._videos(
            videos=[torch.from_numpy(frames).permute(0, 3, 1, 2)],
            do_sample_frames=False,
            return_tensors="pt",
            **self.video_options,
        )
        grid = _grid(output["video_grid_thw"])
        seconds = self._videos.temporal_patch_size / (options.fps or self.default_fps)
        return VisualInput(
            kind="video",
            key=content_key("video", frames, frames.shape, grid, seconds),
            pixel_values=output["pixel_values_videos"],
            grid_thw=grid,
            seconds_per_grid=seconds,
        )

    def _choose_frames(self, info: VideoInfo, fps: float | None, param: str) -> Sequence[int]:
        from transformers.video_utils import VideoMetadata

        if fps is None:
            return range(info.num_frames)
        if info.num_frames < self._videos.temporal_patch_size:
            raise RequestError(
                f"{param} has {info.num_frames} frame, too few for video_fps: leave video_fps out, or send "
                "an image",
                param=param,
                code="video_too_short",
            )
        metadata = VideoMetadata(total_num_frames=info.num_frames, fps=info.fps)
        return self._videos.sample_frames(metadata, fps=fps).tolist()

    def _clip(self, data: bytes, part: MediaPart, check: Check) -> NDArray[np.float32]:
        limit = self._limits.audio_seconds
        decode = decode_audio if part.kind == "audio" else decode_sound_track
        return decode(data, param=part.param, sample_rate=SAMPLE_RATE, max_seconds=limit, check=check).samples

    def _check_counts(self, parts: Sequence[MediaPart]) -> None:
        counts: dict[MediaKind, int] = {"image": 0, "audio": 0, "video": 0}
        limits = {"image": self._limits.images, "audio": self._limits.audios, "video": self._limits.videos}
        for part in parts:
            counts[part.kind] += 1
        for kind, count in counts.items():
            if count > limits[kind]:
                raise RequestError(
                    f"the messages hold {count} {kind} parts; at most {limits[kind]} are accepted",
                    param="messages",
                    code="too_many_media",
                )


def _check_after(length: int, check: CheckLength, param: str, tokens: int) -> None:
    check(length + tokens, param)


def _grid(tensor: torch.Tensor) -> tuple[int, int, int]:
    t, h, w = tensor[0].tolist()
    return t, h, w


def content_key(kind: str, content: NDArray[Any], *about: Any) -> bytes:
    """A hash of a medium's content and of what else its encoder's output depends on."""
    digest = hashlib.blake2b(repr((kind, about)).encode(), digest_size=16)
    digest.update(np.ascontiguousarray(content).data)
    return digest.digest()


def _check_settings(checkpoint: Path) -> None:
    """Check that a checkpoint says how its media are prepared.

    Raises:
        FileNotFoundError: It does not.
    """
    if not any((checkpoint / f"{name}processor_config.json").is_file() for name in ("", "pre")):
        raise FileNotFoundError(
            f"{checkpoint / 'preprocessor_config.json'} is missing: it says how images, sounds and videos "
            "are prepared; download the checkpoint again"
        )
