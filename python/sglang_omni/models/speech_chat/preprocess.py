"""The preprocess stage: checks, decodes and tokenizes a request's inputs as far as that needs no model."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from sglang_omni.answers.chat import ChatPrompts
from sglang_omni.models.speech_chat.components.voice import check_voice
from sglang_omni.models.speech_chat.components.whisper import MAX_PROMPT_CHARS, SAMPLE_RATE, check_language
from sglang_omni.models.speech_chat.conversation import for_thinker, plain_text
from sglang_omni.models.speech_chat.request_params import REQUEST_PARAMS, REQUEST_PARAMS_OF_MESSAGES
from sglang_omni.models.text.preprocess import encode_completion
from sglang_omni.preprocessing.audio import AudioClip, decode_audio
from sglang_omni.preprocessing.deadline import Check, Deadline, never, until_aborted
from sglang_omni.preprocessing.media import media_bytes
from sglang_omni.preprocessing.messages import MediaKind, MediaPart, parse_messages
from sglang_omni.preprocessing.request import (
    answers_in_speech,
    named_inputs,
    stage_params,
    task_of,
    without_inputs,
)
from sglang_omni.preprocessing.request_params import check_request
from sglang_omni.proto import OmniRequest, RequestError, StagePayload

_TAKES: tuple[MediaKind, ...] = ("audio",)
_INPUTS = ("messages", "prompt", "prompt_token_ids", "text", "audio", "sample_rate")


@dataclass(frozen=True)
class Limits:
    """Limits of a request.

    Attributes:
        audio_seconds: Length of a clip in a conversation.
        total_audio_seconds: Length of all clips of a conversation.
        audio_bytes: Encoded size of a clip or recording.
        speech_chars: Characters of a text to speak.
        decode_seconds: Time to fetch and decode a clip.
    """

    audio_seconds: float = 300.0
    total_audio_seconds: float = 1200.0
    audio_bytes: int = 64_000_000
    speech_chars: int = 16_384
    decode_seconds: float = 30.0


class SpeechChatPreprocessor:
    """Converts the entry payload to the payload of the next stage, by task:

    - chat without audio, completion: ``{"prompt_token_ids": [int]}``, with a ``reading`` (``Reading``) if the
      answer is more than content; a chat is ``{"messages": [...]}`` without ``chats``
    - chat with audio: ``{"messages": [...], "clips": [float32 (n,), 16 kHz]}``
    - transcription, translation: ``{"audio": bytes}``, encoded: a recording may be of hours, and the
      transcribe stage decodes it as it goes; ``{"sample_rate": Hz}`` of sound that comes to that stage
    - speech: ``{"text": str}``
    - a voice to keep: ``{"audio": bytes, "text": str | None}``; a kept one that speaks comes with the others
      as ``voice``

    The inputs themselves are dropped, so that a chat's encoded audio does not travel through later stages.

    Args:
        chats: Makes prompts; None for a thinker that takes messages, and no completions.
        limits: What a request may hold.
        allowed_media_hosts: As for the stage's factory.
        hears, speaks: Whose languages, prompts and voices are checked here: the bundled models'. Another
            model checks them itself.
    """

    def __init__(
        self,
        chats: ChatPrompts | None,
        limits: Limits,
        allowed_media_hosts: Collection[str] = (),
        *,
        hears: bool = True,
        speaks: bool = True,
    ) -> None:
        self._chats = chats
        self._takes = REQUEST_PARAMS_OF_MESSAGES if chats is None else REQUEST_PARAMS
        self._limits = limits
        self._hears, self._speaks = hears, speaks
        self._allowed_media_hosts = frozenset(allowed_media_hosts)

    def __call__(self, payload: StagePayload, aborted: Callable[[], bool] = never) -> StagePayload:
        """
        Args:
            aborted: Returns true once the request is aborted; the work then ends.

        Raises:
            RequestError: An input or parameter is not acceptable.
            Aborted: The request was aborted.
        """
        check = until_aborted(aborted)
        request = payload.request
        task = task_of(request)
        check_request(request, self._takes)
        if self._speaks and (task == "speech" or answers_in_speech(request)):
            speak = stage_params(request, "speak")
            check_voice(speak.get("voice"), param="voice")
            if task == "speech":
                check_language(speak.get("language"), param="language", does="speaks")
        inputs = named_inputs(request, _INPUTS if self._speaks else (*_INPUTS, "voice"))
        match task:
            case "chat":
                data = self._chat(inputs, request, check)
            case "completion":
                data = self._completion(inputs, request, check)
            case "speech":
                data = {"text": self._speech(inputs)}
            case "transcription" | "translation":
                heard = stage_params(request, "transcribe")
                if self._hears:
                    check_language(heard.get("language"), param="language", does="transcribes")
                _check_prompt(heard.get("prompt"))
                if "sample_rate" in inputs:
                    data = {"sample_rate": inputs["sample_rate"]}
                else:
                    deadline = Deadline(self._limits.decode_seconds, param="file", check=check)
                    source = _given(inputs, "audio", "file")
                    data = {"audio": self._media(MediaPart("audio", source, "file"), deadline)}
            case "voice":
                # The model that speaks checks it.
                data = dict(inputs)
        if task != "voice" and (voice := inputs.get("voice")) is not None:
            data["voice"] = voice
        return without_inputs(payload, data)

    def _chat(self, inputs: Mapping[str, Any], request: OmniRequest, check: Check) -> dict[str, Any]:
        messages, audio = parse_messages(inputs.get("messages"), _TAKES)
        if not audio:
            return for_thinker(plain_text(messages), request, self._chats, check)
        if self._chats is not None:
            # The transcript is not known yet, but an answer may be longer than the context by itself.
            prompts = self._chats.prompts
            prompts.check_answer(0, stage_params(request, "thinker"))
            prompts.tokenizer.check_characters(messages, prompts.context_length, param="messages")
        return {"messages": messages, "clips": self._clips(audio, check)}

    def _completion(self, inputs: Mapping[str, Any], request: OmniRequest, check: Check) -> dict[str, Any]:
        if self._chats is None:
            raise RequestError(
                "this pipeline does no completions: its language model takes chats; send messages",
                param="task",
                code="unsupported_task",
            )
        token_ids = encode_completion(self._chats.prompts, inputs, request, check)
        self._chats.prompts.check_answer(len(token_ids), stage_params(request, "thinker"))
        return {"prompt_token_ids": token_ids}

    def _speech(self, inputs: Mapping[str, Any]) -> str:
        text = _given(inputs, "text", "input")
        if not isinstance(text, str) or not any(character.isalnum() for character in text):
            raise RequestError("input holds nothing that can be spoken", param="input", code="invalid_value")
        if len(text) > self._limits.speech_chars:
            raise RequestError(
                f"input is {len(text)} characters long; the limit is {self._limits.speech_chars}",
                param="input",
                code="invalid_value",
            )
        return text

    def _clips(self, parts: list[MediaPart], check: Check) -> list[Any]:
        limits = self._limits
        clips: list[AudioClip] = []
        for part in parts:
            deadline = Deadline(limits.decode_seconds, param=part.param, check=check)
            clips.append(
                decode_audio(
                    self._media(part, deadline),
                    param=part.param,
                    sample_rate=SAMPLE_RATE,
                    max_seconds=limits.audio_seconds,
                    check=deadline,
                )
            )
            total = sum(clip.duration for clip in clips)
            if total > limits.total_audio_seconds:
                raise RequestError(
                    f"{part.param} brings the conversation's audio to {total:.1f} s; "
                    f"the limit is {limits.total_audio_seconds:g} s in all",
                    param=part.param,
                    code="audio_too_long",
                )
        return [clip.samples for clip in clips]

    def _media(self, part: MediaPart, deadline: Deadline) -> bytes:
        return media_bytes(
            part.source,
            param=part.param,
            max_bytes=self._limits.audio_bytes,
            allowed_hosts=self._allowed_media_hosts,
            check=deadline,
        )


def _check_prompt(prompt: str | None) -> None:
    if prompt is not None and len(prompt) > MAX_PROMPT_CHARS:
        raise RequestError(
            f"prompt is {len(prompt)} characters long; the limit is {MAX_PROMPT_CHARS}, of which "
            "the last two hundred or so words are used",
            param="prompt",
            code="invalid_value",
        )


def _given(inputs: Mapping[str, Any], name: str, param: str) -> Any:
    if inputs.get(name) is None:
        raise RequestError(f"{param} is missing", param=param, code="missing_required_parameter")
    return inputs[name]
