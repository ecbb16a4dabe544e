"""What travels between the stages of speech that is made frame by frame, and where to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, NotRequired, TypedDict

from sglang_omni.proto import StagePayload

if TYPE_CHECKING:
    from torch import Tensor

    from sglang_omni.models.codecs.mimi import VoiceRecording


class PromptOpening(NamedTuple):
    """What is before all else in a prompt: token ids, and codec tokens that say language and voice."""

    text: list[int]
    tags: Sequence[int] = ()


class SpeechParts(TypedDict):
    """preprocess -> reference -> speak; without a reference, preprocess -> speak.

    Attributes:
        parts: Token ids of the texts that are spoken one after another.
        opening: Token ids before all else in the prompt of each.
        tags: Codec tokens that say language and voice, of models that read these as such.
        reference: Token ids of what is said in the recording of a voice, if the request has that text.
        recording: The recording.
        reference_codes: (frames, groups) int64, what the reference stage makes of it.
        speaker: (n,) float32, the voice itself, of models that read it as a vector.
    """

    parts: list[list[int]]
    opening: list[int]
    tags: NotRequired[list[int]]
    reference: NotRequired[list[int]]
    recording: NotRequired[VoiceRecording]
    reference_codes: NotRequired[Tensor]
    speaker: NotRequired[Tensor]


def after_preprocess(request_id: str, output: StagePayload) -> list[str]:
    """A recording is encoded first; the codec waits for its frames meanwhile."""
    return ["reference" if "recording" in output.data else "speak", "code2wav"]


def to_code2wav(payload: StagePayload) -> StagePayload:
    """The request alone; codes come as a stream."""
    return StagePayload(payload.request_id, payload.request, {})
