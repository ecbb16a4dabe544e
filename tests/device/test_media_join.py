"""The encoders' rows are joined on the GPU where they lie, without the host."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fake_cuda import DEVICE, Step, fake_gpu

from sglang_omni.model_runner import media
from sglang_omni.models.omni import embedding_merge as joining
from sglang_omni.models.omni.embedding_merge import EmbeddingMerge
from sglang_omni.models.qwen3_omni.components.checkpoint import TokenIds

TOKENS = TokenIds(audio=7, image=8, video=9)
HIDDEN, LEVELS = 2048, 3


def rows(count: int, device: str = DEVICE) -> torch.Tensor:
    return torch.zeros(count, HIDDEN, dtype=torch.bfloat16).to(device)


def visual(count: int, device: str = DEVICE) -> dict[str, Any]:
    return {"embeds": rows(count, device), "deepstack": [rows(count, device) for _ in range(LEVELS)]}


@pytest.fixture
def places(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the media are in the prompt, which fake tensors cannot tell: two kinds, the second one first."""
    where = {8: torch.tensor([5, 6]), 9: torch.tensor([], dtype=torch.int64), 7: torch.tensor([1, 2, 3])}
    monkeypatch.setattr(joining, "_places", lambda ids, token: where[token])
    monkeypatch.setattr(joining, "_in_order", lambda at: (at, at if len(at) == 5 else None))
    # Of a state's positions the last one is read, on the host.
    monkeypatch.setattr(joining.ThinkerState, "__post_init__", lambda state: None)


def prompt(visuals: list[Any], audios: list[Any]) -> Any:
    return {
        "prompt_token_ids": [0, 7, 7, 7, 0, 8, 8],
        "media": {"image_grids": [(1, 2, 4)] * len(visuals)},
        "visuals": visuals,
        "audios": audios,
    }


@pytest.mark.usefixtures("places")
def test_two_kinds_are_joined_on_the_gpu() -> None:
    join = EmbeddingMerge(TOKENS, DEVICE)
    with fake_gpu():
        data = prompt([visual(2)], [{"embeds": rows(3)}])
        with Step() as step:
            state = join.state(data, wants_hidden=True)
    assert state is not None
    assert {part.device for part in (state.media_embeds, *state.deepstack)} == {torch.device(DEVICE)}
    assert state.media_positions.device.type == state.visual_positions.device.type == "cpu"
    # One join in the prompt's order; the deepstack levels of a single picture stay what they are.
    assert step.host_reads == 0
    assert step.launches == {"cat": 1, "index": 1}
    assert step.uploads == 1
    assert join.joined_bytes == (5 + 2 * LEVELS) * HIDDEN * 2
    del state
    assert join.joined_bytes == 0


@pytest.mark.usefixtures("places")
def test_beyond_their_share_rows_are_joined_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "MAX_JOINED_BYTES", (5 + 2 * LEVELS) * HIDDEN * 2)
    join = EmbeddingMerge(TOKENS, DEVICE)
    with fake_gpu():
        states = [join.state(prompt([visual(2)], [{"embeds": rows(3)}]), wants_hidden=True) for _ in range(2)]
    assert [state.media_embeds.device.type for state in states if state] == ["cuda", "cpu"]
    assert [state.deepstack[0].device.type for state in states if state] == ["cuda", "cpu"]


@pytest.mark.usefixtures("places")
def test_rows_that_came_as_copies_stay_on_the_host_until_they_are_used() -> None:
    with fake_gpu(), Step() as step:
        data = prompt([visual(2, "cpu")], [{"embeds": rows(3, "cpu")}])
        state = EmbeddingMerge(TOKENS, DEVICE).state(data, wants_hidden=True)
    assert state is not None
    assert state.media_embeds.device.type == "cpu"
    assert step.uploads == step.num_launches == 0


@pytest.mark.usefixtures("places")
def test_a_copy_beside_what_was_lent_joins_it() -> None:
    with fake_gpu(), Step() as step:
        data = prompt([visual(2)], [{"embeds": rows(3, "cpu")}])
        before = step.uploads
        state = EmbeddingMerge(TOKENS, DEVICE).state(data, wants_hidden=True)
    assert state is not None
    assert state.media_embeds.device == torch.device(DEVICE)
    assert step.uploads - before == 2
    assert step.host_reads == 0


def test_a_batch_may_hold_lent_and_copied_rows() -> None:
    with fake_gpu():
        parts = [rows(2, "cpu"), rows(3)]
        with Step() as step:
            whole = media._joined(parts)
    assert (whole.device, whole.shape) == (torch.device(DEVICE), (5, HIDDEN))
    assert (step.uploads, step.host_reads) == (1, 0)
