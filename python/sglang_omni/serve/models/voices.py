"""The form of ``POST /v1/audio/voices``."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from sglang_omni.serve.kept_voices import ID_PREFIX
from sglang_omni.serve.models.fields import ApiModel, Name
from sglang_omni.serve.models.speech import MAX_INPUT_CHARS

MAX_VOICE_NAME = 256


def _plain(name: str) -> str:
    if name != name.strip() or not name.isprintable():
        raise ValueError("must be of printable characters, without spaces at its ends")
    if "/" in name or name.lower().startswith(ID_PREFIX):
        raise ValueError(f"may not have a slash in it, nor begin with {ID_PREFIX!r} as ids do")
    return name


class VoiceForm(ApiModel):
    """The fields of the multipart form besides ``audio_sample``."""

    name: Annotated[str, Field(min_length=1, max_length=MAX_VOICE_NAME), AfterValidator(_plain)]
    """What requests call the voice, in any case; none of the model's own or of OpenAI's names."""
    consent: Annotated[str, Field(min_length=1, max_length=MAX_VOICE_NAME)]
    """An id or a note of your own that says where the consent of the person who is heard can be found. It is
    kept with the voice."""
    ref_text: Annotated[str, Field(max_length=MAX_INPUT_CHARS)] | None = None
    """What is said in the recording. Some models need it, and all sound more like the recording with it."""
    type: Literal["audio_sample"] = "audio_sample"
    """Only ``audio_sample``: voices are made from recordings."""
    model: Name | None = None
    """A served name; the first one if left out."""
