"""Voxtral Realtime token for token as transformers' ``generate``, of recordings and of sound that comes."""

from __future__ import annotations

import base64
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import published_vocabularies
import pytest
from scheduler_runs import WAIT_S, running
from transcription_runs import RATE, Transcribed
from voxtral_twins import VoxtralTwins, quiet_tones

from sglang_omni.models.voxtral_realtime.components.checkpoint import VoxtralRealtimeCheckpoint
from sglang_omni.models.voxtral_realtime.components.tekken import Tekken
from sglang_omni.models.voxtral_realtime.ears import HeardSound
from sglang_omni.models.voxtral_realtime.preprocess import VoxtralRealtimePreprocessor
from sglang_omni.models.voxtral_realtime.stages import create_transcribe
from sglang_omni.models.voxtral_realtime.text import HeardText
from sglang_omni.models.voxtral_realtime.tiny_checkpoint import make
from sglang_omni.pipeline.stage.stream_queue import StreamItem
from sglang_omni.proto import OmniRequest, RequestError, StagePayload
from sglang_omni.published import published_model
from sglang_omni.scheduling.messages import IncomingMessage
from sglang_omni.serve.launch.registry import pipeline_of

pytest.importorskip("mistral_common", reason="transformers' processor needs it")

# One shorter than a frame of mel, one of a whole number of tokens, and some beyond both windows.
LENGTHS = (0.1, 5.03, 1.28, 12.4, 0.5, 2.0, 7.77, 3.3)
SOUNDS = [quiet_tones(seed, seconds) for seed, seconds in enumerate(LENGTHS)]


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> VoxtralTwins:
    return VoxtralTwins(make(tmp_path_factory.mktemp("voxtral"), seed=1))


@pytest.fixture(scope="module")
def expected(twins: VoxtralTwins) -> list[list[int]]:
    return [twins.expected(sound) for sound in SOUNDS]


def said(answer: Transcribed) -> list[int]:
    assert answer.error is None, answer.error
    return answer.tokens


def test_eight_recordings_at_once(twins: VoxtralTwins, expected: list[list[int]]) -> None:
    assert len({token for tokens in expected for token in tokens}) > 60
    answers = twins.ours(SOUNDS)
    assert list(map(said, answers)) == expected
    for answer, tokens, seconds in zip(answers, expected, LENGTHS, strict=True):
        assert answer.result["text"] == answer.streamed == twins.text(tokens) != ""
        assert answer.result["duration"] == pytest.approx(seconds, abs=1e-3)
        assert answer.result["segments"][-1]["end"] <= answer.result["duration"]
    assert sum(len(answer.chunks) for answer in answers) > 100


def test_alone_in_chunks_and_computed_again(twins: VoxtralTwins, expected: list[list[int]]) -> None:
    assert list(map(said, twins.ours(SOUNDS, max_running_requests=1))) == expected
    # A prompt has 39 tokens, and the longest recording 205: the pool holds two of them at most.
    tight = twins.ours(SOUNDS, chunked_prefill_size=16, max_total_tokens=256)
    assert list(map(said, tight)) == expected


class Live:
    """A stage whose requests hear sound that comes."""

    def __init__(self, twins: VoxtralTwins, **options: Any) -> None:
        self.scheduler = create_transcribe(str(twins.path), num_threads=1, **options)
        self._preprocess = VoxtralRealtimePreprocessor(None, max_bytes=1)

    def begin(self, name: str, rate: int = RATE, **params: Any) -> None:
        request = OmniRequest({"sample_rate": rate}, {"stream": True, **params}, {"task": "transcription"})
        payload = self._preprocess(StagePayload(name, request, None))
        self.scheduler.inbox.put(IncomingMessage(name, "new_request", payload))

    def hear(self, name: str, samples: Any) -> None:
        item = StreamItem(0, samples, "coordinator")
        self.scheduler.inbox.put(IncomingMessage(name, "stream_chunk", item))

    def end(self, name: str) -> None:
        self.scheduler.inbox.put(IncomingMessage(name, "stream_done", "coordinator"))

    def answers(self, names: Sequence[str]) -> dict[str, Transcribed]:
        found: dict[str, Transcribed] = defaultdict(Transcribed)
        over: set[str] = set()
        while over != set(names):
            message = self.scheduler.outbox.get(timeout=WAIT_S)
            match message.type:
                case "stream":
                    found[message.request_id].chunks.append(message.data)
                    continue
                case "result":
                    found[message.request_id].result = message.data.data
                case "error":
                    found[message.request_id].error = message.data
            over.add(message.request_id)
        return found


def pieces(sound: Any, seed: int, most: int) -> Iterator[Any]:
    random, at = np.random.default_rng(seed), 0
    while at < len(sound):
        size = int(random.integers(1, most))
        yield sound[at : at + size]
        at += size


def test_sound_that_comes_is_heard_as_the_whole(twins: VoxtralTwins, expected: list[list[int]]) -> None:
    """Pieces of any length, of all requests in turn; the first ones before their request."""
    live = Live(twins)
    cut = [list(pieces(sound, seed, 300 if seed % 2 else 9000)) for seed, sound in enumerate(SOUNDS)]
    names = [str(index) for index in range(len(SOUNDS))]
    live.hear("0", cut[0][0])
    for name in names:
        live.begin(name)
    with running(live.scheduler):
        for turn in range(max(map(len, cut))):
            for name, some in zip(names, cut, strict=True):
                if (turn, name) != (0, "0") and turn < len(some):
                    live.hear(name, some[turn])
                if turn == len(some):
                    live.end(name)
        for name, some in zip(names, cut, strict=True):
            if turn < len(some):
                live.end(name)
        answers = live.answers(names)
    assert [said(answers[name]) for name in names] == expected
    assert all(answer.streamed == answer.result["text"] for answer in answers.values())


def test_text_comes_before_the_end_and_who_waits_keeps_nobody(
    twins: VoxtralTwins, expected: list[list[int]]
) -> None:
    live = Live(twins)
    sound = SOUNDS[3]
    live.begin("waits")
    live.begin("speaks")
    live.hear("waits", sound[: 6 * RATE])
    live.hear("speaks", SOUNDS[1])
    live.end("speaks")
    with running(live.scheduler):
        first = Transcribed()
        over = False
        # Of the first 6 s, the model has heard all but the delay: 75 - 6 tokens.
        while not over or len(first.chunks) < 40:
            message = live.scheduler.outbox.get(timeout=WAIT_S)
            if message.request_id == "waits":
                assert message.type == "stream"
                first.chunks.append(message.data)
            elif message.type == "result":
                over = True
                assert message.data.data["text"] == twins.text(expected[1])
        live.hear("waits", sound[6 * RATE :])
        live.end("waits")
        rest = live.answers(["waits"])["waits"]
    assert said(rest) == expected[3]
    assert first.streamed + rest.streamed == rest.result["text"] == twins.text(expected[3])


def test_sound_at_another_rate(twins: VoxtralTwins) -> None:
    import soxr

    high = quiet_tones(5, 6.0)
    live = Live(twins)
    live.begin("high", 24_000)
    live.begin("resampled")
    stream = soxr.ResampleStream(24_000, RATE, 1, dtype="float32")
    for part in pieces(high, 1, 5000):
        live.hear("high", part)
        live.hear("resampled", stream.resample_chunk(part))
    live.hear("resampled", stream.resample_chunk(np.zeros(0, np.float32), last=True))
    live.end("high")
    live.end("resampled")
    with running(live.scheduler):
        answers = live.answers(["high", "resampled"])
    assert answers["high"].result == answers["resampled"].result
    assert answers["high"].result["duration"] == pytest.approx(4.0, abs=0.01)


def test_no_sound_bad_sound_too_much_and_aborts(twins: VoxtralTwins, expected: list[list[int]]) -> None:
    live = Live(twins, max_audio_seconds=20.0)
    names = ["nothing", "nan", "whole numbers", "endless", "good"]
    for name in [*names, "aborted"]:
        live.begin(name)
    live.end("nothing")
    live.hear("nan", np.array([0.1, np.nan], np.float32))
    live.hear("whole numbers", np.zeros(10, np.int16))
    live.hear("aborted", SOUNDS[1])
    with running(live.scheduler):
        for part in pieces(quiet_tones(0, 21.0), 0, 30_000):
            live.hear("endless", part)
        live.scheduler.abort("aborted")
        live.hear("aborted", SOUNDS[1])
        live.hear("good", SOUNDS[1])
        live.end("good")
        answers = live.answers(names)
    assert said(answers["good"]) == expected[1]
    assert (answers["nothing"].result["text"], answers["nothing"].result["duration"]) == ("", 0.0)
    for name, text in (("nan", "finite"), ("whole numbers", "float32"), ("endless", "longer than 20 s")):
        assert isinstance(answers[name].error, RequestError)
        assert text in str(answers[name].error)
    stats = live.scheduler.engine.stats()
    assert stats["num_running_reqs"] == stats["num_queue_reqs"] == stats["kv_used_tokens"] == 0


def test_another_delay(twins: VoxtralTwins) -> None:
    live = Live(twins, delay_ms=240)
    live.begin("0")
    live.hear("0", SOUNDS[1])
    live.end("0")
    with running(live.scheduler):
        tokens = said(live.answers(["0"])["0"])
    audio = twins.processor.mistral_common_audio_config
    audio.transcription_delay_ms, own = 240, audio.transcription_delay_ms
    try:
        assert tokens == twins.expected(SOUNDS[1])
    finally:
        audio.transcription_delay_ms = own
    with pytest.raises(ValueError, match="multiple of 80 ms, got 100"):
        create_transcribe(str(twins.path), delay_ms=100)


def test_segments_end_in_pauses(twins: VoxtralTwins) -> None:
    tekken = Tekken.from_dir(twins.path)
    word = tekken.num_control + 300
    sound = HeardSound(tekken, 200)
    sound.add(np.zeros(20 * tekken.samples, np.float32))
    sound.end()
    text, found = HeardText(tekken, sound, 0.0), []
    tokens = [tekken.pad] * 3 + [word, 33, word] + [tekken.pad] * 12 + [word] + [tekken.pad] * 8 + [word] * 3
    # As many as the sound has rows, and ten behind it.
    assert [text.feed([token]) for token in tokens] == [False] * 29 + [True]
    text.finish()
    while (chunk := text.take()) is not None:
        found += chunk["segments"]
    # The last words are written after the sound.
    assert [(each["start"], each["end"]) for each in found] == [(0.24, 0.48), (1.44, 1.6)]
    assert [each["text"] for each in found] == [
        tekken.tokenizer.decode([word] * count).strip() for count in (2, 4)
    ]
    assert [token for each in found for token in each["tokens"]] == tokens


def test_tokens_of_mistrals_vocabulary(tmp_path: Path) -> None:
    """The published file is this one with other control tokens, as its size says."""
    from mistral_common.tokens.tokenizers.mistral import MistralTokenizer
    from mistral_common.tokens.tokenizers.tekken import SpecialTokenPolicy

    vocabulary = [
        {"rank": rank, "token_bytes": base64.b64encode(word).decode(), "token_str": None}
        for rank, word in enumerate(published_vocabularies.tekken())
    ]
    fields = published_model("voxtral_realtime").config("tekken.json")
    (tmp_path / "tekken.json").write_text(json.dumps({**fields, "vocab": vocabulary}))
    ours, theirs = Tekken.from_dir(tmp_path), MistralTokenizer.from_file(str(tmp_path / "tekken.json"))
    instruct = theirs.instruct_tokenizer
    tokenizer, encoder = instruct.tokenizer, instruct.audio_encoder
    assert ours.prompt == instruct.start() + encoder.encode_streaming_tokens()
    left, right = encoder.get_padding_audio()
    assert len(left.audio_array) == ours.left * ours.samples == 32 * 1280
    assert len(right.audio_array) == ours.right * ours.samples == 17 * 1280
    for text in ("Ein gro\u00dfes Haus, 3\u00bd km!", "\u4f60\u597d \U0001f600 \u0939\u093f", "\n  x\t"):
        ids = [32, 33, *tokenizer.encode(text, bos=False, eos=False), 999]
        assert ours.tokenizer.decode(ids) == tokenizer.decode(ids, SpecialTokenPolicy.IGNORE) == text
    assert ours.tokenizer.get_vocab_size() == tokenizer.n_words == 131_072


@pytest.mark.parametrize(
    ("task", "inputs", "params", "param", "text"),
    [
        ("transcription", {"sample_rate": 800}, {}, "sample_rate", "from 8000 to 192000 Hz, got 800"),
        ("transcription", {}, {}, "file", "file is missing"),
        ("transcription", {"sample_rate": RATE}, {"language": "en"}, "language", "no effect"),
        ("transcription", {"sample_rate": RATE}, {"prompt": "word"}, "prompt", "no effect"),
        ("translation", {"sample_rate": RATE}, {}, None, "does no translation"),
    ],
)
def test_wrong_requests(
    twins: VoxtralTwins, task: str, inputs: Any, params: Any, param: str | None, text: str
) -> None:
    preprocess = VoxtralRealtimePreprocessor(None, max_bytes=1 << 20)
    with pytest.raises(RequestError, match=text) as caught:
        preprocess(StagePayload("r", OmniRequest(inputs, params, {"task": task}), None))
    assert caught.value.param == param


def test_wrong_checkpoints(twins: VoxtralTwins, tmp_path: Path) -> None:
    fields = json.loads((twins.path / "config.json").read_text())
    assert pipeline_of(fields).config(str(twins.path)).tasks == ("transcription",)
    for change, text in (
        ({"audio_length_per_tok": 4}, "audio_length_per_tok"),
        ({"model_type": "voxtral"}, "not 'voxtral_realtime'"),
        ({"text_config": {}}, "sliding_window|is missing"),
    ):
        (tmp_path / "config.json").write_text(json.dumps({**fields, **change}))
        with pytest.raises(ValueError, match=text):
            VoxtralRealtimeCheckpoint.from_dir(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(fields))
    with pytest.raises(FileNotFoundError, match=r"processor_config\.json is missing"):
        VoxtralRealtimeCheckpoint.from_dir(tmp_path)
    tekken = json.loads((twins.path / "tekken.json").read_text())
    (tmp_path / "tekken.json").write_text(json.dumps({**tekken, "audio": {}}))
    with pytest.raises(ValueError, match="transcription_format"):
        Tekken.from_dir(tmp_path)
