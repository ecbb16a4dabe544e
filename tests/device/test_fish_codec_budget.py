"""What Fish Audio's codec asks of the host, and that all of it is on one device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from fake_cuda import DEVICE, Step, fake_gpu
from fish_s2_oracle import FRAME, GROUPS, SHAPE
from graph_recorders import CountingRecorder

from sglang_omni.models.codecs import streamed
from sglang_omni.models.fish_s2_pro import tiny_checkpoint
from sglang_omni.models.fish_s2_pro.components import codec_weights
from sglang_omni.models.fish_s2_pro.components.codec import FishCodecDecoder, FishCodecEncoder
from sglang_omni.models.fish_s2_pro.components.codec_weights import CodecWeights


@pytest.fixture
def weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], CodecWeights]]:
    """Reads empty tensors of the right shapes onto the fake GPU."""
    tiny_checkpoint.make(tmp_path, **SHAPE)
    stored = {name: (t.shape, t.dtype) for name, t in torch.load(tmp_path / "codec.pth").items()}

    def load(*_: object, **__: object) -> dict[str, torch.Tensor]:
        return {name: torch.empty(shape, dtype=dtype) for name, (shape, dtype) in stored.items()}

    # In inference mode, operations are told of before they are taken apart.
    monkeypatch.setattr(torch, "inference_mode", lambda mode=True: torch.no_grad())
    with fake_gpu():
        monkeypatch.setattr(codec_weights.torch, "load", load)
        yield lambda: CodecWeights(tmp_path, torch.float32, DEVICE)


def test_a_chunk_is_one_upload_and_one_replay(
    weights: Callable[[], CodecWeights], monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = CountingRecorder()
    monkeypatch.setattr(streamed, "recorder_for", lambda *_, **__: recorder)
    decoder = FishCodecDecoder(weights())
    decoder.record_graphs([3, 24], 72, cuda_graph=True)
    streams = [decoder.open_stream() for _ in range(3)]
    for frames, on_host in ((3, True), (24, True), (24, False), (7, True)):
        codes = torch.zeros(3, GROUPS, frames, dtype=torch.int64)
        codes = codes if on_host else codes.to(DEVICE)
        recorder.replayed.clear()
        with Step() as step:
            wave = decoder.decode_batch(streams, codes)
        assert wave.device == torch.device(DEVICE)
        assert wave.shape == (3, 1, frames * FRAME)
        assert (step.host_reads, step.uploads) == (0, on_host)
        assert len(recorder.replayed) == (frames in (3, 24))
        if frames in (3, 24):
            # The codes and the streams' state are put together and copied in, and results are copied out.
            assert step.num_launches <= 10


def test_a_recording_is_read_back_once(weights: Callable[[], CodecWeights]) -> None:
    encoder = FishCodecEncoder(weights())
    clips = [torch.zeros(20 * FRAME - 3), torch.zeros(5 * FRAME)]
    with Step() as step:
        codes = encoder.encode(clips, frames_at_once=8)
    assert [tuple(each.shape) for each in codes] == [(20, GROUPS), (5, GROUPS)]
    assert step.host_reads == 1
    assert step.uploads == 3, "one for each piece of eight frames"
