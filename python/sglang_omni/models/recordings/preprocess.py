"""The preprocess stage of a recognizer: checks a request, and tokenizes what it says beside its recording."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from typing import Any, ClassVar, TypedDict

from tokenizers import Tokenizer

from sglang_omni.config.nearest import nearest
from sglang_omni.preprocessing.deadline import Check, never, until_aborted
from sglang_omni.preprocessing.media import media_bytes
from sglang_omni.preprocessing.request import named_inputs, stage_params, task_of, without_inputs
from sglang_omni.preprocessing.request_params import RequestParams, check_request
from sglang_omni.preprocessing.tokenizing import TextTokenizer
from sglang_omni.proto import OmniRequest, RequestError, StagePayload

# Many times the part that models read: names and terms to expect, and some sentences around them.
MAX_PROMPT_CHARS = 16_384


class RecordingInput(TypedDict):
    """preprocess -> transcribe, of every recognizer.

    Attributes:
        audio: The recording as it was sent.
        before: Tokens of the prompt before the recording's.
        language: Its code; None if it is to be found out, or the model knows one language.
    """

    audio: bytes
    before: list[int]
    language: str | None


class RecordingPreprocessor(ABC):
    """Takes the tasks of ``request_params``.

    Args:
        tokenizer: None for a model that reads no text.
        max_bytes: Size of an encoded recording.

    Attributes:
        request_params: The parameters of each task.
    """

    request_params: ClassVar[RequestParams]

    def __init__(self, tokenizer: Tokenizer | None, *, max_bytes: int) -> None:
        if tokenizer is not None:
            self._tokenizer = TextTokenizer(tokenizer)
        self._max_bytes = max_bytes

    @abstractmethod
    def _language(self, name: str | None) -> str | None:
        """The ``RecordingInput.language`` for a language's name or code; None for none.

        Raises:
            RequestError: The model does not know it.
        """

    @abstractmethod
    def _prompt(self, prompt: str, language: str | None, check: Check) -> Mapping[str, list[int]]:
        """``before``, and other tokens that a request's prompt becomes.

        Raises:
            RequestError: The model takes no prompt.
        """

    def _options(self, task: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """The input's further fields.

        Raises:
            RequestError: The model does not do this.
        """
        return {}

    def _sound(self, request: OmniRequest, check: Check) -> Mapping[str, Any]:
        """``audio``.

        Raises:
            RequestError: There is none, or it is too large.
        """
        source = named_inputs(request, ("audio",)).get("audio")
        if source is None:
            raise RequestError("file is missing", param="file", code="missing_required_parameter")
        return {"audio": media_bytes(source, param="file", max_bytes=self._max_bytes, check=check)}

    def __call__(self, payload: StagePayload, aborted: Callable[[], bool] = never) -> StagePayload:
        """
        Args:
            aborted: Returns true once the request is aborted; the work then ends.

        Raises:
            RequestError: An input or parameter is not acceptable.
            Aborted: The request was aborted.
        """
        check, request = until_aborted(aborted), payload.request
        task = task_of(request)
        if task not in self.request_params:
            raise RequestError(
                f"this model transcribes recordings, it does no {task}", code="unsupported_task"
            )
        check_request(request, self.request_params)
        params = stage_params(request, "transcribe")
        options = self._options(task, params)
        prompt, name = params.get("prompt") or "", params.get("language")
        if len(prompt) > MAX_PROMPT_CHARS:
            raise RequestError(
                f"prompt is {len(prompt)} characters long; the limit is {MAX_PROMPT_CHARS}",
                param="prompt",
                code="invalid_value",
            )
        language = self._language(None if name is None or str(name).lower() == "auto" else str(name))
        tokens = self._prompt(prompt, language, check)
        sound = self._sound(request, check)
        return without_inputs(payload, {**sound, "language": language, **tokens, **options})


def unknown_language(name: str, known: str, near: str, names: Collection[str]) -> RequestError:
    """The error for a language that a model does not know.

    Args:
        known: Which languages it knows, behind "is not among".
        near: How the language would be written among ``names``.
    """
    found = nearest(near, names, cutoff=0.6)
    hint = f"; did you mean {found!r}?" if found else ""
    return RequestError(
        f"language {name!r} is not among {known}{hint}", param="language", code="unsupported_value"
    )
