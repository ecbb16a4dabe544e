"""The codec's decoder: a stream is the whole, and the reference's pieces are the reference's."""

from __future__ import annotations

import json

import pytest
import torch
from graph_recorders import DEVICES, FakeRecorder, recorder_on

from sglang_omni.models.codecs import streamed as component
from sglang_omni.models.qwen3_omni.components import code_predictor
from sglang_omni.models.qwen3_omni.components.checkpoint import Qwen3OmniCheckpoint
from sglang_omni.models.qwen3_omni.components.code2wav import Code2Wav, load_code2wav
from sglang_omni.models.qwen3_omni.stages import create_code2wav, create_talker
from sglang_omni.models.qwen3_omni.tiny_checkpoint.make import make_tiny_checkpoint
from sglang_omni.scheduling.code2wav_scheduler import WindowStream

FRAMES = 170  # more than two layers of a 72-frame window see


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Qwen3OmniCheckpoint:
    torch.set_num_threads(1)
    path = make_tiny_checkpoint(tmp_path_factory.mktemp("code2wav"), seed=3)
    # A checkpoint may name an attention that takes other masks than the streams make.
    config = json.loads((path / "config.json").read_text())
    config["code2wav_config"]["attn_implementation"] = "eager"
    (path / "config.json").write_text(json.dumps(config))
    return Qwen3OmniCheckpoint.from_dir(path)


@pytest.fixture(scope="module")
def vocoder(checkpoint: Qwen3OmniCheckpoint) -> Code2Wav:
    return load_code2wav(checkpoint, torch.float32, "cpu")


@pytest.fixture(scope="module")
def codes() -> torch.Tensor:
    return torch.randint(0, 64, (1, 4, FRAMES), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("sizes", [[2, 4, 8, 16] + [25] * 6, [1] * 12 + [90], [FRAMES]])
def test_a_stream_in_any_pieces_is_the_whole(
    vocoder: Code2Wav, codes: torch.Tensor, sizes: list[int]
) -> None:
    with torch.inference_mode():
        stream = vocoder.open_stream()
        other = vocoder.open_stream()
        pieces = []
        for piece in codes.split(pieces_of(sizes), dim=-1):
            pieces.append(stream.decode(piece))
            other.decode(torch.zeros_like(piece))  # two streams share nothing
        whole = vocoder(codes)

    assert pieces[0].shape[-1] > (sizes[0] - 1) * vocoder.total_upsample
    together = torch.cat(pieces, dim=-1)
    assert together.shape == whole.shape
    assert (together - whole).abs().max() < 3e-6
    assert whole.std() > 0.02, "too quiet to tell"


def test_streams_decoded_together_are_each_the_whole(vocoder: Code2Wav) -> None:
    codes = torch.randint(0, 64, (3, 4, 140), generator=torch.Generator().manual_seed(1))
    heads = (5, 80, 7)  # where they stand when they meet: before and behind what the transformer sees
    with torch.inference_mode():
        streams = [vocoder.open_stream() for _ in codes]
        pieces = [
            [stream.decode(row[None, :, :head])]
            for stream, row, head in zip(streams, codes, heads, strict=True)
        ]
        for start, stop in ((0, 8), (8, 33), (33, 58)):
            batch = torch.stack(
                [row[:, head + start : head + stop] for row, head in zip(codes, heads, strict=True)]
            )
            with pytest.raises(IndexError):  # of a batch that fails, nothing stays
                vocoder.decode_batch(streams, batch + 100_000)
            waves = vocoder.decode_batch(streams, batch)
            for piece, wave in zip(pieces, waves, strict=True):
                piece.append(wave.unsqueeze(0))
        whole = vocoder(codes)

    for row, piece, head in zip(whole, pieces, heads, strict=True):
        together = torch.cat(piece, dim=-1)[0]
        assert together.shape[-1] > (head + 57) * vocoder.total_upsample
        assert (together - row[:, : together.shape[-1]]).abs().max() < 3e-6


@pytest.mark.parametrize("device", DEVICES)
def test_streams_decoded_with_graphs_are_each_the_whole(
    checkpoint: Qwen3OmniCheckpoint, vocoder: Code2Wav, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    graphed, recorder = load_code2wav(checkpoint, torch.float32, device), recorder_on(device)
    monkeypatch.setattr(component, "recorder_for", lambda *_, **__: recorder)
    # Otherwise convolutions round to 10 bits.
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    graphed.record_graphs([2, 4, 8], 32, cuda_graph=True)
    codes = torch.randint(0, 64, (5, 4, 94), generator=torch.Generator().manual_seed(2))
    with torch.inference_mode():
        streams = [graphed.open_stream() for _ in codes]
        pieces: list[list[torch.Tensor]] = [[] for _ in codes]
        start = 0
        # In and out of graphs: 8 streams of 4 frames have one, chunks of 3 have none. The codes come from the
        # host, and streams in any order.
        for number, size in enumerate([2, 4, 8, 3, *[8] * 9, 5]):
            order = torch.randperm(len(codes), generator=torch.Generator().manual_seed(number)).tolist()
            for part in (order[:3], order[3:]):
                waves = graphed.decode_batch([streams[i] for i in part], codes[part, :, start : start + size])
                for i, wave in zip(part, waves, strict=True):
                    pieces[i].append(wave.unsqueeze(0))
            start += size
        assert start == codes.shape[-1]
        whole = vocoder(codes)

    for row, piece in zip(whole, pieces, strict=True):
        together = torch.cat(piece, dim=-1)[0].cpu()
        assert together.shape == row.shape
        assert (together - row).abs().max() < (3e-6 if device == "cpu" else 1e-4)
    if isinstance(recorder, FakeRecorder):
        # The sizes of batches recorded, largest first: 16 to 1 for 2 frames, 8 to 1 for 4, 4 to 1 for 8.
        assert recorder.replayed == [2, 3, 6, 7, *[9, 10] * 10]


def test_a_graph_that_fails_leaves_the_codec_as_it_was(
    checkpoint: Qwen3OmniCheckpoint,
    vocoder: Code2Wav,
    codes: torch.Tensor,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    recorder = FakeRecorder(refused=6)
    monkeypatch.setattr(component, "recorder_for", lambda *_, **__: recorder)
    graphed = load_code2wav(checkpoint, torch.float32, "cpu")
    graphed.record_graphs([2, 4, 8], 16, cuda_graph=True)
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        "the codec, for chunks of 4 frames, is computed without CUDA graphs: "
        "operation not permitted when stream is capturing"
    ]
    with torch.inference_mode():
        stream, plain = graphed.open_stream(), vocoder.open_stream()
        for piece in codes[..., :14].split([2, 4, 8], dim=-1):
            assert torch.equal(stream.decode(piece), plain.decode(piece))
    assert recorder.replayed == [3], "the first chunk's"


@pytest.mark.parametrize("cuda_graph", [False, True])
def test_the_stages_record_their_graphs(
    checkpoint: Qwen3OmniCheckpoint, monkeypatch: pytest.MonkeyPatch, *, cuda_graph: bool
) -> None:
    asked = []

    def recorder_for(device: torch.device, *, cuda_graph: bool) -> FakeRecorder:
        asked.append((device.type, cuda_graph))
        return recorder

    for module, create in ((component, create_code2wav), (code_predictor, create_talker)):
        recorder = FakeRecorder()
        monkeypatch.setattr(module, "recorder_for", recorder_for)
        options = {"cuda_graph": cuda_graph} if create is create_code2wav else {}
        create(str(checkpoint.path), num_threads=1, **options)
        # Chunks of 2, 4, 8, 16 and 25 frames, 64 in a batch; 16 frames, with draws and without.
        assert recorder.recorded == (6 + 5 + 4 + 3 + 2 if create is create_code2wav else 5 + 5)
    assert asked == [("cpu", cuda_graph), ("cpu", True)]


def pieces_of(sizes: list[int]) -> list[int]:
    """``sizes``, cut or filled up to all frames."""
    taken: list[int] = []
    for size in sizes:
        taken.append(min(size, FRAMES - sum(taken)))
    return [size for size in taken if size] + ([FRAMES - sum(taken)] if sum(taken) < FRAMES else [])


@pytest.mark.parametrize(("size", "context"), [(300, 25), (50, 25), (40, 72), (25, 0)])
def test_the_references_pieces_bit_for_bit(
    vocoder: Code2Wav, codes: torch.Tensor, size: int, context: int
) -> None:
    with torch.inference_mode():
        stream = WindowStream(vocoder, context, gapless=False)
        ours = torch.cat([stream.decode(piece) for piece in codes.split(size, dim=-1)], dim=-1)
        theirs = vocoder.module.chunked_decode(codes, chunk_size=size, left_context_size=context)
    assert torch.equal(ours, theirs)
