"""A text model whose chat template cannot be compiled: it is served, and answers what needs no template."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from speech_server import SpeechServer
from tiny_checkpoints import TinyCheckpoint, with_tokenizer
from waiting import PATIENCE

from sglang_omni.models.text.config import TextPipelineConfig

PROMPT = [5, 7, 11, 150, 3]


def test_completions_are_answered_and_chats_refused(
    tiny_checkpoint: Callable[..., TinyCheckpoint], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoint = tiny_checkpoint("llama")
    path = with_tokenizer(checkpoint, tmp_path / "llama", do_sample=False)
    template = path / "chat_template.jinja"
    template.write_text("{% for message in messages %}\n{{ message.content | shout }}{% endfor %}")
    server = SpeechServer(TextPipelineConfig(model_path=str(path)))
    with caplog.at_level(logging.WARNING):
        server.start()
    try:
        warnings = [line for line in caplog.messages if "chats are refused" in line]
        assert len(warnings) == 1
        assert f"{template}, line 2: No filter named 'shout'" in warnings[0]
        ask = {"model": "speech", "max_tokens": 6}
        url = f"{server.url}/v1"
        whole = httpx.post(f"{url}/completions", json={**ask, "prompt": PROMPT}, timeout=PATIENCE)
        expected = " ".join(f"t{token}" for token in checkpoint.greedy(PROMPT, 6))
        assert whole.json()["choices"][0]["text"] == expected
        for stream in (False, True):
            chat = {**ask, "messages": [{"role": "user", "content": "t5"}], "stream": stream}
            refused = httpx.post(f"{url}/chat/completions", json=chat, timeout=PATIENCE)
            assert refused.status_code == 400
            error = refused.json()["error"]
            assert "chat_template.jinja, line 2: No filter named 'shout'" in error["message"]
            assert "--chat-template FILE" in error["message"]
            assert (error["type"], error["param"], error["code"]) == (
                "invalid_request_error",
                "messages",
                "unsupported_task",
            )
    finally:
        server.stop()
