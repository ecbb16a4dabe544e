"""The part of a conversation that the talker is prompted with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from sglang_omni.models.qwen3_omni.components.checkpoint import CodecIds, TokenIds
from sglang_omni.proto import RequestError

# <|im_start|>, assistant, newline: what an answer begins with.
HEADER = 3
# Rows after the user's: the header, four of silence, the beginning of speech, the answer's first token.
ANSWER_ROWS = HEADER + 6


class TalkerPrompt(NamedTuple):
    """P input rows: all user turns, without system and earlier assistant turns, and the answer's beginning.

    Attributes:
        row_ids: (P,) int64, the thinker's token of each row. The last stands for the answer's first token.
        media_rows: (m,) int64, rows whose token is a placeholder of media.
        media_index: (m,) int64, which of all the prompt's placeholders each of them is.
        codec_ids: (6,) int64, talker tokens that are added to the last rows.
        answer_ids: Tokens of the answer that the prompt holds already, after the assistant's header.
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
        """What stands for the rows in the talker's own vocabulary: a token that it never says.

        So a penalty on what the prompt holds, which concerns no code, has no effect.
        """
        return [int(self.codec_ids[-1])] * self.num_rows

    @property
    def rope_ids(self) -> list[int]:
        """What rotary positions are computed from: the user's tokens, then padding."""
        pad = int(self.row_ids[-ANSWER_ROWS + HEADER])
        return [*self.row_ids[:-ANSWER_ROWS].tolist(), *[pad] * ANSWER_ROWS]


def talker_prompt(
    prompt_token_ids: Sequence[int], tokens: TokenIds, codec: CodecIds, speaker_id: int
) -> TalkerPrompt:
    """Reads the turns of a thinker's prompt.

    Args:
        speaker_id: In the talker's vocabulary.

    Raises:
        RequestError: The prompt does not end with an assistant turn, which is what the talker would speak.
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
