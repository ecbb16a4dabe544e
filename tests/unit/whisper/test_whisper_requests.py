"""What Whisper's pipeline takes and refuses, and what an abort leaves behind."""

from __future__ import annotations

import json
import shutil

import pytest
from scheduler_runs import WAIT_S, running
from transcription_runs import recording, tones

from sglang_omni.models.whisper.components.checkpoint import WhisperCheckpoint
from sglang_omni.models.whisper.config import default_config
from sglang_omni.models.whisper.preprocess import WhisperPreprocessor
from sglang_omni.models.whisper.stages import create_transcribe
from sglang_omni.proto import OmniRequest, RequestError, StagePayload
from sglang_omni.scheduling.messages import IncomingMessage
from sglang_omni.serve.launch.registry import pipeline_of

SOUND = recording(tones(1, 1.0))


def preprocessed(twins, task="transcription", inputs=None, **params):
    checkpoint = WhisperCheckpoint.from_dir(twins.path)
    preprocess = WhisperPreprocessor(checkpoint, twins.tokenizer, max_bytes=1 << 26)
    inputs = {"audio": SOUND} if inputs is None else inputs
    return preprocess(StagePayload("r", OmniRequest(inputs, params, {"task": task}), None)).data


@pytest.mark.parametrize(
    ("model", "task", "params", "param", "said"),
    [
        ("multilingual", "transcription", {"language": "xx"}, "language", "'xx' is not among the 99"),
        ("multilingual", "transcription", {"language": "germann"}, "language", "not among"),
        ("multilingual", "transcription", {"language": "esperanto"}, "language", "not among"),
        ("english", "transcription", {"language": "de"}, "language", "English \\('en'\\) alone"),
        ("english", "translation", {}, None, "cannot translate"),
        ("english", "transcription", {"prompt": "a" * 20_000}, "prompt", "20000 characters"),
        ("english", "transcription", {"temperature": 9}, "temperature", "temperature"),
        ("english", "transcription", {"top_k": 3}, "top_k", "no effect"),
        ("english", "speech", {}, None, "does no speech"),
    ],
)
def test_wrong_requests(whispers, model, task, params, param, said):
    with pytest.raises(RequestError, match=said) as caught:
        preprocessed(whispers[model], task, **params)
    assert caught.value.param == param


def test_words_have_times_if_the_checkpoint_has_heads_that_follow_them(whispers, tmp_path):
    twins = whispers["english"]
    assert preprocessed(twins, word_timestamps=True)["word_timestamps"]
    assert not preprocessed(twins)["word_timestamps"]
    file = tmp_path / "other" / "generation_config.json"
    shutil.copytree(twins.path, file.parent)
    settings = json.loads(file.read_text())
    file.write_text(json.dumps({**settings, "alignment_heads": [[9, 0]]}))
    with pytest.raises(ValueError, match=r"alignment_heads has \[9, 0\], but .* 3 layers of 4 heads"):
        WhisperCheckpoint.from_dir(file.parent)
    del settings["alignment_heads"]
    file.write_text(json.dumps(settings))
    without = type(twins)(file.parent)
    assert not preprocessed(without)["word_timestamps"]
    with pytest.raises(RequestError, match=r"has no alignment_heads.* leave 'word' out") as caught:
        preprocessed(without, word_timestamps=True)
    assert caught.value.param == "timestamp_granularities[]"


def test_what_is_prepared(whispers):
    twins = whispers["multilingual"]
    data = preprocessed(twins, language="German", prompt=" <|endoftext|> wood", temperature=0.5)
    assert (data["language"], data["translate"], data["temperature"]) == ("de", False, 0.5)
    assert data["before"][0] == twins.model.generation_config.prev_sot_token_id
    # A control token in a prompt is the text that it looks like.
    assert max(data["before"][1:]) < twins.model.generation_config.eos_token_id
    assert twins.tokenizer.decode(data["before"][1:], skip_special_tokens=False) == " <|endoftext|> wood"
    # Of a long prompt, the end.
    long = preprocessed(twins, prompt="wood " * 500)["before"]
    assert len(long) == 32
    assert preprocessed(twins, "translation", language="auto")["translate"]
    assert preprocessed(twins, "translation")["language"] is None


def test_a_checkpoint_that_was_tuned_for_a_language(whispers, tmp_path):
    for name, settings in (
        ("new", {"language": "french", "task": "transcribe"}),
        ("old", {"forced_decoder_ids": [[1, whispers["multilingual"].tokenizer.token_to_id("<|fr|>")]]}),
    ):
        shutil.copytree(whispers["multilingual"].path, tmp_path / name)
        file = tmp_path / name / "generation_config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | settings))
        assert WhisperCheckpoint.from_dir(tmp_path / name).tokens.default_language == "fr"


def test_the_pipeline_of_a_checkpoint(whispers):
    fields = json.loads((whispers["english"].path / "config.json").read_text())
    assert pipeline_of(fields).config(str(whispers["english"].path)).serves.tasks == ["transcription"]
    config = default_config(str(whispers["multilingual"].path))
    assert config.serves.tasks is None
    assert config.tasks == ("transcription", "translation")


def test_one_bad_recording_and_an_abort_among_others(whispers):
    """They free what they hold, and the others are as if alone. One in line is aborted, too."""
    twins = whispers["multilingual"]
    sounds = [tones(seed, 4.0) for seed in range(4)]
    alone = [twins.ours([sound], language="en")[0].result["text"] for sound in sounds]
    scheduler = create_transcribe(str(twins.path), num_threads=1, max_running_requests=3, fallback=False)

    def send(name, file):
        request = OmniRequest(None, {"stream": True}, {"task": "transcription"})
        data = preprocessed(twins, language="en", inputs={"audio": file})
        scheduler.inbox.put(IncomingMessage(name, "new_request", StagePayload(name, request, data)))

    endless = recording(tones(5, 300.0))
    send("endless", endless)
    for index, sound in enumerate(sounds[:3]):
        send(str(index), recording(sound))
    send("broken", recording(sounds[0])[:40] + b"nonsense" * 9)
    send("in line", endless)
    found, errors = {}, {}
    with running(scheduler):
        assert scheduler.outbox.get(timeout=WAIT_S).type == "stream"
        scheduler.abort("endless")
        scheduler.abort("in line")
        send("3", recording(sounds[3]))
        while len(found) + len(errors) < 5:
            message = scheduler.outbox.get(timeout=WAIT_S)
            if message.type != "stream":
                (errors if message.type == "error" else found)[message.request_id] = message.data
    assert [found[str(index)].data["text"] for index in range(4)] == alone
    assert errors["broken"].param == "file"
    assert scheduler.stats() == {"num_running_reqs": 0, "num_queue_reqs": 0}
