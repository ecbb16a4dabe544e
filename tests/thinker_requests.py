"""Requests to a thinker's engine, with media taken from transformers' encoders: what lies behind them is the
oracle's, so that a difference is the engine's.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import torch
from qwen3_omni_oracle import Oracle
from torch import Tensor

from sglang_omni.engines.request import EngineRequest
from sglang_omni.model_runner.media import ThinkerState
from sglang_omni.model_runner.request_sampling import RequestSampling
from sglang_omni.model_runner.sequence import RotaryPositions


@dataclass
class ThinkerPrompt:
    """A conversation as a thinker's engine takes it, and transformers' answer to it.

    Attributes:
        token_ids: The expected answer.
        hidden: (m, H), expected ``media_hidden``.
        max_tokens: Of the answer, which may end before.
        logprobs: (T, vocab_size), expected log-probabilities of the token after each of the prompt's.
    """

    prompt_token_ids: list[int]
    token_ids: list[int]
    embeds: Tensor
    media_positions: Tensor
    visual_positions: Tensor
    deepstack: tuple[Tensor, ...]
    positions: RotaryPositions
    hidden: Tensor
    vocab_size: int
    max_tokens: int
    logprobs: Tensor

    @classmethod
    def of(
        cls, oracle: Oracle, messages: list[dict[str, Any]], *, max_tokens: int = 12, **options: Any
    ) -> ThinkerPrompt:
        """Runs the oracle, and looks on at what enters its decoder."""
        thinker = oracle.model.thinker
        calls: list[dict[str, Any]] = []
        hook = thinker.model.register_forward_pre_hook(
            lambda module, args, kwargs: calls.append(kwargs), with_kwargs=True
        )
        try:
            answer = oracle.answer(messages, max_tokens=max_tokens, audio=False, **options)
            prefill = calls[0]
            delta = int(thinker.rope_deltas) if thinker.rope_deltas is not None else 0
            with torch.no_grad():
                outputs = thinker.model(
                    inputs_embeds=prefill["inputs_embeds"],
                    position_ids=prefill["position_ids"],
                    attention_mask=prefill.get("attention_mask"),
                    visual_pos_masks=prefill.get("visual_pos_masks"),
                    deepstack_visual_embeds=prefill.get("deepstack_visual_embeds"),
                    output_hidden_states=True,
                )
                logits = thinker.lm_head(outputs.last_hidden_state[0]).float()
        finally:
            hook.remove()
        # transformers makes them floats, which never have a fraction.
        assert bool((prefill["position_ids"] % 1 == 0).all())
        ids = torch.tensor(answer.prompt_token_ids)
        config = oracle.model.config.thinker_config
        visual = (ids == config.image_token_id) | (ids == config.video_token_id)
        media = visual | (ids == config.audio_token_id)
        places = media.nonzero().squeeze(1)
        tap = oracle.model.config.talker_config.accept_hidden_layer
        return cls(
            prompt_token_ids=answer.prompt_token_ids,
            token_ids=answer.token_ids,
            embeds=prefill["inputs_embeds"][0, places].clone(),
            media_positions=places,
            visual_positions=visual.nonzero().squeeze(1),
            deepstack=tuple(prefill.get("deepstack_visual_embeds") or ()),
            positions=RotaryPositions(prefill["position_ids"][-3:, 0].long(), delta),
            hidden=outputs.hidden_states[tap][0, places].clone(),
            vocab_size=config.text_config.vocab_size,
            max_tokens=max_tokens,
            logprobs=logits.log_softmax(dim=-1),
        )

    @property
    def key_token_ids(self) -> list[int]:
        """Placeholders replaced by ids that stand for what is there."""
        keys = list(self.prompt_token_ids)
        for place, row in zip(self.media_positions.tolist(), self.embeds, strict=True):
            digest = hashlib.sha256(row.numpy().tobytes()).digest()
            keys[place] = self.vocab_size + int.from_bytes(digest[:7], "big")
        return keys

    def request(self, request_id: str, *, wants_hidden: bool = True) -> EngineRequest:
        return EngineRequest(
            request_id,
            self.prompt_token_ids,
            RequestSampling(temperature=0.0, max_new_tokens=self.max_tokens),
            state=ThinkerState(
                self.media_positions, self.embeds, self.visual_positions, self.deepstack, wants_hidden
            ),
            positions=self.positions,
            key_token_ids=self.key_token_ids,
        )
