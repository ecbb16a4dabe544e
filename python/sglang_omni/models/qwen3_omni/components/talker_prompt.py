"""The talker's prompt: the part of a conversation that it reads before the answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from sglang_omni.models.qwen3_omni.components.checkpoint import CodecIds, TokenIds
from sglang_omni.proto import RequestError

# An answer begins with <|im_start|>, assistant, newline.
HEADER = 3
# Rows after the user's: the header, four of silence, the start of speech, the answer's first token.
ANSWER_ROWS = HEADER + 6


class TalkerPrompt(NamedTuple):
    """P input rows: all user turns, without system and earlier assistant turns, and the start of the answer.

    Attributes:
        row_ids: (P,) int64, the thinker's token of each row. The last stands for the answer's first token.
        media_rows: (m,) int64, the rows of media placeholders.
        media_index: (m,) int64, their indices among all placeholders of the thinker's prompt.
        codec_ids: (6,) int64, talker tokens whose embeddings are added to the last rows.
        answer_ids: Tokens of the answer that are in the prompt already, after the assistant's header.
    """

    row_ids: Tensor
    media_rows: Tensor
    media_index: Tensor
    codec_ids: Tensor
    answer_ids: list[int]

    @property
    def num_rows(self) -> int:
        return len(self.row_ids)

    @property
    def token_ids(self) -> list[int]:
        """For each row a token that the talker never chooses, so that penalties on the prompt do nothing."""
        return [int(self.codec_ids[-1])] * self.num_rows

    @property
    def rope_ids(self) -> list[int]:
        """Tokens for the rotary positions: the user's, then padding."""
        pad = int(self.row_ids[-ANSWER_ROWS + HEADER])
        return [*self.row_ids[:-ANSWER_ROWS].tolist(), *[pad] * ANSWER_ROWS]


def talker_prompt(
    prompt_token_ids: Sequence[int], tokens: TokenIds, codec: CodecIds, speaker_id: int
) -> TalkerPrompt:
    """The talker's prompt for a prompt of the thinker.

    Args:
        speaker_id: The voice's id in the talker's vocabulary.

    Raises:
        RequestError: The prompt does not end with an assistant turn, which the talker would speak.
    """
    ids = torch.tensor(prompt_token_ids)
    places = torch.arange(len(ids))
    starts = torch.where(ids == tokens.im_start, places, 0).cummax(0).values
    roles = ids[(starts + 1).clamp_(max=len(ids) - 1)]
    user = roles == tokens.user
    answer = int(starts[-1])
    if roles[-1] != tokens.assistant or answer + HEADER > len(ids):
        raise RequestError(
            "speech is of the assistant's answer: the prompt must end with the header of an assistant turn",
            param="messages",
            code="unsupported_value",
        )
    media = torch.isin(ids, torch.tensor(sorted(tokens.media)))
    row_ids = torch.cat(
        (
            ids[user],
            ids[answer : answer + HEADER],
            torch.tensor([*[tokens.tts_pad] * 4, tokens.tts_bos, tokens.tts_pad]),
        )
    )
    return TalkerPrompt(
        row_ids=row_ids,
        media_rows=media[user].nonzero().squeeze(1),
        media_index=(media.cumsum(0) - 1)[user & media],
        codec_ids=torch.tensor(
            (codec.nothink, codec.think_bos, codec.think_eos, speaker_id, codec.pad, codec.bos)
        ),
        answer_ids=ids[answer + HEADER :].tolist(),
    )
