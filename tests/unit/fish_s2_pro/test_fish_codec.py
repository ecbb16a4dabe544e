"""Fish Audio's codec: equal to a plain computation of it, in any pieces and any company."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from fish_codec_oracle import FishCodec
from fish_s2_oracle import CODES, FRAME, GROUPS, SHAPE

from sglang_omni.models.fish_s2_pro import tiny_checkpoint
from sglang_omni.models.fish_s2_pro.components.codec import FishCodecDecoder, FishCodecEncoder
from sglang_omni.models.fish_s2_pro.components.codec_weights import CodecWeights, frame_length

# More than the windows of the transformers: 128 frames, and 512 rows of a quarter of a frame.
FRAMES = 170
# The quiet end of the speech: samples are within [-1, 1], their deviation 0.2.
TOLERANCE = 1e-5


class Made(NamedTuple):
    path: Path
    oracle: FishCodec
    decoder: FishCodecDecoder
    encoder: FishCodecEncoder


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    torch.set_num_threads(1)
    path = tiny_checkpoint.make(tmp_path_factory.mktemp("fish-codec"), seed=5, **SHAPE)
    return Made(
        path,
        FishCodec(path, head_dim=16, encoder_rates=SHAPE["encoder_rates"]),
        FishCodecDecoder.load(path, torch.float32, "cpu"),
        FishCodecEncoder.load(path, torch.float32, "cpu"),
    )


def codes_of(seed: int, frames: int = FRAMES) -> torch.Tensor:
    """(1, groups, frames), some of the residual ones beyond what their codebooks have."""
    return torch.randint(0, CODES, (1, GROUPS, frames), generator=torch.Generator().manual_seed(seed))


def wave_of(seed: int, samples: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(0, 0.3, samples).astype(np.float32))


@pytest.mark.parametrize("sizes", [[FRAMES], [3, 6, 12, *[24] * 6, 5], [1] * 20 + [150]])
def test_speech_in_any_pieces_is_the_whole(made: Made, sizes: list[int]) -> None:
    codes = codes_of(0)
    expected = made.oracle.decode(codes[0].T)
    with torch.inference_mode():
        stream, other = made.decoder.open_stream(), made.decoder.open_stream()
        pieces = []
        for piece in codes.split(sizes, dim=-1):
            pieces.append(stream.decode(piece))
            assert pieces[-1].shape == (1, 1, FRAME * piece.shape[-1])
            other.decode(torch.zeros_like(piece))  # two streams share nothing
    assert expected.std() > 0.1, "too quiet to tell"
    assert (torch.cat(pieces, dim=-1)[0, 0] - expected).abs().max() < TOLERANCE


def test_streams_decoded_together_are_each_the_whole(made: Made) -> None:
    codes = torch.cat([codes_of(seed) for seed in range(3)])
    heads = (5, 130, 20)  # where they stand when they meet: before and behind what the transformer sees
    with torch.inference_mode():
        streams = [made.decoder.open_stream() for _ in codes]
        pieces = [
            [stream.decode(row[None, :, :head])[0, 0]]
            for stream, row, head in zip(streams, codes, heads, strict=True)
        ]
        for start, stop in ((0, 8), (8, 32)):
            batch = torch.stack(
                [row[:, head + start : head + stop] for row, head in zip(codes, heads, strict=True)]
            )
            with pytest.raises(IndexError):  # of a batch that fails, nothing stays
                made.decoder.decode_batch(streams, batch - 100_000)
            waves = made.decoder.decode_batch(streams, batch)
            for piece, wave in zip(pieces, waves, strict=True):
                piece.append(wave[0])
    for row, piece, head in zip(codes, pieces, heads, strict=True):
        expected = made.oracle.decode(row[:, : head + 32].T)
        assert (torch.cat(piece) - expected).abs().max() < TOLERANCE


@pytest.mark.parametrize("frames_at_once", [1000, 7])
def test_recordings_encoded_together_have_each_its_codes(made: Made, frames_at_once: int) -> None:
    clips = [wave_of(seed, samples) for seed, samples in ((0, FRAMES * FRAME - 17), (1, 1), (2, 40 * FRAME))]
    encoded = made.encoder.encode(clips, frames_at_once)
    assert [len(codes) for codes in encoded] == [FRAMES, 1, 40]
    for clip, codes in zip(clips, encoded, strict=True):
        assert torch.equal(codes, made.oracle.encode(clip))
    assert len(encoded[0][:, 0].unique()) > 5, "too few codes to tell"
    assert int(encoded[0][:, 1:].max()) < 32


def test_the_sizes_are_those_of_the_tensors(made: Made) -> None:
    assert frame_length(made.path) == made.encoder.frame_length == made.decoder.total_upsample == FRAME
    assert made.decoder.codebook_sizes == made.encoder.codebook_sizes == [CODES, *[32] * (GROUPS - 1)]


def rewritten(made: Made, folder: Path, change: Any) -> Path:
    torch.save(change(torch.load(made.path / "codec.pth")), folder / "codec.pth")
    return folder


@pytest.mark.parametrize(
    "wrap",
    [
        lambda tensors: {"state_dict": tensors, "epoch": 3},
        lambda tensors: {"generator": tensors},
        lambda tensors: {f"generator.{name}": t for name, t in tensors.items()} | {"other": torch.zeros(1)},
    ],
)
def test_a_file_may_be_wrapped_as_trainings_write_it(made: Made, tmp_path: Path, wrap: Any) -> None:
    wrapped = FishCodecDecoder.load(rewritten(made, tmp_path, wrap), torch.float32, "cpu")
    codes = codes_of(1, 8)
    with torch.inference_mode():
        assert torch.equal(wrapped(codes), made.decoder(codes))


@pytest.mark.parametrize(
    "name",
    [
        "decoder.model.2.block.3.block.1.conv.parametrizations.weight.original1",
        "quantizer.post_module.layers.1.attention.wo.weight",
        "quantizer.quantizer.quantizers.3.out_proj.bias",
    ],
)
def test_a_missing_tensor_is_named(made: Made, tmp_path: Path, name: str) -> None:
    path = rewritten(made, tmp_path, lambda tensors: {k: v for k, v in tensors.items() if k != name})
    with pytest.raises(ValueError, match=f"lacks the tensor '{name}'"):
        FishCodecDecoder.load(path, torch.float32, "cpu")


def test_what_is_no_codec_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"lacks codec\.pth"):
        CodecWeights(tmp_path, torch.float32, "cpu")
    (tmp_path / "codec.pth").write_bytes(b"PK not a checkpoint")
    with pytest.raises(ValueError, match="corrupted"):
        CodecWeights(tmp_path, torch.float32, "cpu")
    torch.save({"a": torch.zeros(1)}, tmp_path / "codec.pth")
    with pytest.raises(ValueError, match="the file of another codec"):
        FishCodecDecoder.load(tmp_path, torch.float32, "cpu")
