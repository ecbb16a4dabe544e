"""What a chunk of the codec costs on a GPU, with the published sizes."""

from __future__ import annotations

import pytest
import torch
from fake_cuda import DEVICE, Step, fake_gpu
from graph_recorders import CountingRecorder
from published import PREDICTOR, code2wav, flash_attention

from sglang_omni.models.codecs import streamed as component
from sglang_omni.proto import OmniRequest, StagePayload
from sglang_omni.scheduling.code2wav_scheduler import Chunking, Code2WavScheduler, _Piece

STREAMS = 3
CHUNK = 25
# Kernels of a chunk launched one by one. Before streams kept one tensor each: 636, and two uploads.
LAUNCHES = 604


@pytest.mark.parametrize("graphs", [False, True])
def test_a_chunk(*, graphs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = CountingRecorder()
    monkeypatch.setattr(component, "recorder_for", lambda *_, **__: recorder)
    # In inference mode, operations are told of before they are taken apart, and kernels not at all.
    monkeypatch.setattr(torch, "inference_mode", lambda mode=True: torch.no_grad())
    with fake_gpu(), flash_attention():
        vocoder = code2wav()
        if graphs:
            chunking = Chunking(CHUNK, left_context_size=None, first_chunk_size=CHUNK)
            vocoder.record_graphs(chunking.sizes, STREAMS * CHUNK, cuda_graph=True)
        scheduler = Code2WavScheduler(vocoder, DEVICE, CHUNK, left_context_size=None)
        streams = [vocoder.open_stream() for _ in range(STREAMS)]
        # First chunks, others from either device, and the rest of the speech.
        for size, on_host in ((CHUNK, True), (CHUNK, True), (CHUNK, False), (7, True)):
            codes = torch.zeros(1, PREDICTOR.num_code_groups, size, dtype=torch.long)
            codes = codes if on_host else codes.to(DEVICE)
            pieces = [_Piece(size, STREAMS, stream, codes) for stream in streams]
            recorder.replayed.clear()
            with Step() as step:
                scheduler._decode(pieces)
            assert step.host_reads == 1, "the samples"
            assert step.uploads == on_host, "the codes"
            if graphs and size == CHUNK:
                assert len(recorder.replayed) == 1
                # The codes and the streams' state are put together and copied in, and results are copied out.
                assert step.num_launches <= 10
            else:
                assert step.num_launches <= LAUNCHES


def test_a_request_whose_frames_come_from_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "inference_mode", lambda mode=True: torch.no_grad())
    with fake_gpu(), flash_attention():
        scheduler = Code2WavScheduler(
            code2wav(), DEVICE, CHUNK, left_context_size=None, first_chunk_size=CHUNK
        )
        session = scheduler._open_session()
        assert not list(session.begin(StagePayload("r", OmniRequest(None, {}), None)))
        reads = []
        for number in range(2 * CHUNK):
            frame = torch.zeros(1, PREDICTOR.num_code_groups, dtype=torch.long)
            with Step() as step:
                for done in session.feed(frame.to(DEVICE) if number % 5 else frame):
                    if isinstance(done, _Piece):
                        assert done.codes.device == torch.device(DEVICE)
                        scheduler._decode([done])
            reads.append(step.host_reads)
        assert [number + 1 for number, read in enumerate(reads) if read] == [CHUNK, 2 * CHUNK]
        assert max(reads) == 1
        with Step() as step:
            result = session.result()
        assert step.host_reads == 1, "all codes at once"
        assert result["codes"].shape == (2 * CHUNK, PREDICTOR.num_code_groups)
