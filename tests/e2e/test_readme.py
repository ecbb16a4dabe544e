"""The README's lines for a served demo do what they say."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import wave
from pathlib import Path

import httpx

TEXT = (Path(__file__).resolve().parents[2] / "README.md").read_text()
SERVED = "http://127.0.0.1:8000"


def block(start: str) -> str:
    """The block of code that has a line which begins so."""
    (found,) = [
        code for code in re.findall(r"^```\w*\n(.*?)^```", TEXT, re.M | re.S) if f"\n{start}" in f"\n{code}"
    ]
    return str(found)


def test_the_curl_line_is_answered(api: httpx.Client) -> None:
    words = shlex.split(block("curl").replace("\\\n", ""))
    options = dict(zip(words[2::2], words[3::2], strict=True))
    name, _, value = options["-H"].partition(": ")
    answer = api.post(words[1].removeprefix(SERVED), headers={name: value}, content=options["-d"])
    assert answer.status_code == 200, answer.text
    assert "Paris" in answer.json()["choices"][0]["message"]["content"]
    assert json.loads(options["-d"])["model"] == "speech-chat"


def test_the_openai_sample_prints_and_saves_the_answer(api: httpx.Client, tmp_path: Path) -> None:
    code = block("from openai")
    assert SERVED in code
    code = code.replace(SERVED, str(api.base_url).rstrip("/"))
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Paris" in done.stdout
    with wave.open(str(tmp_path / "answer.wav")) as file:
        assert file.getnframes() > 12_000
