"""The preprocess stage: a request's inputs to token ids, positions, and tensors for the encoders."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar, Unpack

import numpy as np

from sglang_omni.answers.reader import Reading
from sglang_omni.models.decoder.args import ChatArgs
from sglang_omni.models.decoder.prompts import chat_prompts
from sglang_omni.models.omni.checkpoint import MediaCheckpoint
from sglang_omni.models.omni.media import Media, MediaLimits, MediaReader, VideoOptions
from sglang_omni.models.omni.payloads import MediaShape, Prompt
from sglang_omni.models.omni.positions import MediaRules, position_limits
from sglang_omni.preprocessing.deadline import Check, never, until_aborted
from sglang_omni.preprocessing.messages import MediaKind, parse_messages, with_parts
from sglang_omni.preprocessing.request import (
    answers_in_speech,
    flag_param,
    named_inputs,
    stage_params,
    task_of,
    without_inputs,
)
from sglang_omni.proto import OmniRequest, RequestError, StagePayload

_INPUTS = ("messages", "prompt", "prompt_token_ids")
MEDIA_KINDS: tuple[MediaKind, ...] = ("image", "audio", "video")

Rules = TypeVar("Rules", bound=MediaRules)


class MediaPreprocessor(Generic[Rules]):
    """Converts the entry payload to one with a ``Prompt``. Thread-safe.

    Args:
        checkpoint: The model.
        limits: Of a request's media; None for the defaults.
        takes: Accepted kinds of media.
        video_fps: Frames to take of each second of a video if the request has none; None takes all.
        context_length: A shorter context than the checkpoint's.
        allowed_media_hosts: Hosts of media URLs, as in ``media_bytes``.
        chat_template: As for ``PromptEncoder``.
        tool_call_parser, reasoning_parser: As for ``ChatPrompts``.

    Attributes:
        rules_class: How the model lays media out.
        reader_class: Reads media.
        audio_end: The token after a sound.
    """

    rules_class: type[Rules]
    reader_class: type[MediaReader[Rules]]
    audio_end: ClassVar[str]

    def __init__(
        self,
        checkpoint: MediaCheckpoint[Any, Any],
        *,
        limits: MediaLimits | None = None,
        takes: Collection[MediaKind] = MEDIA_KINDS,
        video_fps: float | None = None,
        allowed_media_hosts: Collection[str] = (),
        **chat: Unpack[ChatArgs],
    ) -> None:
        self._chats = chat_prompts(checkpoint.path, chat, of_processor=True)
        prompts = self._chats.prompts
        rules = self.rules_class.from_config(checkpoint.thinker_config, checkpoint.tokens)
        self._prompts = prompts
        # Used only for videos with sound.
        self._audio_end = prompts.tokenizer.token_to_id(self.audio_end) or 0
        self._rules = rules
        self._position_limits = position_limits(checkpoint, rules)
        self._takes = takes
        self._video_fps = video_fps
        self._reader = (
            self.reader_class(checkpoint.path, rules, limits or MediaLimits(), allowed_media_hosts)
            if takes
            else None
        )

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
        inputs = named_inputs(request, _INPUTS)
        match task:
            case "chat":
                prompt = self._chat(inputs.get("messages"), request, check)
            case "completion":
                prompt = self._lay_out(self._completion(inputs, request, check), Media(), with_sound=False)
            case _:
                raise RequestError(
                    f"this model does chat and completion, not {task}", param="task", code="unsupported_task"
                )
        self._prompts.check_answer(len(prompt["prompt_token_ids"]), stage_params(request, "thinker"))
        return without_inputs(payload, prompt)

    def _completion(self, inputs: Mapping[str, Any], request: OmniRequest, check: Check) -> list[int]:
        token_ids = inputs.get("prompt_token_ids")
        if token_ids is not None:
            ids, param = self._prompts.check_token_ids(token_ids), "prompt_token_ids"
        elif isinstance(inputs.get("prompt"), str):
            parse = flag_param(request.params, "parse_special_tokens")
            ids = self._prompts.encode_prompt(inputs["prompt"], parse_special_tokens=parse, check=check)
            param = "prompt"
        else:
            raise RequestError("prompt is missing", param="prompt", code="missing_required_parameter")
        if not self._rules.tokens.media.isdisjoint(ids):
            raise RequestError(
                f"{param} holds placeholders of media, which only messages can bring",
                param=param,
                code="invalid_value",
            )
        return ids

    def _chat(self, messages: Any, request: OmniRequest, check: Check) -> Prompt:
        conversation, parts = parse_messages(messages, self._takes)
        conversation = self._conversation(conversation, request)
        text, reading = self._chats.render(with_parts(conversation, parts), request)
        token_ids = self._prompts.encode_text(text, param="messages", check=check)
        # Check the text before any medium is computed.
        self._prompts.check_answer(len(token_ids), stage_params(request, "thinker"))
        if not parts:
            self._prompts.check_length(len(token_ids), "messages")
            return self._lay_out(token_ids, Media(), with_sound=False, reading=reading)
        assert self._reader is not None
        video = self._video_options(request)

        text_length = len(token_ids) - len(parts)

        def check_length(media_tokens: int, param: str) -> None:
            self._prompts.check_length(text_length + media_tokens, param)

        media = self._reader.read(parts, video, check_length, check)
        prompt = self._lay_out(token_ids, media, with_sound=video.with_sound, reading=reading)
        self._prompts.check_length(len(prompt["prompt_token_ids"]), "messages")
        parts_of_model = ("thinker", "talker") if answers_in_speech(request) else ("thinker",)
        for part in parts_of_model:
            if (limit := self._position_limits.get(part)) is not None:
                limit.check(prompt)
        return prompt

    def _conversation(self, conversation: list[dict[str, Any]], request: OmniRequest) -> list[dict[str, Any]]:
        """The conversation as the model must see it: here, as it is.

        Args:
            conversation: As of ``parse_messages``.
        """
        return conversation

    def _video_options(self, request: OmniRequest) -> VideoOptions:
        params = stage_params(request, "preprocess")
        fps = params.get("video_fps", self._video_fps)
        is_number = isinstance(fps, int | float) and not isinstance(fps, bool)
        if fps is not None and not (is_number and 0.001 <= fps <= 1000):
            raise RequestError(
                f"video_fps must be a number from 0.001 to 1000, got {fps!r}",
                param="video_fps",
                code="invalid_value",
            )
        with_sound = params.get("use_audio_in_video", False)
        if not isinstance(with_sound, bool):
            raise RequestError(
                f"use_audio_in_video must be true or false, got {with_sound!r}",
                param="use_audio_in_video",
                code="invalid_type",
            )
        return VideoOptions(fps, with_sound)

    def _lay_out(
        self, token_ids: Sequence[int], media: Media, *, with_sound: bool, reading: Reading | None = None
    ) -> Prompt:
        shape = media.shape(with_sound=with_sound)
        ids, keys = list(token_ids), list(token_ids)
        if media.images or media.videos or media.audios:
            layout = _Layout(self._rules, shape, self._audio_end)
            ids, keys = layout.expand(token_ids, self._content_ids(media))
        positions = self._rules.rope_positions(ids, shape)
        return Prompt(
            prompt_token_ids=ids,
            key_token_ids=keys,
            positions=None if positions is None else positions.prompt,
            position_delta=0 if positions is None else positions.delta,
            media=shape,
            visuals=media.images + media.videos,
            audios=media.audios,
            reading=reading,
        )

    def _content_ids(self, media: Media) -> dict[int, Iterator[int]]:
        """By placeholder, ids outside the vocabulary that stand for the media's contents, in order."""
        tokens = self._rules.tokens
        kinds = ((tokens.image, media.images), (tokens.video, media.videos), (tokens.audio, media.audios))
        return {token: iter([self._content_id(item["key"]) for item in items]) for token, items in kinds}

    def _content_id(self, key: bytes) -> int:
        # 61 bits, so that the sum is an int64.
        digest = int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little")
        return self._prompts.vocab_size + (digest >> 3)


class _Layout:
    """Repeats each medium's placeholder for each row of its encoder's output."""

    def __init__(self, rules: MediaRules, shape: MediaShape, audio_end: int) -> None:
        self._rules = rules
        self._tokens = rules.tokens
        self._audio_end = audio_end
        self._with_sound = shape["use_audio_in_video"]
        self._images = iter(shape["image_grids"])
        self._videos = iter(zip(shape["video_grids"], shape["video_seconds_per_grid"], strict=True))
        self._audios = iter(shape["audio_frames"])

    def expand(
        self, token_ids: Sequence[int], content_ids: Mapping[int, Iterator[int]]
    ) -> tuple[list[int], list[int]]:
        """The expanded ids, and the same with ``content_ids`` in place of the placeholders.

        Raises:
            RequestError: The chat template wrote fewer or more placeholders than there are media.
        """
        ids: list[int] = []
        keys: list[int] = []
        try:
            for token in token_ids:
                run = self._run(token)
                content = {
                    kind: next(content_ids[kind]) for kind in dict.fromkeys(run) if kind in content_ids
                }
                ids.extend(run)
                keys.extend(content.get(kind, kind) for kind in run)
        except StopIteration:
            _refuse_template()
        if any(next(rest, None) is not None for rest in (self._images, self._videos, self._audios)):
            _refuse_template()
        return ids, keys

    def _run(self, token: int) -> list[int]:
        tokens, rules = self._tokens, self._rules
        if token == tokens.image:
            return [token] * rules.visual_tokens(next(self._images))
        if token == tokens.audio:
            return [token] * rules.audio_tokens(next(self._audios))
        if token != tokens.video:
            return [token]
        grid, seconds = next(self._videos)
        seen = rules.visual_tokens(grid)
        if not self._with_sound:
            return [token] * seen
        heard = rules.audio_tokens(next(self._audios))
        kinds = np.where(rules.is_seen(grid, seconds, heard), token, tokens.audio)
        return [tokens.audio_start, *kinds.tolist(), self._audio_end]


def _refuse_template() -> None:
    raise RequestError(
        "the chat template of this checkpoint does not put every medium of these messages into the prompt; "
        "put media into messages of the user",
        param="messages",
        code="unsupported_value",
    )
