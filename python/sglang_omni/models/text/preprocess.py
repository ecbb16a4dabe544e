"""The preprocess stage: from messages or a prompt to token ids."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sglang_omni.answers.chat import ChatPrompts
from sglang_omni.models.text.request_params import REQUEST_PARAMS
from sglang_omni.preprocessing.deadline import Check, never, until_aborted
from sglang_omni.preprocessing.messages import parse_messages, with_parts
from sglang_omni.preprocessing.request import (
    flag_param,
    named_inputs,
    stage_params,
    task_of,
    without_inputs,
)
from sglang_omni.preprocessing.request_params import check_request
from sglang_omni.preprocessing.text import PromptEncoder
from sglang_omni.proto import OmniRequest, RequestError, StagePayload

_INPUTS = ("messages", "prompt", "prompt_token_ids")


class TextPreprocessor:
    """Converts the entry payload of a chat or a completion to ``{"prompt_token_ids": [int]}``, with a
    ``reading`` (``Reading``) if the answer to a chat is more than content.

    The inputs themselves are dropped: no later stage reads them.
    """

    def __init__(self, chats: ChatPrompts) -> None:
        self._chats = chats
        self._prompts = chats.prompts

    def __call__(self, payload: StagePayload, aborted: Callable[[], bool] = never) -> StagePayload:
        """
        Args:
            payload: The request as it came.
            aborted: Returns true once the request is aborted; the work then ends.

        Raises:
            RequestError: An input or parameter is not acceptable.
            Aborted: The request was aborted.
        """
        check = until_aborted(aborted)
        request = payload.request
        task = task_of(request)
        if task not in REQUEST_PARAMS:
            raise RequestError(
                f"this model does not do {task}; it does {' and '.join(REQUEST_PARAMS)}",
                param="task",
                code="unsupported_task",
            )
        check_request(request, REQUEST_PARAMS)
        inputs = named_inputs(request, _INPUTS)
        data: dict[str, Any] = {}
        if task == "chat":
            messages = with_parts(*parse_messages(inputs.get("messages"), ()))
            token_ids, reading = self._chats.encode(messages, request, check=check)
            if reading is not None:
                data["reading"] = reading
        else:
            token_ids = encode_completion(self._prompts, inputs, request, check)
        self._prompts.check_answer(len(token_ids), stage_params(request, "thinker"))
        return without_inputs(payload, {**data, "prompt_token_ids": token_ids})


def encode_completion(
    prompts: PromptEncoder, inputs: Mapping[str, Any], request: OmniRequest, check: Check
) -> list[int]:
    """Token ids of a completion's prompt, which may be such ids itself.

    Raises:
        RequestError: There is no prompt, or it does not fit the model.
    """
    if (token_ids := inputs.get("prompt_token_ids")) is not None:
        return prompts.check_token_ids(token_ids)
    if inputs.get("prompt") is None:
        raise RequestError("prompt is missing", param="prompt", code="missing_required_parameter")
    return prompts.encode_prompt(
        inputs["prompt"],
        parse_special_tokens=flag_param(request.params, "parse_special_tokens"),
        check=check,
    )
