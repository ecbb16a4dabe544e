"""Scores of prompts' tokens, which SGLang computes with the prompts."""

from __future__ import annotations

import torch
from sglang.srt.managers.schedule_batch import ScheduleBatch


def name_prompt_tokens(batch: ScheduleBatch) -> None:
    """Has SGLang score the prompts' tokens, if those that it compares in its cache are others.

    Called before a batch that extends prompts with ``return_logprob``.
    """
    targets = batch.extend_input_logprob_token_ids
    assert targets is not None
    row = 0
    for req, start in zip(batch.reqs, batch.extend_logprob_start_lens, strict=True):
        request, count = req.request, req.extend_len - start
        if request.key_token_ids is not None and count > 0:
            first = req.prefix_len + start + 1
            tokens = request.prompt_token_ids[first : first + count]
            targets[row : row + len(tokens)] = torch.tensor(tokens, dtype=targets.dtype)
        row += count


def take_prompt_scores(batch: ScheduleBatch) -> None:
    """Takes the scores of prompts that are complete. Called after a batch with ``return_logprob``."""
    for req in batch.reqs:
        req.take_prompt_scores()
    batch.return_logprob = any(req.return_logprob for req in batch.reqs)
