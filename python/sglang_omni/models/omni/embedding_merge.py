"""Joins what the encoders gave for a prompt's media, in the thinker's process and where the rows lie."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from sglang_omni.model_runner.media import ThinkerState
from sglang_omni.models.omni.checkpoint import MediaTokens
from sglang_omni.models.omni.memory import MAX_JOINED_BYTES
from sglang_omni.models.omni.payloads import MediaShape, ThinkerInput, VisualOutput
from sglang_omni.proto import StagePayload


def merge_sources(payloads: Mapping[str, StagePayload]) -> StagePayload:
    """The thinker's ``merge_fn``: the prompt's payload with the encoders' outputs, which stay as they are."""
    prompt = payloads["preprocess"]
    outputs = {
        name: payloads[source].data[name]
        for source, name in (("image_encoder", "visuals"), ("audio_encoder", "audios"))
        if source in payloads
    }
    return StagePayload(prompt.request_id, prompt.request, {**prompt.data, **outputs})


class EmbeddingMerge:
    """Makes the media rows of a prompt from the encoders' outputs.

    Rows that are on the thinker's GPU stay there, and those on the host stay on the host. A single output in
    the order of the prompt is not copied. Positions are on the host.

    Args:
        tokens: The placeholders.
        device: Where the thinker computes.
    """

    def __init__(self, tokens: MediaTokens, device: str = "cpu") -> None:
        self._tokens = tokens
        self._is_on_gpu = torch.device(device).type == "cuda"
        # Whose rows on the GPU are copies, and not what an encoder has lent.
        self._joined: weakref.WeakSet[ThinkerState] = weakref.WeakSet()

    @property
    def joined_bytes(self) -> int:
        """The copies on the GPU that requests have now."""
        return sum(_nbytes([state.media_embeds, *state.deepstack]) for state in list(self._joined))

    def state(self, data: ThinkerInput, *, wants_hidden: bool) -> ThinkerState | None:
        """The media of a prompt; None if it has none.

        Raises:
            ValueError: The encoders gave another number of rows than the prompt has placeholders.
        """
        if not data["visuals"] and not data["audios"]:
            return None
        ids = torch.tensor(data["prompt_token_ids"])
        images, videos = _by_kind(data["media"], data["visuals"])
        places, rows = [], []
        for kind, token, embeds in (
            ("image", self._tokens.image, [item["embeds"] for item in images]),
            ("video", self._tokens.video, [item["embeds"] for item in videos]),
            ("audio", self._tokens.audio, [item["embeds"] for item in data["audios"]]),
        ):
            where = _places(ids, token)
            found = sum(len(part) for part in embeds)
            if found != len(where):
                raise ValueError(
                    f"the prompt has {len(where)} {kind} placeholders, and the encoder gave {found} rows"
                )
            places.append(where)
            rows.extend(embeds)
        media, order = _in_order(torch.cat(places))
        visual, visual_order = _in_order(torch.cat(places[:2]))
        levels = list(zip(*(item["deepstack"] for item in (*images, *videos)), strict=True))
        is_copied = len(rows) > 1 or order is not None
        device = self._device_for([*rows, *(part for level in levels for part in level)], is_copied)
        deepstack = tuple(_joined(level, visual_order, device) for level in levels)
        state = ThinkerState(media, _joined(rows, order, device), visual, deepstack, wants_hidden)
        if is_copied and device.type == "cuda":
            self._joined.add(state)
        return state

    def _device_for(self, parts: Sequence[Tensor], is_copied: bool) -> torch.device:
        """The GPU's if rows are on it, and a copy of them has room beside those that there are."""
        gpu = next((part.device for part in parts if part.is_cuda), None)
        if gpu is None or not self._is_on_gpu:
            return torch.device("cpu")
        has_room = not is_copied or self.joined_bytes + _nbytes(parts) <= MAX_JOINED_BYTES
        return gpu if has_room else torch.device("cpu")


def _by_kind(
    media: MediaShape, visuals: Sequence[VisualOutput]
) -> tuple[Sequence[VisualOutput], Sequence[VisualOutput]]:
    """Images and videos; ``visuals`` holds the images first."""
    count = len(media["image_grids"])
    return visuals[:count], visuals[count:]


def _places(ids: Tensor, token: int) -> Tensor:
    return (ids == token).nonzero().squeeze(1)


def _in_order(places: Tensor) -> tuple[Tensor, Tensor | None]:
    """Positions ascending, and the order that makes them so; None if they are."""
    if bool((places[1:] > places[:-1]).all()):
        return places, None
    order = places.argsort()
    return places[order], order


def _nbytes(parts: Sequence[Tensor]) -> int:
    return sum(part.nbytes for part in parts)


def _joined(rows: Sequence[Tensor], order: Tensor | None, device: torch.device) -> Tensor:
    """The rows on ``device``, in this order: without a copy if there is nothing to do."""
    moved = [part.to(device) for part in rows]
    whole = moved[0] if len(moved) == 1 else torch.cat(moved)
    return whole if order is None else whole[order.to(device)]
