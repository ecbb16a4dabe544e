"""What docs/speech.md and docs/models.md say of speech is so."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

from annotated_types import MaxLen

from sglang_omni.client.audio import FORMAT_MIME_TYPES, encodable_rate
from sglang_omni.models.speech_chat.preprocess import Limits
from sglang_omni.serve.models.speech import CreateSpeechRequest

DOCS = Path(__file__).parents[3] / "docs"


def test_formats_and_their_default() -> None:
    text = (DOCS / "speech.md").read_text()
    row = re.search(r"`/v1/audio/speech`, `response_format` \|([^|]+)\|([^|]+)\|", text)
    assert row is not None
    literal, _ = get_args(CreateSpeechRequest.model_fields["response_format"].annotation)
    formats = re.findall(r"`(\w+)`", row[1])
    assert formats == list(get_args(literal))
    assert set(formats) <= FORMAT_MIME_TYPES.keys()
    usual, streamed = CreateSpeechRequest(input="a"), CreateSpeechRequest(input="a", stream=True)
    assert row[2].strip() == f"`{usual.audio_format}`; with `stream: true` alone, `{streamed.audio_format}`"


def test_rates() -> None:
    assert [encodable_rate("opus", rate) for rate in (7_999, 8_001, 16_000, 44_100, 96_000)] == [
        8_000,
        12_000,
        16_000,
        48_000,
        48_000,
    ]
    assert (encodable_rate("mp3", 96_000), encodable_rate("aac", 192_000)) == (48_000, 96_000)
    assert encodable_rate("flac", 96_000) == encodable_rate("wav", 96_000) == 96_000


def test_longest_text_to_speak() -> None:
    (limit,) = [
        m.max_length for m in CreateSpeechRequest.model_fields["input"].metadata if isinstance(m, MaxLen)
    ]
    assert Limits().speech_chars == limit
    assert f"a text to speak {limit:,} characters" in (DOCS / "models.md").read_text()
