"""Codes become the sound of transformers' token2wav: whole, in chunks, as they come, and in batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from qwen2_5_omni_oracle import OmniOracle
from scheduler_runs import running

from sglang_omni.models.qwen2_5_omni.components.checkpoint import Qwen25OmniCheckpoint
from sglang_omni.models.qwen2_5_omni.components.token2wav import Token2Wav, load_token2wav
from sglang_omni.models.qwen2_5_omni.speaking import Speaking
from sglang_omni.pipeline.stage.stream_queue import StreamItem
from sglang_omni.proto import OmniRequest, StagePayload
from sglang_omni.scheduling.messages import IncomingMessage

# A code is 480 samples here; blocks have 12 codes, chunks 3 blocks, and the future is one.
FITS_ONE_CHUNK, LONG = 47, 101


@pytest.fixture(scope="module")
def oracle(qwen2_5_omni: Any) -> OmniOracle:
    return qwen2_5_omni()


@pytest.fixture(scope="module")
def checkpoint(oracle: OmniOracle) -> Qwen25OmniCheckpoint:
    return Qwen25OmniCheckpoint.from_dir(oracle.path)


@pytest.fixture(scope="module")
def codec(checkpoint: Qwen25OmniCheckpoint) -> Token2Wav:
    return load_token2wav(checkpoint, "cpu")


@pytest.fixture
def stage(checkpoint: Qwen25OmniCheckpoint, codec: Token2Wav) -> Iterator[Speaking]:
    with running(Speaking(checkpoint, codec)) as scheduler:
        yield scheduler


def codes_of(seed: int, count: int) -> torch.Tensor:
    return torch.randint(0, 96, (count,), generator=torch.Generator().manual_seed(seed))


def reference(oracle: OmniOracle, codes: torch.Tensor, voice: str = "Chelsie", seed: int = 0) -> np.ndarray:
    speaker = oracle.model.speaker_map[voice]
    torch.manual_seed(seed)
    with torch.inference_mode():
        return oracle.model.token2wav(
            codes.unsqueeze(0), conditioning=speaker["cond"], reference_mel=speaker["ref_mel"]
        ).numpy()


def ask(
    stage: Speaking, *requests: tuple[torch.Tensor, int, dict[str, Any]]
) -> tuple[list[list[np.ndarray]], list[dict[str, Any]]]:
    """The chunks and the result of each; their codes come in turns, in pieces of so many."""
    for index, (_, _, params) in enumerate(requests):
        payload = StagePayload(str(index), OmniRequest(None, {"stream": True, **params}), {})
        stage.inbox.put(IncomingMessage(str(index), "new_request", payload))
    pieces = [list(codes.split(size)) for codes, size, _ in requests]
    for turn in range(max(map(len, pieces))):
        for index, each in enumerate(pieces):
            if turn < len(each):
                item = StreamItem(turn, each[turn], "talker")
                stage.inbox.put(IncomingMessage(str(index), "stream_chunk", item))
    chunks: list[list[np.ndarray]] = [[] for _ in requests]
    results: dict[int, Any] = {}
    for index in range(len(requests)):
        stage.inbox.put(IncomingMessage(str(index), "stream_done"))
    while len(results) < len(requests):
        message = stage.outbox.get(timeout=60)
        assert message.type != "error", message.data
        index = int(message.request_id)
        if message.type == "stream":
            chunks[index].append(message.data["audio_data"])
        else:
            results[index] = message.data.data
    return chunks, [results[index] for index in range(len(requests))]


def assert_sounds_like(found: np.ndarray, expected: np.ndarray) -> None:
    assert expected.std() > 0.01
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("count", "options"),
    [(FITS_ONE_CHUNK, {}), (LONG, {"stage_params": {"code2wav": {"chunking": "reference"}}})],
)
def test_whole_sound_is_the_references(
    oracle: OmniOracle, stage: Speaking, count: int, options: dict[str, Any]
) -> None:
    codes = codes_of(1, count)
    _, results = ask(stage, (codes, 5, {"seed": 3, **options}), (codes, count, {"voice": "ethan", **options}))
    assert_sounds_like(results[0]["audio_data"], reference(oracle, codes, seed=3))
    assert_sounds_like(results[1]["audio_data"], reference(oracle, codes, "Ethan"))
    assert results[0]["codes"].tolist() == [[code] for code in codes.tolist()]


def test_chunks_joined_are_the_sound_however_the_codes_come(stage: Speaking) -> None:
    codes = codes_of(2, LONG)
    chunks, (first, again) = ask(stage, (codes, 1, {"seed": 1}), (codes, LONG, {"seed": 1}))
    assert len(chunks[0]) > 2
    np.testing.assert_array_equal(np.concatenate(chunks[0]), first["audio_data"])
    assert len(first["audio_data"]) == LONG * 480
    assert_sounds_like(again["audio_data"], first["audio_data"])


def test_sound_begins_before_the_codes_end(stage: Speaking) -> None:
    payload = StagePayload("r", OmniRequest(None, {"stream": True}), {})
    stage.inbox.put(IncomingMessage("r", "new_request", payload))
    stage.inbox.put(IncomingMessage("r", "stream_chunk", StreamItem(0, codes_of(3, 48), "talker")))
    message = stage.outbox.get(timeout=60)
    assert message.type == "stream"
    assert len(message.data["audio_data"]) == (72 - stage.token2wav.vocoder.margin) * 240 > 0


def test_chunks_differ_from_the_whole_only_by_what_blocks_further_away_tell(
    oracle: OmniOracle, codec: Token2Wav, checkpoint: Qwen25OmniCheckpoint
) -> None:
    codes = codes_of(4, LONG)
    whole = reference(oracle, codes)
    errors = []
    for blocks in (1, 3, 9):
        with running(Speaking(checkpoint, codec, chunk_blocks=blocks)) as stage:
            _, (result,) = ask(stage, (codes, 9, {}))
            errors.append(float(np.sqrt(np.mean((result["audio_data"] - whole) ** 2)) / whole.std()))
    # The last takes all codes for one chunk.
    assert errors[2] < 4e-6 < min(errors[:2])
    assert max(errors[:2]) < 1e-2


def test_a_batch_sounds_like_each_alone(oracle: OmniOracle, stage: Speaking) -> None:
    asked = [(codes_of(seed, 30), 30, {"seed": seed, "voice": voice}) for seed, voice in
             ((1, "chelsie"), (2, "ethan"), (3, "ethan"))]  # fmt: skip
    _, results = ask(stage, *asked)
    for (codes, _, params), result in zip(asked, results, strict=True):
        right = reference(oracle, codes, params["voice"].capitalize(), params["seed"])
        assert_sounds_like(result["audio_data"], right)


def test_pieces_of_mel_sound_like_the_whole(codec: Token2Wav) -> None:
    vocoder = codec.vocoder
    mel = torch.randn(
        1, 6 * vocoder.margin, codec.sampler.mel_dim, generator=torch.Generator().manual_seed(0)
    )
    whole = vocoder(mel)[0]
    begin, end, margin = 2 * vocoder.margin + 1, 3 * vocoder.margin, vocoder.margin
    piece = vocoder(mel[:, begin - margin : end + margin])[0][margin * vocoder.hop : -margin * vocoder.hop]
    wanted = whole[begin * vocoder.hop : end * vocoder.hop]
    torch.testing.assert_close(piece, wanted, rtol=0, atol=2e-6)
    # With half of that, they do not.
    half = margin // 2
    piece = vocoder(mel[:, begin - half : end + half])[0][half * vocoder.hop : -half * vocoder.hop]
    assert (piece - wanted).abs().max() > 2e-6
