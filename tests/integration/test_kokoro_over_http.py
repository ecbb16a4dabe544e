"""Kokoro behind the real API on a real socket: what is heard is what its authors' package says.

Long are the tests that need the package, which ``make test-long`` installs.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from kokoro_oracle import RATE, KokoroOracle
from speech_server import SpeechServer, equals, samples
from waiting import PATIENCE, until

from sglang_omni.models.kokoro.config import default_config
from sglang_omni.models.kokoro.tiny_checkpoint import make

SAID = "hɛlˈO wˈɜɹld, ðɪs ɪz ə tˈɛst."
# Of another seed and shape than those of the comparison in all ways.
SHAPE = {"hidden_dim": 40, "layers": 1, "channels": 48, "kernels": (3, 11), "inner_channels": 32}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("kokoro"), 7, **SHAPE)


@pytest.fixture(scope="module")
def server(path: Path) -> Iterator[SpeechServer]:
    config = default_config(str(path))
    config.runtime_overrides = {"preprocess": {"max_speech_chars": 4000}, "voice": {"num_threads": 1}}
    server = SpeechServer(config)
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def oracle(path: Path) -> KokoroOracle:
    return KokoroOracle(path)


def ask(server: SpeechServer, text: str, **fields: Any) -> httpx.Response:
    body = {"input": text, "response_format": "pcm", "language": "ipa", **fields}
    return httpx.post(f"{server.url}/v1/audio/speech", json=body, timeout=PATIENCE)


def say(server: SpeechServer, text: str, **fields: Any) -> np.ndarray:
    answer = ask(server, text, **fields)
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-sample-rate"] == str(RATE)
    return samples(answer.content)


def streamed(server: SpeechServer, text: str, **fields: Any) -> list[bytes]:
    body = {"input": text, "response_format": "pcm", "language": "ipa", "stream": True, **fields}
    with httpx.stream("POST", f"{server.url}/v1/audio/speech", json=body, timeout=PATIENCE) as stream:
        return list(stream.iter_raw())


@pytest.mark.long
def test_phonemes_whole_and_streamed(server: SpeechServer, oracle: KokoroOracle) -> None:
    lines = [SAID, SAID[:13], SAID[14:]]
    due = oracle.speak(lines, "bf_emma", speed=1.2, seed=5)
    fields = {"voice": "bf_emma", "speed": 1.2, "seed": 5}
    assert equals(say(server, "\n".join(lines), **fields), due.samples)
    pieces = streamed(server, "\n".join(lines), **fields)
    assert len(pieces) > 1
    assert equals(samples(b"".join(pieces)), due.samples)


@pytest.mark.long
def test_eight_at_once_beside_callers_who_leave(server: SpeechServer, oracle: KokoroOracle) -> None:
    texts = [SAID + f" {'wˈʌn ' * index}tˈu." for index in range(8)]
    due = [oracle.speak([text], "am_adam", seed=index).samples for index, text in enumerate(texts)]

    def leave(index: int) -> None:
        text = "\n".join([SAID] * 40)
        body = {"input": text, "response_format": "pcm", "language": "ipa", "stream": True, "seed": index}
        with httpx.stream("POST", f"{server.url}/v1/audio/speech", json=body, timeout=PATIENCE) as stream:
            next(stream.iter_raw())

    with ThreadPoolExecutor(12) as pool:
        left = [pool.submit(leave, index) for index in range(4)]
        heard = list(pool.map(lambda index: say(server, texts[index], voice="am_adam", seed=index), range(8)))
        for each in left:
            each.result()
    assert [equals(found, each) for found, each in zip(heard, due, strict=True)] == [True] * 8
    # Of those who left, nothing is computed on.
    asyncio.run(until(lambda: server.load() == 0))


@pytest.mark.long
def test_blends(server: SpeechServer, oracle: KokoroOracle) -> None:
    mean = oracle.speak([SAID], "af_heart,jf_alpha").samples
    assert equals(say(server, SAID, voice="af_heart,jf_alpha"), mean)
    assert equals(say(server, SAID, voice="AF_heart + jf_alpha"), mean)
    heart, alpha = oracle.pack("af_heart"), oracle.pack("jf_alpha")
    due = oracle.speak([SAID], heart * 0.75 + alpha * 0.25).samples
    assert equals(say(server, SAID, voice="af_heart(3)+jf_alpha(1)"), due)


@pytest.mark.long
@pytest.mark.parametrize(
    ("voice", "language", "spoken", "text"),
    [
        ("ef_dora", None, "es", "Hola, ¿qué tal?"),
        ("af_heart", "fr", "fr", "Bonjour le monde."),
        ("jf_alpha", None, "ja", "こんにちは。"),
        ("zf_xiaobei", "zh", "zh", "你好，世界！"),
    ],
)
def test_texts(
    server: SpeechServer, oracle: KokoroOracle, voice: str, language: str | None, spoken: str, text: str
) -> None:
    due = oracle.speak(oracle.parts(text, spoken), voice)
    assert equals(say(server, text, voice=voice, language=language), due.samples)


def test_a_seed_and_the_default_voice(server: SpeechServer) -> None:
    first, again, other = (say(server, SAID, seed=seed) for seed in (0, 0, 1))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert np.array_equal(say(server, SAID), first)
    answer = ask(server, SAID, voice="alloy")
    assert np.array_equal(samples(answer.content), first)
    assert "af_heart" in answer.headers["warning"]


def test_times_of_words(server: SpeechServer) -> None:
    lines = [SAID, SAID[:13]]
    body = {"input": "\n".join(lines), "response_format": "pcm", "language": "ipa"}
    told = httpx.post(
        f"{server.url}/v1/audio/speech", json={**body, "timestamp_granularities": ["word"]}, timeout=PATIENCE
    ).json()
    assert told["granularity"] == "word"
    assert [each["word"] for each in told["words"]] == " ".join(lines).split()
    starts = [each["start"] for each in told["words"]]
    assert starts == sorted(starts)
    # Those of the second line are timed from where the first begins.
    first, whole = (len(say(server, text)) / RATE for text in (lines[0], "\n".join(lines)))
    assert starts[5] < first <= starts[6] < told["words"][-1]["end"] < whole


def test_speed(server: SpeechServer) -> None:
    slow, fast = (len(say(server, SAID, speed=speed)) for speed in (0.5, 2.0))
    assert slow > 1.5 * fast


def test_a_long_line_loses_nothing(server: SpeechServer) -> None:
    """It is cut into parts of at most 510 phonemes, at the ends of sentences."""
    pieces = streamed(server, " ".join([SAID] * 40))
    assert len(pieces) > 2
    one = len(say(server, SAID))
    assert sum(map(len, pieces)) / 2 > 25 * one


def test_what_the_server_says_of_its_voices(server: SpeechServer) -> None:
    told = httpx.get(f"{server.url}/v1/audio/voices", timeout=PATIENCE).json()
    assert told["default_voice"] == "af_heart"
    assert told["languages"] == ["en", "es", "fr", "hi", "it", "ja", "pt", "zh"]


@pytest.mark.parametrize(
    ("text", "fields", "param", "told"),
    [
        (SAID, {"voice": "nobody"}, "voice", "has no voice 'nobody'"),
        (SAID, {"voice": "af_heart+nobody(2)"}, "voice", "has no voice 'nobody'"),
        (SAID, {"voice": "af_heart(0)+bf_emma"}, "voice", "a blend is written as"),
        (SAID, {"language": "klingon"}, "language", "does not speak 'klingon'"),
        ("§§", {}, "input", "nothing that this model can speak"),
        ("a" * 4001, {}, "input", "the limit is 4000"),
        (SAID, {"speed": 9}, "speed", "must be at most 4"),
        (SAID, {"temperature": 0.5}, "temperature", "of no effect"),
    ],
)
def test_what_is_refused(
    server: SpeechServer, text: str, fields: dict[str, Any], param: str, told: str
) -> None:
    answer = ask(server, text, **fields)
    assert answer.status_code in (400, 422), answer.text
    assert answer.json()["error"]["param"] == param, answer.text
    assert told in answer.json()["error"]["message"]


def test_a_language_without_its_packages(server: SpeechServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sglang_omni.packages.importlib.util.find_spec", lambda name: None)
    answer = ask(server, "Hola.", language="es")
    assert answer.status_code == 400, answer.text
    assert "pip install 'sgl-omni[kokoro]'" in answer.json()["error"]["message"]


def test_a_broken_checkpoint_is_named(path: Path, tmp_path: Path) -> None:
    from sglang_omni.models.kokoro.components.checkpoint import KokoroCheckpoint
    from sglang_omni.models.kokoro.components.weights import load_kokoro

    (tmp_path / "config.json").write_bytes((path / "config.json").read_bytes())
    file = tmp_path / "kokoro-v1_0.pth"
    file.write_bytes(b"no archive")
    with pytest.raises(ValueError, match="corrupted, or no file of tensors"):
        load_kokoro(KokoroCheckpoint.from_dir(tmp_path), "cpu")
    whole = torch.load(path / "kokoro-v1_0.pth")
    del whole["decoder"]["module.generator.conv_post.bias"]
    torch.save(whole, file)
    with pytest.raises(ValueError, match=r"lacks the tensor 'decoder.generator.conv_post.bias'"):
        load_kokoro(KokoroCheckpoint.from_dir(tmp_path), "cpu")
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "max_dur": 7}))
    torch.save(torch.load(path / "kokoro-v1_0.pth"), file)
    with pytest.raises(ValueError, match=r"duration_proj.linear_layer.weight has the shape \(6, 40\)"):
        load_kokoro(KokoroCheckpoint.from_dir(tmp_path), "cpu")
