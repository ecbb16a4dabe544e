"""The codec Mimi: streams of any pieces equal transformers' decoding of the whole, and codes its encoding."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from csm_oracle import CsmOracle
from graph_recorders import FakeRecorder

from sglang_omni.models.codecs import streamed
from sglang_omni.models.codecs.mimi import MimiEncoder, StreamedMimi, VoiceRecording

FRAMES, STREAMS = 33, 3
# Of samples within [-1, 1]: the rounding of convolutions over longer or shorter inputs.
CLOSE = {"rtol": 0.0, "atol": 1e-5}


@pytest.fixture(scope="module")
def codec(csm: CsmOracle) -> StreamedMimi:
    return streamed_mimi(csm)


def settings(csm: CsmOracle, **changes: Any) -> tuple[Path, str, dict[str, Any], torch.dtype, str]:
    fields = json.loads((csm.path / "config.json").read_text())["codec_config"]
    return csm.path, "codec_model.", {**fields, **changes}, torch.float32, "cpu"


def streamed_mimi(csm: CsmOracle, **changes: Any) -> StreamedMimi:
    return StreamedMimi.load(*settings(csm, **changes))


@pytest.fixture(scope="module")
def codes() -> torch.Tensor:
    return torch.randint(64, (STREAMS, 4, FRAMES), generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def whole(csm: CsmOracle, codes: torch.Tensor) -> torch.Tensor:
    return torch.stack([csm.decode(each.t()) for each in codes])


@pytest.mark.parametrize("cuts", [[1] * FRAMES, [2, 4, 8, 16, 3], [FRAMES], [20, 13]])
def test_pieces_are_the_whole(
    codec: StreamedMimi, codes: torch.Tensor, whole: torch.Tensor, cuts: list[int]
) -> None:
    streams = [codec.open_stream() for _ in codes]
    with torch.inference_mode():
        pieces = [codec.decode_batch(streams, piece) for piece in codes.split(cuts, -1)]
    assert [piece.shape[-1] for piece in pieces] == [1920 * cut for cut in cuts]
    assert 0.1 < whole.abs().max() < 1
    torch.testing.assert_close(torch.cat(pieces, -1)[:, 0], whole, **CLOSE)


def test_streams_at_different_places_are_decoded_together(
    codec: StreamedMimi, codes: torch.Tensor, whole: torch.Tensor
) -> None:
    first, second = codec.open_stream(), codec.open_stream()
    with torch.inference_mode():
        # Longer than the transformer's window of 12 steps, two of which are a frame.
        first.decode(codes[:1, :, :17])
        both = codec.decode_batch([first, second], torch.cat((codes[:1, :, 17:23], codes[1:2, :, :6])))
    torch.testing.assert_close(both[0, 0], whole[0, 1920 * 17 : 1920 * 23], **CLOSE)
    torch.testing.assert_close(both[1, 0], whole[1, : 1920 * 6], **CLOSE)


def test_graphs_decode_the_same(
    csm: CsmOracle, codes: torch.Tensor, whole: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = FakeRecorder()
    monkeypatch.setattr(streamed, "recorder_for", lambda device, cuda_graph: recorder)
    codec = streamed_mimi(csm)
    codec.record_graphs([2, 11], 22, cuda_graph=True)
    streams = [codec.open_stream() for _ in range(2)]
    with torch.inference_mode():
        pieces = [codec.decode_batch(streams, piece) for piece in codes[:2].split([2, 11, 11, 9], -1)]
    assert len(recorder.replayed) == 3
    torch.testing.assert_close(torch.cat(pieces, -1)[:, 0], whole[:2], **CLOSE)


def test_a_failed_piece_leaves_its_stream_unchanged(
    codec: StreamedMimi, codes: torch.Tensor, whole: torch.Tensor
) -> None:
    stream = codec.open_stream()
    with torch.inference_mode():
        begin = stream.decode(codes[:1, :, :5])
        with pytest.raises(IndexError):
            stream.decode(codes[:1, :, 5:6] + 64)
        rest = stream.decode(codes[:1, :, 5:])
    torch.testing.assert_close(torch.cat((begin, rest), -1)[0, 0], whole[0], **CLOSE)


def test_recordings_have_transformers_codes(csm: CsmOracle) -> None:
    sounds = 0.2 * torch.randn(2, 24_077, generator=torch.Generator().manual_seed(2))
    encoder = MimiEncoder.load(*settings(csm))
    items = [VoiceRecording(key=bytes([i]), samples=sound) for i, sound in enumerate(sounds)]
    together = [codes for (codes,) in encoder.encode(items)]
    for sound, codes in zip(sounds, together, strict=True):
        expected = csm.model.codec_model.encode(sound[None, None]).audio_codes[0].t()
        assert codes.shape == (13, 4)
        assert torch.equal(codes, expected)
    assert not torch.equal(*together)


def test_a_codec_that_looks_ahead_is_refused(csm: CsmOracle) -> None:
    with pytest.raises(ValueError, match="see later samples"):
        streamed_mimi(csm, use_causal_conv=False)


def test_a_codec_without_a_tensor_is_reported(csm: CsmOracle) -> None:
    with pytest.raises(ValueError, match=r"decoder_transformer\.layers\.2"):
        streamed_mimi(csm, num_hidden_layers=3)
    with pytest.raises(ValueError, match=r"config\.json does not have.*decoder_transformer\.layers\.1"):
        streamed_mimi(csm, num_hidden_layers=1)
    with pytest.raises(ValueError, match="does not have the tensors of its config"):
        MimiEncoder.load(*settings(csm, num_hidden_layers=3))
