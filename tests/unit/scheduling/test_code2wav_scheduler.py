"""The streaming vocoder: its chunks are the whole waveform, without a seam."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from scheduler_runs import running

from sglang_omni.proto import OmniRequest, StagePayload
from sglang_omni.scheduling.code2wav_scheduler import REFERENCE_CHUNKING, Code2WavScheduler, WindowStream
from sglang_omni.scheduling.messages import IncomingMessage

GROUPS, UPSAMPLE, RECEPTIVE_FRAMES = 3, 8, 5
EOS = 77


class CausalVocoder(torch.nn.Module):
    """Each sample depends on the last few frames; the end is cut short, as transposed convolutions do."""

    total_upsample = UPSAMPLE

    def __init__(self, lost_samples: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.embed = torch.randn(128, UPSAMPLE, generator=generator)
        self.kernel = torch.randn(1, 1, (RECEPTIVE_FRAMES - 1) * UPSAMPLE, generator=generator) / 20
        self.lost_samples = lost_samples

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        assert codes.dtype == torch.int64
        assert codes.shape[:2] == (1, GROUPS)
        impulses = self.embed[codes].sum(1).reshape(1, 1, -1)
        padded = torch.nn.functional.pad(impulses, (self.kernel.shape[-1] - 1, 0))
        wave = torch.nn.functional.conv1d(padded, self.kernel)
        return wave[..., : wave.shape[-1] - self.lost_samples]


class CenteredVocoder(CausalVocoder):
    """Each sample depends on frames on both sides of its own."""

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        impulses = self.embed[codes].sum(1).reshape(1, 1, -1)
        reach = self.kernel.shape[-1] // 2
        return torch.nn.functional.conv1d(impulses, self.kernel, padding=reach)[..., : impulses.shape[-1]]


class BatchVocoder(CausalVocoder):
    """A vocoder for several streams at a time, which notes the frames and streams of each batch."""

    def __init__(self) -> None:
        super().__init__(0)
        self.batches: list[tuple[int, int]] = []

    def open_stream(self) -> WindowStream:
        return WindowStream(self, RECEPTIVE_FRAMES, gapless=True)

    def decode_batch(self, streams: Sequence[WindowStream], codes: torch.Tensor) -> torch.Tensor:
        if (codes >= len(self.embed)).any():
            raise IndexError("no such code")
        assert len({stream._codes is None for stream in streams}) == 1, "new streams beside others"
        self.batches.append((len(streams), codes.shape[-1]))
        return torch.cat([stream.decode(row[None]) for stream, row in zip(streams, codes, strict=True)])


@dataclass
class Item:
    data: Any


class Driver:
    def __init__(self, **options: Any) -> None:
        self.model = options.pop("model", CausalVocoder)(options.pop("lost_samples", 0))
        self.scheduler = Code2WavScheduler(self.model, "cpu", **options)

    def run(self, items: list[torch.Tensor], stream: bool = True) -> tuple[list[np.ndarray], dict[str, Any]]:
        inbox, outbox = self.scheduler.inbox, self.scheduler.outbox
        payload = StagePayload("r", OmniRequest(None, {"stream": stream}), None)
        inbox.put(IncomingMessage("r", "new_request", payload))
        for item in items:
            inbox.put(IncomingMessage("r", "stream_chunk", Item(item)))
        inbox.put(IncomingMessage("r", "stream_done"))
        chunks = []
        while (message := outbox.get(timeout=60)).type == "stream":
            assert message.data["modality"] == "audio"
            assert message.data["sample_rate"] == self.scheduler.sample_rate
            chunks.append(message.data["audio_data"])
        if message.type == "error":
            raise message.data
        return chunks, message.data.data


@pytest.fixture
def drive() -> Iterator[Any]:
    with ExitStack() as stack:

        def make(**options: Any) -> Driver:
            driver = Driver(**options)
            stack.enter_context(running(driver.scheduler))
            return driver

        yield make


def frames(count: int) -> torch.Tensor:
    """(frames, groups)"""
    return torch.randint(0, 64, (count, GROUPS), generator=torch.Generator().manual_seed(count))


def whole(driver: Driver, codes: torch.Tensor) -> np.ndarray:
    return driver.model(codes.T.unsqueeze(0)).reshape(-1).numpy()


@pytest.mark.parametrize("lost_samples", [0, 3, UPSAMPLE - 1])
@pytest.mark.parametrize("count", [1, 9, 10, 11, 30, 47])
def test_chunks_together_are_the_whole_waveform(drive: Any, count: int, lost_samples: int) -> None:
    driver = drive(lost_samples=lost_samples)
    codes = frames(count)

    chunks, result = driver.run(list(codes))

    # 2, 4 and 8 frames, then 10 each: the first sound early, the rest in few pieces.
    sizes = np.diff([min(end, count) for end in (0, 2, 6, 14, 24, 34, 44, 54)]) * UPSAMPLE
    sizes[0] -= lost_samples
    assert [len(chunk) for chunk in chunks] == [size for size in sizes if size > 0]
    np.testing.assert_array_equal(np.concatenate(chunks), result["audio_data"])
    np.testing.assert_allclose(result["audio_data"], whole(driver, codes), atol=1e-6)
    assert isinstance(result["codes"], np.ndarray)
    np.testing.assert_array_equal(result["codes"], codes)


@pytest.mark.parametrize("count", [1, 3, 4, 12, 13, 47])
def test_chunks_wait_for_their_right_context(drive: Any, count: int) -> None:
    codes, reach = frames(count), 2
    driver = drive(model=CenteredVocoder, left_context_size=reach, right_context_size=reach)
    chunks, result = driver.run(list(codes))

    # Frames 0 and 1 once there are four, and so on; the last ones need no more.
    sizes = np.diff([min(end, count) for end in (0, 2, 6, 14, 24, 34, 44)]).tolist()
    waited = [size for end, size in zip((2, 6, 14, 24, 34, 44), sizes, strict=True) if end + reach <= count]
    rest = [count - sum(waited)] if count > sum(waited) else []
    assert [len(chunk) for chunk in chunks] == [size * UPSAMPLE for size in waited + rest]
    np.testing.assert_array_equal(np.concatenate(chunks), result["audio_data"])
    np.testing.assert_allclose(result["audio_data"], whole(driver, codes), atol=1e-6)
    np.testing.assert_array_equal(result["codes"], codes)


def test_too_little_right_context_is_heard(drive: Any) -> None:
    codes = frames(30)
    driver = drive(model=CenteredVocoder, left_context_size=2, right_context_size=1)
    audio = driver.run(list(codes))[1]["audio_data"]
    assert np.abs(audio - whole(driver, codes)).max() > 1e-3


def test_the_first_chunk_comes_before_the_stream_ends(drive: Any) -> None:
    driver = drive()
    driver.scheduler.inbox.put(
        IncomingMessage("r", "new_request", StagePayload("r", OmniRequest(None), None))
    )
    driver.scheduler.inbox.put(IncomingMessage("r", "stream_chunk", Item(frames(2))))

    chunk = driver.scheduler.outbox.get(timeout=60)

    assert chunk.type == "stream"
    assert len(chunk.data["audio_data"]) == 2 * UPSAMPLE


def test_less_context_than_the_model_needs_is_heard(drive: Any) -> None:
    codes = frames(30)
    enough = drive(left_context_size=RECEPTIVE_FRAMES)
    short = drive(left_context_size=1)

    np.testing.assert_allclose(enough.run(list(codes))[1]["audio_data"], whole(enough, codes), atol=1e-6)
    audio = short.run(list(codes))[1]["audio_data"]
    assert audio.shape == whole(short, codes).shape
    assert np.abs(audio - whole(short, codes)).max() > 1e-3


@pytest.mark.parametrize("count", [3, 8, 9, 21])
def test_reference_chunking_loses_what_the_decoder_cuts_off_each_chunk(drive: Any, count: int) -> None:
    driver = drive(
        lost_samples=3,
        chunking_of=lambda payload, own: REFERENCE_CHUNKING._replace(chunk_size=4, left_context_size=6),
    )
    codes = frames(count)

    chunks, result = driver.run(list(codes))

    np.testing.assert_array_equal(np.concatenate(chunks), chunked_decode(driver.model, codes, 4, 6))
    assert len(result["audio_data"]) == count * UPSAMPLE - 3 * -(-count // 4)


def chunked_decode(model: CausalVocoder, codes: torch.Tensor, size: int, context: int) -> np.ndarray:
    """transformers' definition: every chunk is decoded alone, and cut at its first new frame."""
    waves = []
    for start in range(0, len(codes), size):
        before = max(0, start - context)
        wave = model(codes[before : start + size].T.unsqueeze(0)).reshape(-1)
        waves.append(wave[(start - before) * UPSAMPLE :].numpy())
    return np.concatenate(waves)


@pytest.mark.parametrize(
    "items",
    [
        [frames(23)],
        list(frames(23)),
        [frames(23).T.unsqueeze(0)],
        [frames(23)[:12], frames(23)[12:]],
        [row.numpy() for row in frames(23)],
        [row.to(torch.int32) for row in frames(23)],
    ],
)
def test_shapes_that_codes_may_come_in(drive: Any, items: list[Any]) -> None:
    driver = drive()

    _, result = driver.run(items)

    np.testing.assert_allclose(result["audio_data"], whole(driver, frames(23)), atol=1e-6)


def results_of_all_at_once(
    model: BatchVocoder,
    max_batch_frames: int,
    requests: dict[str, torch.Tensor],
    *,
    fills: bool = False,
    contexts: dict[str, torch.Tensor] | None = None,
) -> dict[str, Any]:
    """Results of requests that have all arrived before the first is decoded."""
    scheduler = Code2WavScheduler(
        model,
        "cpu",
        left_context_size=None,
        max_batch_frames=max_batch_frames,
        context_of=None if contexts is None else lambda payload: contexts.get(payload.request_id),
    )
    scheduler.fills_last_pieces = fills
    for name, codes in requests.items():
        payload = StagePayload(name, OmniRequest(None, {"stream": False}), None)
        scheduler.inbox.put(IncomingMessage(name, "new_request", payload))
        scheduler.inbox.put(IncomingMessage(name, "stream_chunk", Item(codes)))
        scheduler.inbox.put(IncomingMessage(name, "stream_done"))
    with running(scheduler):
        messages = [scheduler.outbox.get(timeout=60) for _ in requests]
    assert scheduler.stats() == {"num_running_reqs": 0, "num_queue_reqs": 0}
    return {message.request_id: message.data for message in messages}


def test_pieces_of_several_requests_are_decoded_together() -> None:
    model = BatchVocoder()
    requests = {str(count): frames(count) for count in (17, 18, 20, 6)}

    results = results_of_all_at_once(model, 16, requests)

    # First pieces, then second ones; batches keep the limit of frames and have pieces of equal length.
    assert model.batches == [(4, 2), (4, 4), (2, 8)]
    for name, codes in requests.items():
        audio = results[name].data["audio_data"]
        np.testing.assert_allclose(audio, model(codes.T.unsqueeze(0)).reshape(-1).numpy(), atol=1e-6)


def test_last_pieces_are_filled_up_to_recorded_lengths() -> None:
    """As on a GPU: the sound and the codes stay those of the frames."""
    model = BatchVocoder()
    requests = {str(count): frames(count) for count in (1, 3, 5, 7, 14, 19, 33, 37)}

    results = results_of_all_at_once(model, 64, requests, fills=True)

    assert {length for _, length in model.batches} == {2, 4, 8, 10}
    for codes in requests.values():
        result = results[str(len(codes))].data
        np.testing.assert_array_equal(result["codes"], codes.numpy())
        expected = model(codes.T.unsqueeze(0)).reshape(-1).numpy()
        np.testing.assert_allclose(result["audio_data"], expected, atol=1e-6)


@pytest.mark.parametrize(
    ("first", "size", "sizes"), [(2, 10, [2, 4, 8, 10]), (1, 3, [1, 2, 3]), (5, 5, [5, 5]), (9, 4, [4, 4])]
)
def test_sizes_are_those_that_streams_are_cut_into(first: int, size: int, sizes: list[int]) -> None:
    model = BatchVocoder()
    scheduler = Code2WavScheduler(model, "cpu", size, None, first_chunk_size=first, schedule_policy="fcfs")
    scheduler.inbox.put(IncomingMessage("r", "new_request", StagePayload("r", OmniRequest(None, {}), None)))
    scheduler.inbox.put(IncomingMessage("r", "stream_chunk", Item(frames(sum(sizes) + size))))
    scheduler.inbox.put(IncomingMessage("r", "stream_done"))
    with running(scheduler):
        chunks = [scheduler.outbox.get(timeout=60) for _ in [*sizes, size]]
    assert scheduler.chunking.sizes == sizes
    assert [len(chunk.data["audio_data"]) for chunk in chunks] == [n * UPSAMPLE for n in [*sizes, size]]


def test_codes_that_fail_in_a_batch_are_one_requests_error() -> None:
    bad = frames(6)
    bad[3, 1] = 1000

    results = results_of_all_at_once(BatchVocoder(), 64, {"a": frames(7), "bad": bad, "b": frames(8)})

    assert isinstance(results["bad"], IndexError)
    assert [len(results[name].data["audio_data"]) for name in "ab"] == [7 * UPSAMPLE, 8 * UPSAMPLE]


def test_the_frame_that_ends_the_stream_is_no_audio(drive: Any) -> None:
    driver = drive(codec_eos_token_id=EOS)

    _, result = driver.run([*frames(4), torch.tensor([EOS, 0, 0])])

    assert len(result["audio_data"]) == 4 * UPSAMPLE


def test_without_streaming_there_is_only_the_result(drive: Any) -> None:
    driver = drive()

    chunks, result = driver.run(list(frames(25)), stream=False)

    assert chunks == []
    np.testing.assert_allclose(result["audio_data"], whole(driver, frames(25)), atol=1e-6)


def test_no_codes_give_no_audio(drive: Any) -> None:
    chunks, result = drive().run([])

    assert chunks == []
    assert result["audio_data"].shape == (0,)
    assert result["audio_data"].dtype == np.float32


@pytest.mark.parametrize("shape", [(), (2, GROUPS, 4), (1, 2, 3, 4), (0,)])
def test_other_shapes_are_the_requests_error(drive: Any, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="a stream item must hold codes"):
        drive().run([torch.zeros(shape, dtype=torch.long)])


@pytest.mark.parametrize(
    "options", [{"stream_chunk_size": 0}, {"left_context_size": -1}, {"first_chunk_size": 0}]
)
def test_sizes_that_make_no_sense_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must be at least 1"):
        Code2WavScheduler(CausalVocoder(0), "cpu", **options)


def test_streams_have_no_right_context() -> None:
    with pytest.raises(ValueError, match="needs a left_context_size"):
        Code2WavScheduler(BatchVocoder(), "cpu", left_context_size=None, right_context_size=1)


def tail(model: CausalVocoder, context: torch.Tensor, codes: torch.Tensor) -> np.ndarray:
    """Samples of ``codes`` after ``context``."""
    wave = model(torch.cat((context, codes)).T.unsqueeze(0)).reshape(-1).numpy()
    return wave[len(context) * UPSAMPLE :]


@pytest.mark.parametrize("policy", ["fcfs", "deadline"])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 14, 37])
def test_speech_continues_its_context(drive: Any, count: int, policy: str) -> None:
    context, codes = frames(count), frames(25)
    driver = drive(
        model=lambda lost_samples: BatchVocoder(),
        left_context_size=None,
        context_of=lambda payload: context,
        schedule_policy=policy,
    )
    chunks, result = driver.run(list(codes))

    # The first chunk is as early as without a context.
    assert len(chunks[0]) == 2 * UPSAMPLE
    np.testing.assert_array_equal(np.concatenate(chunks), result["audio_data"])
    np.testing.assert_array_equal(result["codes"], codes)
    np.testing.assert_allclose(result["audio_data"], tail(driver.model, context, codes), atol=1e-6)


def test_requests_with_a_context_are_decoded_with_those_without() -> None:
    model, requests = BatchVocoder(), {"a": frames(6), "b": frames(5)[:4], "c": frames(7)[:6]}
    contexts = {"a": frames(8)[:6], "c": frames(9)[:6]}

    results = results_of_all_at_once(model, 16, requests, contexts=contexts)

    # First pieces of all streams, the rest of the contexts, and what sounds after them, with the end of b.
    assert model.batches == [(3, 2), (2, 4), (3, 2), (2, 4)]
    for name, codes in requests.items():
        expected = tail(model, contexts.get(name, codes[:0]), codes)
        np.testing.assert_allclose(results[name].data["audio_data"], expected, atol=1e-6)


def test_a_context_and_what_follows_it_have_recorded_lengths() -> None:
    """As on a GPU."""
    model = BatchVocoder()
    # Two of each length, as single pieces are in no batch.
    requests = {f"{count} {twin}": frames(count) for count in (1, 2, 3, 14, 19) for twin in range(2)}
    contexts = {name: frames(50)[: 2 * len(codes)] for name, codes in requests.items()}

    results = results_of_all_at_once(model, 64, requests, fills=True, contexts=contexts)

    assert {length for _, length in model.batches} == {2, 4, 8, 10}
    for name, codes in requests.items():
        np.testing.assert_array_equal(results[name].data["codes"], codes.numpy())
        expected = tail(model, contexts[name], codes)
        np.testing.assert_allclose(results[name].data["audio_data"], expected, atol=1e-6)


@pytest.mark.parametrize(("first", "size", "sizes"), [(2, 10, [2, 2, 4, 8, 10]), (5, 5, [5, 5])])
def test_a_first_chunk_may_be_a_further_piece(first: int, size: int, sizes: list[int]) -> None:
    scheduler = Code2WavScheduler(
        BatchVocoder(), "cpu", size, None, first_chunk_size=first, context_of=lambda payload: None
    )
    assert scheduler.piece_sizes(scheduler.chunking) == sizes


def test_only_streams_have_a_context() -> None:
    with pytest.raises(ValueError, match="needs streams"):
        Code2WavScheduler(CausalVocoder(0), "cpu", context_of=lambda payload: None)
