"""What a server refuses because its model cannot do it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from sglang_omni.client import Client, RequestError
from sglang_omni.serve.realtime.config import SessionConfig, chat_params
from sglang_omni.serve.realtime.config_checks import check_config
from sglang_omni.serve.state import AppState, Capabilities
from sglang_omni.serve.voice_names import OPENAI_VOICES

CONFIG = SimpleNamespace(
    model_path="",
    stages=[SimpleNamespace(name="thinker")],
    input_modalities=("text",),
    voices=("Ethan", "chelsie"),
)


@pytest.fixture
def server() -> AppState:
    return AppState(Client(SimpleNamespace()), capabilities=Capabilities.of(CONFIG))


@pytest.mark.parametrize("voice", [None, "ethan", "ETHAN", "Chelsie"])
def test_voices_are_known_in_any_case(server: AppState, voice: str | None) -> None:
    assert server.check_voice(voice, "audio.voice") == voice


def test_openais_voices_are_the_models_default(server: AppState) -> None:
    assert {server.check_voice(name, "voice") for name in (*OPENAI_VOICES, "ALLOY")} == {"Ethan"}
    # A name of the model's own is that voice, and where voices are not known, any name is passed on.
    own = AppState(
        server.client,
        capabilities=Capabilities.of(SimpleNamespace(model_path="", stages=[], voices=("b", "alloy"))),
    )
    assert own.check_voice("alloy", "voice") == "alloy"
    assert AppState(server.client).check_voice("alloy", "voice") == "alloy"


def test_a_realtime_session_says_which_voice_speaks(server: AppState) -> None:
    for asked, speaks in (("alloy", "Ethan"), ("chelsie", "chelsie"), (None, None)):
        config = SessionConfig.model_validate({"audio": {"output": {"voice": asked}}})
        check_config(config, server)
        assert config.audio.output.voice == speaks
        assert chat_params(config).get("voice") == speaks


def test_an_unknown_voice_is_answered_with_those_there_are(server: AppState) -> None:
    with pytest.raises(RequestError, match="has no voice 'bob'; it has chelsie, ethan") as error:
        server.check_voice("bob", "audio.voice")
    assert error.value.param == "audio.voice"


def test_what_the_model_does_not_take(server: AppState) -> None:
    server.check_input("text", "messages[0]")
    with pytest.raises(RequestError, match="takes no image input; it takes text"):
        server.check_input("image", "messages[0].content[1]")


def test_what_a_config_does_not_say_is_not_refused(server: AppState) -> None:
    server.check_output("audio", "modalities")
    server.check_task("speech")
