"""The page lists kept voices, and its answers are spoken with the one that is chosen."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Page
from served_process import ServedProcess
from speech_server import recorded
from talking import answer, ask, set_option
from waiting import PATIENCE

from sglang_omni.models.csm.tiny_checkpoint import make


@pytest.mark.long
def test_a_kept_voice_is_listed_and_speaks(tmp_path: Path, open_page: Callable[[str], Page]) -> None:
    """Of a cascade whose voice is a model that clones."""
    make(tmp_path / "voice", 3)
    flags = ("--tts", str(tmp_path / "voice"), "--voices-dir", str(tmp_path / "kept"))
    with ServedProcess(tmp_path / "log", *flags) as served:
        file = {"audio_sample": ("a.wav", base64.b64decode(recorded(1.2)[1]))}
        form = {"name": "Anna", "consent": "cons_1", "ref_text": "Hi there"}
        made = httpx.post(f"{served.base_url}/v1/audio/voices", files=file, data=form, timeout=PATIENCE)
        assert made.status_code == 200, made.text
        page = open_page(served.base_url)
        set_option(page, "Voice", "Anna")
        set_option(page, "Maximum length", 4)
        with page.expect_request("**/v1/chat/completions") as asked:
            ask(page, "Hello?")
        assert asked.value.post_data_json["audio"]["voice"] == "Anna"
        answer(page, "cut")
