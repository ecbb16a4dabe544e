"""Fish Audio S2-Pro through HTTP and its own processes, from its published id: whole, streamed, in cloned
voices, many at once. See ``test_published_models``."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import published_speech
import pytest
import soundfile
import torch
from decoded_audio import by_ffmpeg
from fish_codec_oracle import FishCodec
from fish_s2_oracle import FRAME, LIKELIEST, SHAPE, Drawn, FishS2, Likeliest
from published_server import served
from published_speech import FISH
from tokenizers import Tokenizer

from sglang_omni.generation.audio import decode_pcm

TEXTS = ["Hello.", "How are you?", "It rains.", "Go on, and on.", "No.", "Why?", "Here it is.", "The end."]
LONG = "This is the first sentence. Here comes another one, a bit longer! Is this the third? And the end."
GREEDY = {"dual_ar": {"temperature": 0.0}}
# Speech on a CPU depends on batch and cuts by the rounding of float32; it is sent in 16 bits.
TOLERANCE = 1.01 / 32768


def recording(seed: int, seconds: float = 0.1, rate: int = 24_000) -> bytes:
    """A WAV file of noise."""
    samples = np.random.default_rng(seed).normal(0, 0.2, int(seconds * rate))
    buffer = io.BytesIO()
    soundfile.write(buffer, samples, rate, format="WAV")
    return buffer.getvalue()


def base64_of(data: bytes) -> str:
    return base64.b64encode(data).decode()


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return published_speech.fish(tmp_path_factory.mktemp("fish") / "repository", seed=2, **SHAPE)


@pytest.fixture(scope="module", params=["omni", pytest.param("sglang", marks=pytest.mark.long)])
def client(
    request: pytest.FixtureRequest, repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[openai.OpenAI]:
    folder: Path = tmp_path_factory.mktemp(f"fish-{request.param}")
    voices = folder / "voices"
    voices.mkdir()
    (voices / "ann.wav").write_bytes(recording(7))
    (voices / "ann.txt").write_text("I am Ann.")
    settings = {
        "preprocess.voices_dir": voices,
        "preprocess.passage_bytes": 40,
        "preprocess.max_voice_seconds": 1.0,
        "dual_ar.max_passage_frames": 24,
        "dual_ar.num_threads": 1,
        "codec.num_threads": 1,
    }
    stages = [part for name, value in settings.items() for part in ("--stage", f"{name}={value}")]
    with served(folder, FISH, repository, "--engine", request.param, *stages) as client:
        yield client


@pytest.fixture(scope="module")
def api(client: openai.OpenAI) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=str(client.base_url).removesuffix("/v1/"), timeout=120) as api:
        yield api


class Right:
    """What the oracles say."""

    def __init__(self, repository: Path) -> None:
        self._fish = FishS2.load(repository)
        self._codec = FishCodec(repository, head_dim=16, encoder_rates=SHAPE["encoder_rates"])
        self._tokenizer = Tokenizer.from_file(str(repository / "tokenizer.json"))

    def speech(
        self,
        text: str,
        frames: int,
        choose: Likeliest | Drawn = LIKELIEST,
        heard: tuple[str, bytes] | None = None,
    ) -> np.ndarray:
        """
        Args:
            heard: What a voice says in its recording.
        """
        task = "<|im_start|>system\nconvert the provided text to speech"
        prompt, codes = self._ids(task), {}
        if heard is not None:
            said, encoded = heard
            samples, _ = soundfile.read(io.BytesIO(encoded), dtype="float32")
            voice = self._codec.encode(torch.from_numpy(samples)).tolist()
            # The authors' parts, each with tokens of its own.
            parts = (
                f"{task} reference to the following:\n\nText:\n",
                f"<|speaker:0|>{said}",
                "\n\nSpeech:\n",
            )
            prompt = [token for part in parts for token in self._ids(part)]
            codes = dict(enumerate(voice, start=len(prompt)))
            prompt += [self._fish.start + frame[0] for frame in voice]
        prompt += self._ids(
            f"<|im_end|>\n<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n<|voice|>"
        )
        _, spoken = self._fish.speak(prompt, frames, codes, choose)
        return self._codec.decode(torch.tensor(spoken)).numpy()

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids


@pytest.fixture(scope="module")
def right(repository: Path) -> Right:
    return Right(repository)


def say(api: httpx.Client, text: str, **fields: Any) -> np.ndarray:
    """The whole speech's samples."""
    body = {"input": text, "response_format": "pcm", "stage_params": GREEDY, **fields}
    answer = api.post("/v1/audio/speech", json=body)
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-sample-rate"] == "44100"
    return decode_pcm(answer.content)


def same(one: np.ndarray, other: np.ndarray) -> bool:
    return one.shape == other.shape and bool(np.abs(one - other).max() <= TOLERANCE)


def test_the_model_says_what_it_does(api: httpx.Client) -> None:
    info = api.get("/v1/audio/voices").json()
    assert info["voices"] == ["ann", "default"]
    refused = api.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "Hi"}]})
    assert refused.status_code == 400
    assert "does not do chat" in refused.json()["error"]["message"]
    upload = api.post("/v1/audio/voices", files={"audio_sample": ("me.wav", recording(1))})
    assert upload.status_code == 400
    assert "as ref_audio" in upload.json()["error"]["message"]


@pytest.mark.parametrize("text", ["Hello.", LONG])
def test_a_stream_is_the_whole(api: httpx.Client, text: str) -> None:
    whole = say(api, text)
    assert len(whole) % FRAME == 0
    body = {"input": text, "stream": True, "stage_params": GREEDY}
    with api.stream("POST", "/v1/audio/speech", json=body) as answer:
        assert answer.status_code == 200, answer.read()
        pieces = list(answer.iter_raw())
    assert len(pieces) > 1
    assert same(decode_pcm(b"".join(pieces)), whole)
    with api.stream("POST", "/v1/audio/speech", json={**body, "stream_format": "sse"}) as answer:
        events = [json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: {")]
    assert events[-1]["type"] == "speech.audio.done"
    assert events[-1]["usage"]["output_tokens"] >= len(whole) // FRAME


def test_codes_are_drawn_as_the_request_says(api: httpx.Client) -> None:
    body = {"input": "Hello.", "response_format": "pcm", "temperature": 0, "max_tokens": 12}
    first, again = (api.post("/v1/audio/speech", json=body) for _ in range(2))
    assert (first.status_code, first.content) == (200, again.content)
    greedy = {"dual_ar": {"temperature": 0.0, "max_new_tokens": 12}}
    assert same(decode_pcm(first.content), say(api, "Hello.", stage_params=greedy))
    drawn = {**body, "temperature": 1.5, "seed": 1}
    assert api.post("/v1/audio/speech", json=drawn).content != first.content


def test_a_text_is_spoken_as_the_oracle_does(api: httpx.Client, right: Right) -> None:
    limit = {"stage_params": {"dual_ar": {"temperature": 0.0, "max_new_tokens": 12}}}
    own = say(api, "Hello.", **limit)
    assert same(own, right.speech("Hello.", 12))
    heard = recording(3, rate=44_100)
    cloned = say(api, "Hello.", ref_audio=base64_of(heard), ref_text="Three.", **limit)
    assert same(cloned, right.speech("Hello.", 12, heard=("Three.", heard)))
    assert not same(own, cloned)


def test_openais_client_and_its_defaults(client: openai.OpenAI, right: Right) -> None:
    """Codes are drawn as the authors draw them."""
    mp3 = client.audio.speech.with_raw_response.create(model=FISH, voice="alloy", input="Hello.")
    assert "alloy" in mp3.headers["warning"]
    samples, rate = by_ffmpeg(mp3.content)
    assert (rate, len(samples) > 0) == (44_100, True)
    wav = client.audio.speech.create(
        model=FISH,
        voice="default",
        input="Hello.",
        response_format="wav",
        extra_body={"seed": 3, "max_new_tokens": 12},
    ).content
    samples, rate = soundfile.read(io.BytesIO(wav), dtype="float32")
    assert rate == 44_100
    assert same(samples, right.speech("Hello.", 12, Drawn(3, temperature=0.8, top_p=0.8, top_k=30)))


def test_a_long_text_is_spoken_to_its_end(api: httpx.Client) -> None:
    """Its first passage is as alone; the others go on."""
    first = "This is the first sentence."
    alone, whole = say(api, first), say(api, LONG)
    assert same(whole[: len(alone)], alone)
    assert len(whole) > 2 * len(alone)


def test_voices_change_the_sound(api: httpx.Client) -> None:
    own = say(api, "Hello.")
    one = {"ref_audio": base64_of(recording(1)), "ref_text": "One."}
    cloned = say(api, "Hello.", **one)
    assert not same(cloned, own)
    assert same(say(api, "Hello.", **one), cloned)
    other = say(api, "Hello.", **{**one, "ref_audio": f"data:audio/wav;base64,{base64_of(recording(2))}"})
    assert not same(other, cloned)
    named = say(api, "Hello.", voice="Ann")
    assert same(named, say(api, "Hello.", ref_audio=base64_of(recording(7)), ref_text="I am Ann."))
    assert not same(named, own)


def test_eight_at_once_are_each_as_alone(api: httpx.Client) -> None:
    voices: list[dict[str, Any]] = [
        {},
        {"voice": "ann"},
        {"ref_audio": base64_of(recording(3)), "ref_text": "Three."},
    ]
    asked = [(text, voices[number % 3]) for number, text in enumerate(TEXTS)]
    alone = [say(api, text, **voice) for text, voice in asked]
    with ThreadPoolExecutor(len(asked)) as pool:
        together = list(pool.map(lambda each: say(api, each[0], **each[1]), asked))
    assert all(map(same, together, alone))
    assert len({samples.tobytes() for samples in alone}) > len(voices)


def test_a_neighbour_that_leaves_costs_nothing(api: httpx.Client) -> None:
    alone = say(api, LONG)
    body = {"input": LONG, "stream": True, "stage_params": GREEDY}
    with ThreadPoolExecutor(2) as pool:
        kept = pool.submit(say, api, LONG)
        for _ in range(3):
            with api.stream("POST", "/v1/audio/speech", json=body) as answer:
                next(answer.iter_raw())
        assert same(kept.result(), alone)


@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        ({"input": ""}, "input", "must not be empty"),
        ({"input": " "}, "input", "blank"),
        ({"input": "a" * 16_385}, "input", "16384"),
        ({"ref_audio": base64_of(b"noise" * 40)}, "ref_audio", "not audio that can be decoded"),
        ({"ref_audio": "%%%"}, "ref_audio", "not valid base64"),
        ({"ref_audio": base64_of(recording(1, seconds=1.5))}, "ref_audio", "the limit is 1 s"),
        ({"ref_audio": "https://example.org/a.wav"}, "ref_audio", "does not fetch media"),
        ({"ref_text": "alone"}, "ref_text", "ref_audio, which is missing"),
        ({"voice": "bob"}, "voice", "no voice 'bob'; it has ann, default"),
        ({"speed": 2}, "speed", "no effect"),
        ({"temperature": -1}, "temperature", "must be at least 0"),
        ({"top_p": 0}, "top_p", "must be more than 0"),
        ({"top_k": 1.5}, "top_k", "must be a whole number"),
        ({"max_tokens": 0}, "max_tokens", "must be at least 1"),
        ({"max_new_tokens": 3, "max_tokens": 4}, "max_new_tokens", "differ"),
        ({"stage_params": {"dual_ar": {"temperature": -1}}}, "stage_params.dual_ar.temperature", "from 0 to"),
        ({"stage_params": {"dual_ar": {"ignore_eos": True}}}, "stage_params.dual_ar.ignore_eos", "not"),
    ],
)
def test_what_is_wrong_is_named(api: httpx.Client, fields: dict[str, Any], param: str, said: str) -> None:
    answer = api.post("/v1/audio/speech", json={"input": "Hello.", **fields})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == param
    assert said in error["message"]
