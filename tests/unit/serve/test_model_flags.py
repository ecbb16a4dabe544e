"""The launcher's flags about the model, applied to the pipelines that come with the package."""

from __future__ import annotations

import pytest

from sglang_omni import launch_server
from sglang_omni.config.factories.factory_args import resolve_stage_factory_args
from sglang_omni.launch_server import build_parser
from sglang_omni.models.qwen3_omni.config import Qwen3OmniPipelineConfig
from sglang_omni.models.speech_chat.config import SpeechChatPipelineConfig
from sglang_omni.models.text.config import TextPipelineConfig
from sglang_omni.serve.launch.model_settings import apply_model_flags
from sglang_omni.serve.launch.options import MODEL, of_sections, passed_on
from sglang_omni.serve.launch.pipelines import load_pipeline


def applied(config, *arguments):
    apply_model_flags(config, build_parser().parse_args(arguments))
    return config


def factory_args(config, stage):
    (found,) = (s for s in config.stages if s.name == stage)
    return resolve_stage_factory_args(found, config)


@pytest.fixture
def omni():
    return Qwen3OmniPipelineConfig(model_path="nowhere")


def test_a_flag_reaches_every_stage_that_takes_it(omni):
    applied(omni, "--max-running-requests", "3", "--context-length", "99", "--engine", "sglang")
    assert factory_args(omni, "thinker")["max_running_requests"] == 3
    assert factory_args(omni, "talker")["max_running_requests"] == 3
    assert factory_args(omni, "preprocess")["context_length"] == 99
    assert factory_args(omni, "talker")["engine"] == "sglang"
    assert "engine" not in factory_args(omni, "code2wav")


def test_a_templates_file_is_named_from_the_root(omni, tmp_path, monkeypatch, capsys):
    (tmp_path / "own.jinja").write_text("x")
    monkeypatch.chdir(tmp_path)
    for config in (omni, TextPipelineConfig(model_path="nowhere"), SpeechChatPipelineConfig()):
        applied(config, "--chat-template", "own.jinja")
        assert factory_args(config, "preprocess")["chat_template"] == str(tmp_path / "own.jinja")
    with pytest.raises(SystemExit):
        applied(omni, "--chat-template", "none.jinja")
    assert "there is no file 'none.jinja'" in capsys.readouterr().err


def test_flags_without_a_value(omni):
    applied(omni, "--disable-radix-cache")
    assert factory_args(omni, "thinker")["prefix_cache"] is False
    text = applied(TextPipelineConfig(model_path="nowhere"), "--disable-overlap-schedule")
    assert factory_args(text, "thinker")["overlap_schedule"] is False


SGLANGS = (
    *("--quantization", "fp8", "--kv-cache-dtype", "fp8_e4m3", "--attention-backend", "fa3"),
    *("--dtype", "auto", "--disable-cuda-graph"),
)


@pytest.mark.parametrize(
    ("kind", "stages"),
    [
        (TextPipelineConfig, ["thinker"]),
        (SpeechChatPipelineConfig, ["thinker"]),
        (Qwen3OmniPipelineConfig, ["thinker", "talker"]),
    ],
)
def test_sglangs_own_settings_reach_the_decoders(kind, stages):
    config = applied(kind(model_path="nowhere"), *SGLANGS)
    for stage in stages:
        found = factory_args(config, stage)
        assert found["kv_cache_dtype"] == "fp8_e4m3"
        assert found["attention_backend"] == "fa3"
        assert found["dtype"] == "auto"
        assert found["cuda_graph"] is False
    assert factory_args(config, "thinker")["quantization"] == "fp8"


def test_tensor_parallelism_is_for_stages_that_can_be_split(omni):
    omni.stages[[s.name for s in omni.stages].index("thinker")].gpu = 1
    applied(omni, "--tp-size", "2")
    split = {stage.name: stage.gpu for stage in omni.stages if stage.tp_size == 2}
    assert split["thinker"] == [1, 2]
    assert "code2wav" not in split


def test_one_stages_own_settings_win(omni):
    applied(
        omni,
        *("--max-running-requests", "3", "--stage", "talker.max_running_requests=5"),
        *("--stage", "thinker.gpu=[0, 1]", "--stage", "thinker.tp_size=2"),
    )
    assert factory_args(omni, "talker")["max_running_requests"] == 5
    thinker = next(stage for stage in omni.stages if stage.name == "thinker")
    assert (thinker.gpu, thinker.tp_size) == ([0, 1], 2)


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("thinker", "expected STAGE.NAME=VALUE"),
        ("thinker=1", "expected STAGE.NAME=VALUE"),
        ("thinkr.gpu=0", "no stage 'thinkr'; did you mean 'thinker'"),
        ("thinker.num_replicas=0", "greater than or equal to 1"),
        ("thinker.autoscaling={max_replica: 2}", "no field 'max_replica'.*did you mean 'max_replicas'"),
        ("thinker.max_runing_requests=1", "did you mean 'max_running_requests'"),
        ("thinker.gpu=[", "not valid YAML"),
    ],
)
def test_wrong_settings_are_named(omni, setting, said):
    with pytest.raises(ValueError, match=f"--stage.*{said}"):
        applied(omni, "--stage", setting)


def test_a_field_with_fields_of_its_own_is_set_as_a_map(omni):
    applied(omni, "--stage", "thinker.autoscaling={max_replicas: 3}", "--stage", "talker.num_replicas=2")
    replicas = {stage.name: (stage.min_replicas, stage.max_replicas) for stage in omni.stages}
    assert (replicas["thinker"], replicas["talker"]) == ((1, 3), (2, 2))


def test_a_flag_that_no_stage_takes(tmp_path):
    file = tmp_path / "echo.yaml"
    stage = "{name: one, process: a, factory: os.getcwd, terminal: true}"
    file.write_text(f"{{model_path: none, name: echo, stages: [{stage}]}}")
    with pytest.raises(ValueError, match="--chunked-prefill-size: no stage of echo takes it"):
        applied(load_pipeline(None, file), "--chunked-prefill-size", "64")


def test_replicas_of_a_fleet_get_the_same_flags():
    given = ["--engine", "omni", "--disable-radix-cache", "--stage", "thinker.tp_size=2"]
    assert passed_on(build_parser().parse_args(given), of_sections(MODEL)) == given


def test_the_launcher_says_what_is_wrong(capsys):
    assert launch_server.main(["--stage", "thinker.speed=9"]) == 1
    assert "--stage 'thinker.speed=9': stage 'thinker' has no 'speed'" in capsys.readouterr().err
