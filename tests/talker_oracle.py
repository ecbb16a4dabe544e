"""What transformers' talker reads and says in a conversation, step by step: see ``spoken``."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from qwen3_omni_oracle import Oracle
from torch import Tensor

from sglang_omni.model_runner.sequence import RotaryPositions
from sglang_omni.models.qwen3_omni.components.checkpoint import Qwen3OmniCheckpoint
from sglang_omni.models.qwen3_omni.components.talker_prompt import TalkerPrompt, talker_prompt
from sglang_omni.models.qwen3_omni.components.talker_state import Qwen3TalkerState

SPEAKER = "chelsie"


class Spoken(NamedTuple):
    """One answer and its speech. P are the talker's prompt rows, F its frames, N the answer's tokens.

    Attributes:
        prompt_token_ids: The thinker's.
        token_ids: (N,) its answer.
        media_hidden: (m, thinker hidden size) at the prompt's placeholders, None where there are none.
        prompt_rows: (P, H).
        rope_ids: (P,).
        positions: None where they are the rows' places.
        text_rows: (N - 1, H), added to the first frames.
        pad_row: (H,), added to frames after those.
        hidden: (F + 1, H), what each first code was chosen from.
        first_codes: F + 1, the last of which makes no frame.
        codes: (F, G).
        max_new_tokens: Of the talker.
        penalty: On first codes that are repeated.
    """

    prompt_token_ids: list[int]
    token_ids: list[int]
    media_hidden: Tensor | None
    prompt_rows: Tensor
    rope_ids: list[int]
    positions: RotaryPositions | None
    text_rows: Tensor
    pad_row: Tensor
    hidden: Tensor
    first_codes: list[int]
    codes: Tensor
    max_new_tokens: int
    penalty: float

    def prompt(self, checkpoint: Qwen3OmniCheckpoint) -> TalkerPrompt:
        """The same conversation, as the talker's stage reads it."""
        talker = checkpoint.require_talker()
        return talker_prompt(self.prompt_token_ids, checkpoint.tokens, talker.codec, talker.speakers[SPEAKER])

    def state(self, checkpoint: Qwen3OmniCheckpoint, *, text_is_there: bool = True) -> Qwen3TalkerState:
        state = Qwen3TalkerState(self.prompt(checkpoint), max_new_tokens=self.max_new_tokens)
        state.media_hidden = self.media_hidden
        if text_is_there:
            state.feed(self.token_ids)
            state.end_text()
        return state


def spoken(
    oracle: Oracle,
    messages: list[dict[str, Any]],
    *,
    max_tokens: int = 12,
    max_new_tokens: int = 9,
    penalty: float = 1.05,
) -> Spoken:
    """transformers' greedy answer to ``messages``, and what its talker was given and gave."""
    model = oracle.model
    inputs = oracle.inputs(messages)
    user, generated = _Recorder(model, "_get_talker_user_parts"), _Recorder(model.talker, "generate")
    with torch.inference_mode(), user, generated:
        sequence = model.generate(
            **inputs,
            return_audio=True,
            speaker=SPEAKER,
            thinker_do_sample=False,
            thinker_max_new_tokens=max_tokens,
            thinker_eos_token_id=model.config.im_end_token_id,
            talker_do_sample=False,
            talker_max_new_tokens=max_new_tokens,
            talker_repetition_penalty=penalty,
        )[0]
    _, length, mask, hidden, _ = user.args
    given, result = generated.kwargs, generated.result
    media = mask[0, :length]
    return Spoken(
        prompt_token_ids=inputs["input_ids"][0].tolist(),
        token_ids=sequence[0, length:].tolist(),
        media_hidden=hidden[0, :length][media] if media.any() else None,
        prompt_rows=given["inputs_embeds"][0],
        rope_ids=given["talker_input_ids"][0].tolist(),
        positions=_positions(model.talker, given),
        text_rows=given["trailing_text_hidden"][0],
        pad_row=given["tts_pad_embed"][0, 0],
        hidden=torch.cat([step[0][-1][:, -1] for step in result.hidden_states]),
        first_codes=result.sequences[0].tolist(),
        codes=torch.stack([step[-1] for step in result.hidden_states if step[-1] is not None], 1)[0],
        max_new_tokens=max_new_tokens,
        penalty=penalty,
    )


def _positions(talker: Any, given: dict[str, Any]) -> RotaryPositions | None:
    media = ("image_grid_thw", "video_grid_thw", "audio_feature_lengths")
    if not any(given.get(name) is not None for name in media):
        return None
    positions, delta = talker.get_rope_index(
        given["talker_input_ids"],
        given.get("image_grid_thw"),
        given.get("video_grid_thw"),
        given["attention_mask"],
        False,
        given.get("audio_feature_lengths"),
        given.get("video_second_per_grid"),
    )
    return RotaryPositions(positions[:, 0].long(), int(delta))


class _Recorder:
    """Arguments and result of the last call of a method."""

    def __init__(self, owner: Any, name: str) -> None:
        self._owner, self._name, self._method = owner, name, getattr(owner, name)
        self.args: tuple[Any, ...] = ()
        self.kwargs: dict[str, Any] = {}
        self.result: Any = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.args, self.kwargs, self.result = args, kwargs, self._method(*args, **kwargs)
        return self.result

    def __enter__(self) -> None:
        setattr(self._owner, self._name, self)

    def __exit__(self, *_: object) -> None:
        delattr(self._owner, self._name)
