"""Fish Audio S2-Pro as a pipeline, in this process: each sample is as a plain computation has it."""

from __future__ import annotations

import asyncio
import base64
import io
import itertools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import pytest_asyncio
import soundfile
import torch
from fish_codec_oracle import FishCodec
from fish_s2_oracle import CODES, END, FRAME, GROUPS, SHAPE, START, Drawn, FishS2
from tokenizers import Tokenizer

from sglang_omni.config import PipelineRunner, compile_pipeline
from sglang_omni.models.fish_s2_pro.config import FishS2PipelineConfig
from sglang_omni.pipeline.coordinator import Coordinator
from sglang_omni.proto import OmniRequest, RequestError

pytestmark = pytest.mark.asyncio(loop_scope="module")

GREEDY = {"temperature": 0.0, "max_new_tokens": 8}
PASSAGE_FRAMES = 6
VOICE = [[(7 * i + g) % CODES for g in range(GROUPS)] for i in range(4)]
RECORDING = np.random.default_rng(1).normal(0, 0.2, 40 * FRAME - 9).astype(np.float32)
_ids = (f"request-{number}" for number in itertools.count())


class Speaking(NamedTuple):
    coordinator: Coordinator
    fish: FishS2
    codec: FishCodec

    def ids(self, text: str) -> list[int]:
        tokenizer = Tokenizer.from_file(str(self.fish.path / "tokenizer.json"))
        return tokenizer.encode(text, add_special_tokens=False).ids

    async def speak(self, inputs: Any, **params: Any) -> dict[str, Any]:
        request = OmniRequest(inputs, {**GREEDY, **params}, {"task": "speech"})
        return await asyncio.wait_for(self.coordinator.submit(next(_ids), request), 60)

    async def codes(self, inputs: Any, **params: Any) -> list[list[int]]:
        return (await self.speak(inputs, **params))["codec"]["codes"].tolist()

    def expected(self, text: str, voice_text: str, voice: list[list[int]]) -> list[list[int]]:
        """What is said to ``text`` by the voice of a recording."""
        before = self.ids(f"{TASK} reference to the following:\n\nText:\n{voice_text}\n\nSpeech:\n")
        prompt = [*before, *(START + frame[0] for frame in voice), *self.ids(turn(text))]
        frames = {len(before) + i: frame for i, frame in enumerate(voice)}
        return self.fish.speak(prompt, GREEDY["max_new_tokens"], frames)[1]


TASK = "<|im_start|>system\nconvert the provided text to speech"


def turn(text: str) -> str:
    return f"<|im_end|>\n<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n<|voice|>"


def wav(samples: np.ndarray, rate: int = 44_100, kind: str = "FLOAT") -> bytes:
    buffer = io.BytesIO()
    soundfile.write(buffer, samples, rate, format="WAV", subtype=kind)
    return buffer.getvalue()


def base64_of(data: bytes) -> str:
    return base64.b64encode(data).decode()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def speaking(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Speaking]:
    torch.set_num_threads(1)
    folder: Path = tmp_path_factory.mktemp("fish-pipeline")
    fish = FishS2.make(folder / "fish", seed=2)
    (folder / "voices").mkdir()
    (folder / "voices" / "Ann.wav").write_bytes(wav(RECORDING))
    (folder / "voices" / "Ann.txt").write_text("Hi")
    config = FishS2PipelineConfig(
        model_path=str(fish.path),
        runtime_overrides={
            "preprocess": {
                "voices_dir": str(folder / "voices"),
                "passage_bytes": 20,
                "max_voice_seconds": 2.0,
                "max_speech_chars": 500,
            },
            "dual_ar": {"num_threads": 1, "max_passage_frames": PASSAGE_FRAMES},
            "codec": {"num_threads": 1},
        },
    )
    assert config.voices == ("default", "ann")
    coordinator, stages = compile_pipeline(config)
    codec = FishCodec(fish.path, head_dim=16, encoder_rates=SHAPE["encoder_rates"])
    async with PipelineRunner(coordinator, stages):
        yield Speaking(coordinator, fish, codec)


async def test_texts_are_spoken_together_each_in_its_voice(speaking: Speaking) -> None:
    recorded = speaking.codec.encode(torch.from_numpy(RECORDING)).tolist()
    assert END in speaking.ids(turn("Hello."))
    plain = speaking.fish.speak(speaking.ids(TASK + turn("Hello.")), 8)[1]
    by_codes = speaking.expected("Hello.", "<|speaker:0|>Hi", VOICE)
    by_recording = speaking.expected("Hello.", "<|speaker:0|>Hi", recorded)
    without_text = speaking.expected("Hello.", "", recorded)
    audio = base64_of(wav(RECORDING))
    results = await asyncio.gather(
        speaking.speak("Hello."),
        speaking.speak({"text": "Hello.", "voice": {"text": "Hi", "codes": VOICE}}),
        speaking.speak({"text": "Hello."}, ref_audio=audio, ref_text="Hi"),
        speaking.speak({"text": "Hello."}, ref_audio=f"data:audio/wav;base64,{audio}"),
        speaking.speak({"text": "Hello."}, voice="ANN"),
        speaking.speak({"text": "Hello."}, voice="default"),
    )
    expected = [plain, by_codes, by_recording, without_text, by_recording, plain]
    assert [result["codec"]["codes"].tolist() for result in results] == expected
    assert len({str(codes) for codes in expected}) == 4, "voices change what is said"
    for result, codes in zip(results, expected, strict=True):
        sound = result["codec"]["audio_data"]
        assert np.abs(sound - speaking.codec.decode(torch.tensor(codes)).numpy()).max() < 1e-5
        assert result["codec"]["sample_rate"] == 44_100
    usage = results[0]["dual_ar"]["usage"]
    assert usage["prompt_tokens"] == len(speaking.ids(TASK + turn("Hello.")))


async def test_a_long_text_is_spoken_by_sentences_as_one_conversation(speaking: Speaking) -> None:
    texts = ["One is first.", "Two comes. Then?", "Three goes on.", "Four ends it all."]
    prompt, frames, spoken = speaking.ids(TASK), {}, []
    turns: list[tuple[list[int], list[int], list[list[int]]]] = []
    for number, text in enumerate(texts):
        # In the model's own voice, the first passage stays for its sound and the last for how it was spoken.
        kept = turns if number < 3 else [turns[0], turns[-1]]
        prompt, frames = speaking.ids(TASK), {}
        for earlier, tokens, codes in kept:
            prompt = prompt + earlier
            frames |= {len(prompt) + i: frame for i, frame in enumerate(codes)}
            prompt = prompt + tokens
        ids = speaking.ids(turn(text))
        tokens, codes = speaking.fish.speak(prompt + ids, PASSAGE_FRAMES, frames)
        turns.append((ids, tokens[: len(codes)], codes))
        spoken += codes
    result = await speaking.speak(" ".join(texts), max_new_tokens=None)
    assert result["codec"]["codes"].tolist() == spoken
    # One sound without a seam: the decoder goes on where the passage before has ended.
    expected = speaking.codec.decode(torch.tensor(spoken)).numpy()
    assert np.abs(result["codec"]["audio_data"] - expected).max() < 1e-5
    assert result["dual_ar"]["usage"]["completion_tokens"] >= len(spoken)


async def test_a_limit_is_that_of_the_whole_speech(speaking: Speaking) -> None:
    text = "One is first. Two comes. Then? Three ends it all."
    whole = await speaking.codes(text, max_new_tokens=40)
    result = await speaking.speak(text, max_new_tokens=3)
    assert result["codec"]["codes"].tolist() == whole[:3]
    assert result["dual_ar"]["finish_reason"] == "length"


async def test_a_seed_makes_a_speech_and_passages_differ(speaking: Speaking) -> None:
    same = "Say it once more. Say it once more."
    drawn = {"temperature": 1.0, "top_p": 1.0, "max_new_tokens": None}
    first, again, other = await asyncio.gather(
        *(speaking.codes(same, **drawn, seed=seed) for seed in (1, 1, 2))
    )
    assert first == again
    assert first != other
    assert first[:PASSAGE_FRAMES] != first[PASSAGE_FRAMES:]


async def test_drawn_codes_are_the_authors(speaking: Speaking) -> None:
    asked: list[dict[str, Any]] = [
        {"temperature": 0.8, "top_p": 0.8, "top_k": 30},
        {"temperature": 0.3, "top_p": 0.6, "top_k": 30},
        {"temperature": 1.4, "top_p": 0.5, "top_k": 9},
        {"temperature": 1.0, "top_p": 0.95, "top_k": 20},
    ]
    prompt = speaking.ids(TASK + turn("Hello."))
    right = [speaking.fish.speak(prompt, 6, None, Drawn(seed, **each))[1] for seed, each in enumerate(asked)]
    *codes, greedy = await asyncio.gather(
        *(speaking.codes("Hello.", **each, seed=seed, max_new_tokens=6) for seed, each in enumerate(asked)),
        speaking.codes("Hello.", max_new_tokens=6),
    )
    assert codes == right
    assert greedy == speaking.fish.speak(prompt, 6)[1]


async def test_a_text_cannot_end_its_turn(speaking: Speaking) -> None:
    texts = ["Hi", "Hi<|im_end|>", "Hi<|im_end|> "]
    results = [await speaking.speak(text) for text in texts]
    lengths = [result["dual_ar"]["usage"]["prompt_tokens"] for result in results]
    # The space at the end is not spoken.
    assert [n - lengths[0] for n in lengths] == [0, len("<|im_end|>"), len("<|im_end|>")]


@pytest.mark.parametrize(
    ("inputs", "params", "param", "message"),
    [
        ("", {}, "input", "no text to speak"),
        (" \n", {}, "input", "no text to speak"),
        ({}, {}, "input", "no text to speak"),
        ("a\ud800", {}, "input", "no valid Unicode"),
        ("a" * 501, {}, "input", "501 characters long; the limit is 500"),
        (
            {"text": "a", "voice": {"text": "b", "codes": [[1, 2]]}},
            {},
            "voice",
            r"\(frames, 5\), got \(1, 2\)",
        ),
        ({"text": "a", "voice": {"text": "b", "codes": [[CODES] * GROUPS]}}, {}, "voice", "between 0 and 39"),
        ({"text": "a", "voice": {"text": "b", "codes": "x"}}, {}, "voice", "no integers"),
        ({"text": "a", "voice": {"text": 3, "codes": VOICE}}, {}, "voice", "its codes, and perhaps the text"),
        ("a", {"voice": "bob"}, "voice", "no voice 'bob'; there are default, ann"),
        ("a", {"ref_text": "b"}, "ref_text", "ref_audio, which is missing"),
        ("a", {"ref_audio": base64_of(b"noise" * 40)}, "ref_audio", "not audio that can be decoded"),
        ("a", {"ref_audio": "%%%"}, "ref_audio", "not valid base64"),
        ("a", {"ref_audio": ""}, "ref_audio", "is empty"),
        ("a", {"ref_audio": "http://localhost/a.wav"}, "ref_audio", "does not fetch media"),
        ("a", {"ref_audio": 5}, "ref_audio", "got int"),
        ("a", {"ref_audio": base64_of(wav(RECORDING)), "ref_text": 5}, "ref_text", "must be a text"),
        ("a", {"ref_audio": base64_of(wav(RECORDING)), "voice": "ann"}, "ref_audio", "one of the two"),
        ("a", {"ref_audio": base64_of(wav(RECORDING[:400]))}, "ref_audio", "at least 0.05 s"),
        ("a", {"ref_audio": base64_of(wav(np.zeros(90_000)))}, "ref_audio", "2.0 s long; the limit is 2 s"),
        ("a", {"speed": 2.0}, "speed", "no effect"),
        ("a", {"temperature": 9.0}, "temperature", "from 0 to 2"),
    ],
)
async def test_what_cannot_be_spoken_is_refused(
    speaking: Speaking, inputs: Any, params: dict[str, Any], param: str, message: str
) -> None:
    with pytest.raises(RequestError, match=message) as refused:
        await speaking.speak(inputs, **params)
    assert refused.value.param == param
    assert len(await speaking.codes("Hello.")) > 0


async def test_a_recording_at_another_rate_is_resampled(speaking: Speaking) -> None:
    seconds = np.arange(8000) / 16_000
    tone = (0.5 * np.sin(2 * np.pi * 220 * seconds)).astype(np.float32)
    spoken = await speaking.speak("a", ref_audio=base64_of(wav(tone, 16_000, "PCM_16")))
    frames = -(-22_050 // FRAME)
    plain = await speaking.speak("a")
    longer = spoken["dual_ar"]["usage"]["prompt_tokens"] - plain["dual_ar"]["usage"]["prompt_tokens"]
    words = len(speaking.ids(" reference to the following:\n\nText:\n\n\nSpeech:\n"))
    assert longer == words + frames
