"""docs/client.md and the client's examples run before the fleet; the page's tables list what there is."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from served_process import ServedProcess

from sglang_omni.client import Client, GenerateRequest, Sound, SyncClient
from sglang_omni.client.realtime import RealtimeSession

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "client.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```", TEXT, re.M | re.S)
QUESTION = "What is the capital of France?"
# What each block prints, in order, and the files that it writes.
PRINTED = [
    r"(.|\n)*Paris(.|\n)*\d+ tokens, (stop|length)",
    r"\w+",
    r"What is the capital of France\? -> .*",
    r"(\d\.\d+ s\n)+\d\.\d+ 24000\nHello there\. How are you\?\n('.*'\n)+",
    r"(.|\n)*heard: What is the capital of France\?\n(.|\n)*Paris",
    r"",
    r"400 voice voice: the model 'speech-chat' has no voice 'bob'",
]
WRITTEN = {2: ["answer.mp3", "answer.wav"], 3: ["hello.flac"], 4: ["paris.wav"], 5: ["question.wav"]}


@pytest.fixture(scope="module")
def spoken(fleet: ServedProcess, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the microphone hears: the question, and silence."""
    path = tmp_path_factory.mktemp("spoken") / "question.wav"
    with SyncClient(fleet.base_url) as client:
        chunks = list(client.speech_stream(GenerateRequest(prompt=QUESTION)))
    samples = [chunk.samples for chunk in chunks]
    Sound(np.concatenate([*samples, np.zeros(36_000, np.float32)]), 24_000).save(path)
    return path


@pytest.fixture
def env(spoken: Path, tmp_path: Path) -> dict[str, str]:
    """Of a machine with a sound card."""
    card = {"SOUND_CARD_PLAYED": str(tmp_path / "played.pcm"), "SOUND_CARD_HEARS": str(spoken)}
    return os.environ | {"PYTHONPATH": str(ROOT / "tests" / "sound_card")} | card


def run(folder: Path, env: dict[str, str], *command: str) -> str:
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, env=env, capture_output=True, text=True, timeout=240
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize("index", range(len(PRINTED)))
def test_the_page_runs(index: int, fleet: ServedProcess, env: dict[str, str], tmp_path: Path) -> None:
    assert len(BLOCKS) == len(PRINTED)
    code = BLOCKS[index].replace("http://127.0.0.1:8000", fleet.base_url)
    assert fleet.base_url in code
    printed = run(tmp_path, env, "-c", code)
    assert re.match(PRINTED[index], printed), printed
    for name in WRITTEN.get(index, ()):
        assert Sound.load(tmp_path / name).seconds > 0.5


def test_what_the_page_plays(fleet: ServedProcess, env: dict[str, str], tmp_path: Path) -> None:
    run(tmp_path, env, "-c", BLOCKS[5].replace("http://127.0.0.1:8000", fleet.base_url))
    assert (tmp_path / "played.pcm").stat().st_size > 2 * 24_000


def test_the_tables_list_what_there_is() -> None:
    for kind, heading in ((Client, "## Methods"), (RealtimeSession, "| `RealtimeSession`")):
        table = TEXT[TEXT.index(heading) :].split("\n\n", 2 if kind is Client else 1)[kind is Client]
        listed = set(re.findall(r"(?:^\| |, )`(\w+)\(", table, re.M))
        methods = {name for name in vars(kind) if not name.startswith("_")}
        assert listed == methods - {"observe", "require_answers"}


def test_a_streamed_answer(fleet: ServedProcess, env: dict[str, str], tmp_path: Path) -> None:
    printed = run(tmp_path, env, str(ROOT / "examples/client_chat.py"), fleet.base_url, QUESTION)
    assert re.search(r"\n\((stop|length), \d+ tokens\)\n$", printed)
    assert Sound.load(tmp_path / "answer.wav").seconds > 0.5


def test_spoken_and_written_down(fleet: ServedProcess, env: dict[str, str], tmp_path: Path) -> None:
    example = str(ROOT / "examples/client_speech.py")
    printed = run(tmp_path, env, example, fleet.base_url, "Hello there.", "hello.wav")
    assert re.search(r"\n +\d\.\d\d Hello\n +\d\.\d\d there\.\n$", printed)


def test_a_conversation_by_voice(fleet: ServedProcess, env: dict[str, str], tmp_path: Path) -> None:
    """The microphone of tests gives its sound at once, so the server hears one turn and much silence."""
    out = tmp_path / "said.txt"
    with out.open("w") as said:
        command = [sys.executable, "-u", str(ROOT / "examples/client_voice.py"), fleet.base_url]
        talk = subprocess.Popen(command, cwd=tmp_path, env=env, stdout=said, stderr=said)
        try:
            deadline = time.monotonic() + 200
            while "(completed)" not in out.read_text() and time.monotonic() < deadline:
                assert talk.poll() is None, out.read_text()
                time.sleep(0.1)
        finally:
            talk.kill()
            talk.wait()
    assert f"you: {QUESTION}\n" in out.read_text()
    assert (tmp_path / "played.pcm").stat().st_size > 24_000
