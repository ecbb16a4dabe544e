"""The aggregate stage: joins a prompt and the encoders' rows to the thinker's input."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from sglang_omni.models.qwen3_omni.components.checkpoint import TokenIds
from sglang_omni.models.qwen3_omni.payloads import (
    AudioOutput,
    MediaShape,
    Prompt,
    ThinkerInput,
    VisualOutput,
)
from sglang_omni.proto import StagePayload


def merge_sources(payloads: Mapping[str, StagePayload]) -> StagePayload:
    """The stage's ``merge_fn``: the prompt's payload, the encoders' inputs replaced by their outputs."""
    prompt = payloads["preprocess"]
    outputs = {
        name: payloads[source].data[name]
        for source, name in (("image_encoder", "visuals"), ("audio_encoder", "audios"))
        if source in payloads
    }
    return StagePayload(prompt.request_id, prompt.request, {**prompt.data, **outputs})


class Aggregate:
    """Converts the merged payload to the thinker's."""

    def __init__(self, tokens: TokenIds) -> None:
        self._tokens = tokens

    def __call__(self, payload: StagePayload) -> StagePayload:
        data = payload.data
        visuals, audios = data["visuals"], data["audios"]
        thinker_input = self.thinker_input(data, visuals, audios)
        return StagePayload(payload.request_id, payload.request, thinker_input)

    def thinker_input(
        self, prompt: Prompt, visuals: Sequence[VisualOutput], audios: Sequence[AudioOutput]
    ) -> ThinkerInput:
        """
        Raises:
            ValueError: The encoders gave another number of rows than the prompt has placeholders.
        """
        text = ThinkerInput(
            prompt_token_ids=prompt["prompt_token_ids"],
            key_token_ids=prompt["key_token_ids"],
            positions=prompt["positions"],
            position_delta=prompt["position_delta"],
            media_positions=None,
            media_embeds=None,
            visual_positions=None,
            deepstack=[],
        )
        if not visuals and not audios:
            return text
        ids = torch.tensor(prompt["prompt_token_ids"])
        images, videos = _by_kind(prompt["media"], visuals)
        places, rows = [], []
        for kind, token, items in (
            ("image", self._tokens.image, images),
            ("video", self._tokens.video, videos),
            ("audio", self._tokens.audio, audios),
        ):
            where = (ids == token).nonzero().squeeze(1)
            embeds = [item["embeds"] for item in items]
            found = sum(len(rows) for rows in embeds)
            if found != len(where):
                raise ValueError(
                    f"the prompt has {len(where)} {kind} placeholders, and the encoder gave {found} rows"
                )
            places.append(where)
            rows.extend(embeds)
        media = torch.cat(places)
        order = media.argsort()
        visual = torch.cat(places[:2])
        visual_order = visual.argsort()
        levels = [item["deepstack"] for item in (*images, *videos)]
        return {
            **text,
            "media_positions": media[order],
            "media_embeds": torch.cat(rows)[order],
            "visual_positions": visual[visual_order],
            "deepstack": [torch.cat(level)[visual_order] for level in zip(*levels, strict=True)],
        }


def _by_kind(
    media: MediaShape, visuals: Sequence[VisualOutput]
) -> tuple[Sequence[VisualOutput], Sequence[VisualOutput]]:
    """Images and videos; ``visuals`` holds the images first."""
    count = len(media["image_grids"])
    return visuals[:count], visuals[count:]
