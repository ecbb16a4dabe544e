"""What a server refuses because its model cannot do it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from sglang_omni.client import Client, RequestError
from sglang_omni.serve.api.state import AppState, Capabilities

CONFIG = SimpleNamespace(
    stages=[SimpleNamespace(name="thinker")], input_modalities=("text",), voices=("Ethan", "chelsie")
)


@pytest.fixture
def server() -> AppState:
    return AppState(Client(SimpleNamespace()), capabilities=Capabilities.of(CONFIG))


@pytest.mark.parametrize("voice", [None, "ethan", "ETHAN", "Chelsie"])
def test_voices_are_known_in_any_case(server: AppState, voice: str | None) -> None:
    server.check_voice(voice, "audio.voice")


def test_an_unknown_voice_is_answered_with_those_there_are(server: AppState) -> None:
    with pytest.raises(RequestError, match="has no voice 'nova'; it has chelsie, ethan") as error:
        server.check_voice("nova", "audio.voice")
    assert error.value.param == "audio.voice"


def test_what_the_model_does_not_take(server: AppState) -> None:
    server.check_input("text", "messages[0]")
    with pytest.raises(RequestError, match="takes no image input; it takes text"):
        server.check_input("image", "messages[0].content[1]")


def test_what_a_config_does_not_say_is_not_refused(server: AppState) -> None:
    server.check_output("audio", "modalities")
    server.check_task("speech")
