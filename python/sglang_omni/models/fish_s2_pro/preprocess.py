"""The preprocess stage: a text, and perhaps a voice, to the slow decoder's prompt."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypedDict

import torch
from tokenizers import Tokenizer
from torch import Tensor

from sglang_omni.models.fish_s2_pro.components.checkpoint import FishS2Checkpoint
from sglang_omni.models.fish_s2_pro.request_params import REQUEST_PARAMS
from sglang_omni.preprocessing.deadline import Check, never, until_aborted
from sglang_omni.preprocessing.request_params import check_params
from sglang_omni.preprocessing.tokenizing import TextTokenizer
from sglang_omni.proto import RequestError, StagePayload

_TASK = "convert the provided text to speech"


class DualARInput(TypedDict):
    """preprocess -> dual_ar.

    Attributes:
        prompt_token_ids: The text, with one token for each frame of the voice.
        voice_codes: (frames, groups) int64; None without a voice.
        voice_start: Index of the voice's first frame in the prompt.
    """

    prompt_token_ids: list[int]
    voice_codes: Tensor | None
    voice_start: int


class FishS2Preprocessor:
    """Takes ``{"text": str, "voice": {"text": str, "codes": (frames, groups)}}``.

    The optional voice is a recording: its text and its codes.
    """

    def __init__(self, checkpoint: FishS2Checkpoint, tokenizer: Tokenizer) -> None:
        self._checkpoint = checkpoint
        self._tokenizer = TextTokenizer(tokenizer)
        self._most = checkpoint.slow.max_position_embeddings

    def __call__(self, payload: StagePayload, aborted: Callable[[], bool] = never) -> StagePayload:
        """
        Args:
            aborted: Returns true once the request is aborted; the work then ends.

        Raises:
            RequestError: The text is missing or too long, the voice is malformed, or a parameter has no
                effect.
            Aborted: The request was aborted.
        """
        # Speech is the only task, whatever the request's metadata say.
        check_params("speech", payload.request.params, REQUEST_PARAMS, spoken=True)
        inputs = payload.request.inputs
        if isinstance(inputs, str):
            inputs = {"text": inputs}
        if not isinstance(inputs, Mapping) or not isinstance(inputs.get("text"), str) or not inputs["text"]:
            raise RequestError("there is no text to speak", param="text", code="missing_required_parameter")
        voice = inputs.get("voice")
        codes = None if voice is None else self._voice_codes(voice)
        data = self._prompt(
            inputs["text"], "" if voice is None else voice["text"], codes, until_aborted(aborted)
        )
        return StagePayload(payload.request_id, payload.request, data)

    def _prompt(self, text: str, voice_text: str, codes: Tensor | None, check: Check) -> DualARInput:
        control = self._tokenizer.encode
        ids = control("<|im_start|>system\n")
        start = 0
        if codes is not None:
            said = voice_text if voice_text.startswith("<|speaker:") else f"<|speaker:0|>{voice_text}"
            ids += control(f"{_TASK} reference to the following:\n\nText:\n")
            ids += self._written(said, "voice.text", check)
            ids += control("\n\nSpeech:\n")
            start = len(ids)
            ids += (codes[:, 0] + self._checkpoint.semantic_start).tolist()
        else:
            ids += control(_TASK)
        ids += control("<|im_end|>\n<|im_start|>user\n")
        ids += self._written(text, "text", check)
        ids += control("<|im_end|>\n<|im_start|>assistant\n<|voice|>")
        return DualARInput(prompt_token_ids=ids, voice_codes=codes, voice_start=start)

    def _written(self, text: str, param: str, check: Check) -> list[int]:
        """Token ids of a user's text, none of them a control token, however the text is spelled."""
        self._tokenizer.check_characters(text, self._most, param=param)
        return self._tokenizer.encode(self._tokenizer.hide(text), most=self._most, check=check)

    def _voice_codes(self, voice: Any) -> Tensor:
        groups = self._checkpoint.fast.num_code_groups
        size = self._checkpoint.codebook_size
        if not isinstance(voice, Mapping) or not isinstance(voice.get("text"), str):
            raise RequestError(
                "a voice is an object with the text it says and its codes", param="voice", code="invalid_type"
            )
        try:
            codes = torch.as_tensor(voice.get("codes"), dtype=torch.long)
        except (TypeError, ValueError, RuntimeError) as exc:
            raise RequestError(
                f"voice.codes are no integers: {exc}", param="voice", code="invalid_type"
            ) from exc
        if codes.dim() != 2 or codes.shape[1] != groups or len(codes) == 0:
            raise RequestError(
                f"voice.codes must be (frames, {groups}), got {tuple(codes.shape)}",
                param="voice",
                code="invalid_value",
            )
        if int(codes.min()) < 0 or int(codes.max()) >= size:
            raise RequestError(
                f"voice.codes must lie between 0 and {size - 1}", param="voice", code="invalid_value"
            )
        return codes
