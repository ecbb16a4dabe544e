"""What the processors of the omni families make of OpenAI's messages, as transformers' users call them."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

from sample_media import decoded_sound, decoded_video, sounds_of_videos


def processed(
    processor: Any,
    messages: Sequence[Mapping[str, Any]],
    *,
    use_audio_in_video: bool = False,
    tools: Sequence[Mapping[str, Any]] = (),
    **options: Any,
) -> Any:
    """The processor's tensors for messages; ``options`` are further arguments of its call."""
    from transformers.image_utils import load_image

    images, audio, videos = [], [], []
    # For each sound, the video it belongs to.
    of_videos: list[int | None] = []
    conversation = []
    for message in messages:
        parts = message["content"]
        if isinstance(parts, str):
            conversation.append(message)
            continue
        converted = []
        for part in parts:
            match part["type"]:
                case "text":
                    converted.append(part)
                case "image_url":
                    images.append(load_image(part["image_url"]["url"]))
                    converted.append({"type": "image"})
                case "input_audio" | "audio_url":
                    audio.append(decoded_sound(_bytes(part)))
                    of_videos.append(None)
                    converted.append({"type": "audio"})
                case "video_url":
                    frames, track = decoded_video(_bytes(part))
                    videos.append(frames)
                    if use_audio_in_video:
                        assert track is not None, "the video is silent"
                        audio.append(track)
                        of_videos.append(len(videos) - 1)
                    converted.append({"type": "video"})
        conversation.append({**message, "content": converted})
    text = processor.apply_chat_template(
        conversation, tools=list(tools) or None, add_generation_prompt=True, tokenize=False
    )
    return processor(
        text=text,
        images=images or None,
        audio=audio or None,
        videos=videos or None,
        **sounds_of_videos(processor, of_videos) if use_audio_in_video else {},
        return_tensors="pt",
        **options,
    )


def _bytes(part: Mapping[str, Any]) -> bytes:
    body = part[part["type"]]
    encoded = body.get("data") or body["url"].partition(",")[2]
    return base64.b64decode(encoded)
