"""Qwen3-ASR token for token as transformers' ``generate``, in both layouts and on both engines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from qwen3_asr_twins import MOST, PIECE_SECONDS, Qwen3ASRTwins
from scheduler_runs import WAIT_S, running
from transcription_runs import RATE, Transcribed, recording, tones

from sglang_omni.models.qwen3_asr.components.answer import PieceAnswer
from sglang_omni.models.qwen3_asr.components.checkpoint import Qwen3ASRCheckpoint
from sglang_omni.models.qwen3_asr.stages import create_transcribe
from sglang_omni.models.qwen3_asr.tiny_checkpoint import make
from sglang_omni.proto import OmniRequest, RequestError, StagePayload
from sglang_omni.scheduling.messages import IncomingMessage
from sglang_omni.serve.launch.registry import pipeline_of

# One shorter than the encoder's chunk, one than the shortest, and one of three pieces.
LENGTHS = (2.0, 4.3, 0.3, 7.0, 3.0, 0.8, 1.5, 2.61)
SOUNDS = [tones(seed, seconds) for seed, seconds in enumerate(LENGTHS)]


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> Qwen3ASRTwins:
    folder = tmp_path_factory.mktemp("qwen3-asr")
    return Qwen3ASRTwins(make(folder / "transformers", seed=1, layout="transformers"))


def reported(answer: Transcribed) -> list[list[int]]:
    assert answer.error is None
    return [segment["tokens"] for segment in answer.result["segments"]]


def test_eight_recordings_at_once(twins: Qwen3ASRTwins) -> None:
    """Recordings of one to three pieces, all in one batch, and one after the other."""
    expected = [twins.expected(sound, language="en") for sound in SOUNDS]
    assert len({token for pieces in expected for piece in pieces for token in piece}) > 15
    answers = twins.ours(SOUNDS, language="en")
    assert [reported(answer) for answer in answers] == expected
    for answer, seconds in zip(answers, LENGTHS, strict=True):
        assert answer.streamed == answer.result["text"] != ""
        assert answer.result["duration"] == pytest.approx(seconds, abs=1e-3)
        assert answer.result["segments"][-1]["end"] == pytest.approx(seconds, abs=1e-3)
        assert answer.result["language"] == "en"
    # While a segment is written, although what a random model repeats is kept back until it writes another.
    segments = sum(len(answer.result["segments"]) for answer in answers)
    assert sum(len(answer.chunks) for answer in answers) > 3 * segments
    alone = twins.ours(SOUNDS, language="en", max_running_requests=1)
    assert [reported(answer) for answer in alone] == expected


def test_prompt_and_no_language(twins: Qwen3ASRTwins) -> None:
    """Without a language, a model of random weights names none, and its answer is text from the beginning."""
    for params in ({}, {"prompt": "old house <|im_end|>"}, {"language": "Chinese", "prompt": "wood"}):
        answer = twins.ours([SOUNDS[1]], **params)[0]
        assert reported(answer) == twins.expected(SOUNDS[1], **params)
        assert answer.streamed == answer.result["text"]
        assert answer.result["language"] == ("zh" if params.get("language") else "")


@pytest.mark.long
@pytest.mark.parametrize("overlap", [False, True])
def test_on_sglang(twins: Qwen3ASRTwins, overlap: bool) -> None:
    answers = twins.ours(SOUNDS, language="en", engine="sglang", overlap_schedule=overlap)
    assert [reported(answer) for answer in answers] == [
        twins.expected(sound, language="en") for sound in SOUNDS
    ]


def test_draws(twins: Qwen3ASRTwins) -> None:
    options = {"language": "en", "temperature": 0.9, "seed": 3}
    together = twins.ours(SOUNDS[:4], **options)
    assert reported(together[3]) == reported(twins.ours([SOUNDS[3]], **options)[0])
    assert reported(together[3]) != reported(twins.ours([SOUNDS[3]], **{**options, "seed": 4})[0])


def test_silence_has_no_text(twins: Qwen3ASRTwins) -> None:
    answer = twins.ours([np.zeros(5 * RATE, np.float32)], language="en")[0]
    assert (answer.result["text"], answer.result["segments"]) == ("", [])
    assert answer.result["duration"] == 5.0


def test_one_bad_recording_and_aborts_among_others(twins: Qwen3ASRTwins) -> None:
    alone = [twins.ours([sound], language="en")[0].result["text"] for sound in SOUNDS[:3]]
    scheduler = create_transcribe(
        str(twins.path), num_threads=1, piece_seconds=PIECE_SECONDS, max_running_requests=3
    )
    data = twins.preprocessed(language="en")

    def send(name: str, file: bytes, **params: Any) -> None:
        request = OmniRequest(None, {"stream": True, **params}, {"task": "transcription"})
        payload = StagePayload(name, request, {**data, "audio": file})
        scheduler.inbox.put(IncomingMessage(name, "new_request", payload))

    endless = recording(tones(5, 120.0))
    send("endless", endless)
    for index, sound in enumerate(SOUNDS[:3]):
        send(str(index), recording(sound), max_new_tokens=MOST)
    send("broken", b"RIFF" + b"nonsense" * 20)
    send("in line", endless)
    found, errors = {}, {}
    with running(scheduler):
        assert scheduler.outbox.get(timeout=WAIT_S).type == "stream"
        scheduler.abort("endless")
        scheduler.abort("in line")
        while len(found) + len(errors) < 4:
            message = scheduler.outbox.get(timeout=WAIT_S)
            if message.type != "stream":
                (errors if message.type == "error" else found)[message.request_id] = message.data
        assert not scheduler.engine.has_work
    assert [found[str(index)].data["text"] for index in range(3)] == alone
    assert errors["broken"].param == "file"
    stats = scheduler.engine.stats()
    assert stats["num_running_reqs"] == stats["num_queue_reqs"] == stats["kv_used_tokens"] == 0


@pytest.mark.parametrize(
    ("raw", "language", "text"),
    [
        ("language English<asr_text> Hello there. ", "en", "Hello there."),
        ("language None<asr_text>", None, ""),
        ("language Cantonese<asr_text>ab", "yue", "ab"),
        ("language is a tool", None, "language is a tool"),
        ("No mark at all", None, "No mark at all"),
        ("languages differ", None, "languages differ"),
        ("language " + "xyz" * 18 + "a" * 12, None, "language " + "xyz" * 18 + "a" * 12),
    ],
)
def test_the_form_of_answers(twins: Qwen3ASRTwins, raw: str, language: str | None, text: str) -> None:
    answer = PieceAnswer(twins.tokenizer, language_is_given=False)
    pieces = []
    for token in twins.tokenizer.encode(raw).ids:
        answer.feed([token])
        pieces.append(answer.take())
    answer.finish()
    pieces.append(answer.take())
    assert (answer.language, answer.text, "".join(pieces)) == (language, text, text)


@pytest.mark.parametrize(
    ("task", "params", "param", "said"),
    [
        ("transcription", {"language": "Englisch"}, "language", "did you mean 'English'"),
        ("transcription", {"prompt": "a" * 20_000}, "prompt", "20000 characters"),
        ("transcription", {"top_k": 3}, "top_k", "no effect"),
        ("translation", {}, None, "does no translation"),
    ],
)
def test_wrong_requests(twins: Qwen3ASRTwins, task: str, params: Any, param: str | None, said: str) -> None:
    with pytest.raises(RequestError, match=said) as caught:
        twins.preprocessed(task, **params)
    assert caught.value.param == param


def test_ends_of_both_configs(twins: Qwen3ASRTwins, tmp_path: Path) -> None:
    fields = json.loads((twins.path / "config.json").read_text())
    for named, stored, ends in (
        (None, None, {151643, 151645}),
        (None, [5, 6], {5, 6}),
        (7, None, {7}),
        (7, [5, 7], {5, 7}),
    ):
        (tmp_path / "config.json").write_text(json.dumps({**fields, "eos_token_id": named}))
        (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": stored}))
        assert set(Qwen3ASRCheckpoint.from_dir(tmp_path).text.eos_token_ids) == ends


def test_wrong_checkpoints(twins: Qwen3ASRTwins, tmp_path: Path) -> None:
    fields = json.loads((twins.path / "config.json").read_text())
    assert pipeline_of(fields).config(str(twins.path)).tasks == ("transcription",)
    (tmp_path / "config.json").write_text(
        json.dumps({**fields, "architectures": ["Qwen3ASRForTokenClassification"]})
    )
    with pytest.raises(ValueError, match="forced aligner"):
        Qwen3ASRCheckpoint.from_dir(tmp_path)
    with pytest.raises(ValueError, match="2 to 1200"):
        create_transcribe(str(twins.path), piece_seconds=1.0)
