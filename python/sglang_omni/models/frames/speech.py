"""What travels between the stages of speech that is made frame by frame, and where to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, NotRequired, TypedDict

from sglang_omni.preprocessing.request import task_of
from sglang_omni.proto import OmniRequest, StagePayload

if TYPE_CHECKING:
    from torch import Tensor

    from sglang_omni.models.codecs.mimi import VoiceRecording


class PromptOpening(NamedTuple):
    """What is before all else in a prompt: token ids, and codec tokens that say language and voice."""

    text: list[int]
    tags: Sequence[int] = ()


class SpeechParts(TypedDict):
    """preprocess -> reference -> speak; without a recording, preprocess -> speak; of a voice to keep,
    preprocess -> reference -> voice.

    Attributes:
        parts: Token ids of the texts that are spoken one after another.
        opening: Token ids before all else in the prompt of each.
        tags: Codec tokens that say language and voice, of models that read these as such.
        reference: Token ids of what is said in the recording of a voice, if the request has that text.
        recording: The recording.
        reference_codes: (frames, groups) int64, what the reference stage makes of it.
        speaker: (n,) float32, the voice itself, of models that read it as a vector.
        seconds: Length of the recording, of a voice to keep.
    """

    parts: list[list[int]]
    opening: list[int]
    tags: NotRequired[list[int]]
    reference: NotRequired[list[int]]
    recording: NotRequired[VoiceRecording]
    reference_codes: NotRequired[Tensor]
    speaker: NotRequired[Tensor]
    seconds: NotRequired[float]


def after_preprocess(request_id: str, output: StagePayload) -> list[str]:
    """A recording is encoded first; the codec waits for its frames meanwhile."""
    if keeps_voice(output.request):
        return ["reference"]
    return ["reference" if "recording" in output.data else "speak", "code2wav"]


def after_reference(request_id: str, output: StagePayload) -> list[str]:
    """A voice to keep is complete."""
    return ["voice" if keeps_voice(output.request) else "speak"]


def terminal_stages(request: OmniRequest) -> list[str]:
    """The stages whose results make up the answer."""
    return ["voice"] if keeps_voice(request) else ["speak", "code2wav"]


def keeps_voice(request: OmniRequest) -> bool:
    """True if the answer is a voice, encoded, and no speech."""
    return task_of(request) == "voice"


def to_code2wav(payload: StagePayload) -> StagePayload:
    """The request alone; codes come as a stream."""
    return StagePayload(payload.request_id, payload.request, {})
