"""The preprocess stage: checks a request, and makes its prompt but for the recording."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypedDict

from tokenizers import Tokenizer

from sglang_omni.config.nearest import nearest
from sglang_omni.models.qwen3_asr.components.answer import LANGUAGES, TEXT_MARK, code_of
from sglang_omni.models.qwen3_asr.request_params import REQUEST_PARAMS
from sglang_omni.preprocessing.deadline import never, until_aborted
from sglang_omni.preprocessing.media import media_bytes
from sglang_omni.preprocessing.request import named_inputs, stage_params, task_of, without_inputs
from sglang_omni.preprocessing.request_params import check_request
from sglang_omni.preprocessing.tokenizing import TextTokenizer
from sglang_omni.proto import RequestError, StagePayload

# The model was made for names and terms to expect, and some sentences around them.
MAX_CONTEXT_CHARS = 16_384


class Qwen3ASRInput(TypedDict):
    """preprocess -> transcribe.

    Attributes:
        audio: The recording as it was sent.
        before, after: Tokens of the prompt before and after the recording's.
        language: The code that the caller gave; None to find it out.
    """

    audio: bytes
    before: list[int]
    after: list[int]
    language: str | None


class Qwen3ASRPreprocessor:
    """Takes transcriptions.

    Args:
        max_bytes: Size of an encoded recording.
    """

    def __init__(self, tokenizer: Tokenizer, *, max_bytes: int) -> None:
        self._tokenizer = TextTokenizer(tokenizer)
        self._max_bytes = max_bytes

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
        if task != "transcription":
            raise RequestError(
                f"this model transcribes recordings, it does no {task}", code="unsupported_task"
            )
        check_request(request, REQUEST_PARAMS)
        params = stage_params(request, "transcribe")
        source = named_inputs(request, ("audio",)).get("audio")
        if source is None:
            raise RequestError("file is missing", param="file", code="missing_required_parameter")
        context = params.get("prompt") or ""
        if len(context) > MAX_CONTEXT_CHARS:
            raise RequestError(
                f"prompt is {len(context)} characters long; the limit is {MAX_CONTEXT_CHARS}",
                param="prompt",
                code="invalid_value",
            )
        language = _language(params.get("language"))
        told = "" if language is None else f"language {LANGUAGES[language]}{TEXT_MARK}"
        encode = self._tokenizer.encode
        data = Qwen3ASRInput(
            audio=media_bytes(source, param="file", max_bytes=self._max_bytes, check=check),
            # No spelling in the caller's text is a control token.
            before=encode(
                f"<|im_start|>system\n{self._tokenizer.hide(context)}<|im_end|>\n<|im_start|>user\n"
                "<|audio_start|>",
                check=check,
            ),
            after=encode(f"<|audio_end|><|im_end|>\n<|im_start|>assistant\n{told}"),
            language=language,
        )
        return without_inputs(payload, data)


def _language(given: Any) -> str | None:
    if given is None or str(given).lower() == "auto":
        return None
    code = code_of(str(given)).lower()
    if code not in LANGUAGES:
        near = nearest(str(given).capitalize(), LANGUAGES.values(), cutoff=0.6)
        hint = f"; did you mean {near!r}?" if near else ""
        raise RequestError(
            f"language {given!r} is not among those that this model knows: "
            f"{', '.join(f'{name} ({code})' for code, name in LANGUAGES.items())}{hint}",
            param="language",
            code="unsupported_value",
        )
    return code
