"""What the launchers say before anything is started."""

from __future__ import annotations

import json
import socket
from types import SimpleNamespace

import pytest

from sglang_omni import cli, launch_router, launch_server
from sglang_omni.serve.launch.checks import apply_health_flags
from sglang_omni.serve.launch.options import HEALTH, LIMITS, given_limits, of_sections, passed_on
from sglang_omni.serve.launch.pipelines import DEFAULT_MODEL, LaunchError, load_pipeline

ECHO = """
model_path: none
name: echo
stages:
  - {name: one, process: a, factory: os.getcwd, next: two}
  - {name: two, process: a, factory: os.getcwd, terminal: true}
"""


@pytest.fixture
def checkpoint(tmp_path):
    def make(**fields):
        (tmp_path / "config.json").write_text(json.dumps(fields))
        return str(tmp_path)

    return make


def test_default_is_the_bundled_model():
    assert load_pipeline(None, None).model_path == DEFAULT_MODEL


def test_checkpoints_get_the_pipeline_that_serves_them(checkpoint):
    for fields in (
        {"model_type": "qwen3"},
        {"model_type": "llama", "architectures": ["LlamaForCausalLM"]},
        {"model_type": "mistral", "architectures": ["MistralForCausalLM"]},
        {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]},
    ):
        path = checkpoint(**fields)
        config = load_pipeline(path, None)
        assert type(config).__name__ == "TextPipelineConfig"
        assert (config.model_path, config.name) == (path, path)


def test_a_config_puts_a_checkpoint_into_the_spoken_pipeline(checkpoint, tmp_path):
    file = tmp_path / "spoken.yaml"
    file.write_text("config_cls: sglang_omni.models.speech_chat.config.SpeechChatPipelineConfig\n")
    assert load_pipeline(None, file).model_path == DEFAULT_MODEL
    path = checkpoint(model_type="llama")
    config = load_pipeline(path, file)
    assert (type(config).__name__, config.model_path) == ("SpeechChatPipelineConfig", path)
    assert config.name == "speech-chat"


def test_a_hubs_id_becomes_a_directory(checkpoint, tmp_path, monkeypatch):
    asked = []

    def download(*given, weights=True, own_files):
        asked.append((*given, weights))
        return tmp_path

    monkeypatch.setattr("sglang_omni.hub.download", download)
    checkpoint(model_type="llama")
    config = load_pipeline("org/model", None, "v1")
    assert (config.model_path, config.name) == (str(tmp_path), "org/model")
    assert asked.pop() == ("org/model", "v1", True)
    file = tmp_path / "text.yaml"
    file.write_text("{config_cls: sglang_omni.models.text.config.TextPipelineConfig, model_path: org/model}")
    config = load_pipeline(None, file, weights=False)
    assert (config.model_path, config.name) == (str(tmp_path), "org/model")
    assert asked.pop() == ("org/model", None, False)
    # Nothing reads this one's model.
    file.write_text(ECHO.replace("model_path: none", "model_path: org/model"))
    assert load_pipeline(None, file).model_path == "org/model"
    assert not asked
    with pytest.raises(LaunchError, match=r"--revision 'v1'.*is no id of the hub"):
        load_pipeline(str(tmp_path), None, "v1")


def test_a_fleets_replicas_get_the_downloaded_directory(checkpoint, tmp_path, monkeypatch):
    given = []

    async def run_fleet(options):
        given.extend(options.replica_args)
        return 0

    monkeypatch.setattr("sglang_omni.serve.launch.fleet.run_fleet", run_fleet)
    monkeypatch.setattr("sglang_omni.hub.download", lambda *_, weights, own_files: tmp_path)
    # It has no weights whose memory could be counted.
    for name in ("check_weights", "fit_ram"):
        monkeypatch.setattr(f"sglang_omni.serve.launch.checks.{name}", lambda *_: None)
    checkpoint(model_type="llama")
    assert launch_server.main(["org/model", "--revision", "v1", "--dp-size", "2", "--port", "0"]) == 0
    assert given[:4] == ["--model-path", str(tmp_path), "--served-model-name", "org/model"]
    assert "--revision" not in given


def test_checkpoint_that_is_not_there(tmp_path):
    with pytest.raises(LaunchError, match=r"no config\.json.*'speech-chat'"):
        load_pipeline(str(tmp_path / "nowhere"), None)
    (tmp_path / "config.json").touch()
    with pytest.raises(LaunchError, match=r"no config\.json"):
        load_pipeline(str(tmp_path / "config.json"), None)
    with pytest.raises(LaunchError, match=r"an id of the hub such as .*'speech-chat'$"):
        load_pipeline("/nowhere", None)


def test_checkpoint_without_a_pipeline(checkpoint):
    with pytest.raises(
        LaunchError, match=r"no pipeline for model_type 'resnet'.*there is one for .*qwen3_omni_moe"
    ):
        load_pipeline(checkpoint(model_type="resnet"), None)
    with pytest.raises(LaunchError, match="KeyError"):
        load_pipeline(checkpoint(), None)


def test_model_path_wins_over_the_configs(tmp_path):
    file = tmp_path / "echo.yaml"
    file.write_text(ECHO)
    assert load_pipeline(None, file).model_path == "none"
    assert load_pipeline("elsewhere", file).model_path == "elsewhere"


@pytest.mark.parametrize(
    "flags",
    [
        ["--max-concurrent-requests", "0"],
        ["--max-concurrent-requests", "many"],
        ["--queue-size", "-1"],
        ["--queue-timeout", "0"],
        ["--queue-timeout", "inf"],
        ["--dp-size", "0"],
        ["--max-body-size", "0"],
        ["--max-json-size", "0"],
        ["--port", "x"],
        ["--port", "65536"],
        ["--start-timeout", "0"],
        ["--host-timeout", "0"],
        ["--drain-timeout", "-1"],
    ],
)
def test_bad_flags_are_usage_errors(flags, capsys):
    with pytest.raises(SystemExit) as caught:
        launch_server.main(flags)
    assert caught.value.code == 2
    assert flags[0] in capsys.readouterr().err


@pytest.mark.parametrize("main", [launch_server.main, launch_router.main])
def test_unknown_options_get_the_nearest_one(main, capsys):
    with pytest.raises(SystemExit) as caught:
        main(["--prot=7"])
    assert caught.value.code == 2
    assert "--prot=7; did you mean --port?" in capsys.readouterr().err


def test_broken_config_is_reported_before_anything_starts(tmp_path, capsys):
    file = tmp_path / "echo.yaml"
    file.write_text(ECHO.replace("next: two", "nxet: two"))
    assert launch_server.main(["--config", str(file)]) == 1
    error = capsys.readouterr().err
    assert "stage 'one'" in error
    assert "nxet" in error
    assert "'next'" in error


def test_missing_packages_are_the_install_line(monkeypatch, capsys):
    packages = {"pip install it": ["json", "no_such_module"], "pip install that": ["json"]}
    needy = SimpleNamespace(name="needy", required_packages=packages)
    monkeypatch.setattr(launch_server, "load_pipeline", lambda *_: needy)
    assert launch_server.main([]) == 1
    error = capsys.readouterr().err
    assert "needy needs no_such_module, not installed here:\n  pip install it\n" in error
    assert "that" not in error


def test_port_in_use_is_reported_before_anything_starts(tmp_path, capsys):
    file = tmp_path / "echo.yaml"
    file.write_text(ECHO)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        for extra in ([], ["--dp-size", "2"]):
            assert launch_server.main(["--config", str(file), "--port", str(port), *extra]) == 1
            assert f"port {port} of 127.0.0.1 is in use; give another one" in capsys.readouterr().err


def test_config_commands(tmp_path, capsys):
    file = tmp_path / "echo.yaml"
    file.write_text(ECHO)
    assert cli.main(["config", "view", str(file)]) == 0
    assert "one" in capsys.readouterr().out
    assert cli.main(["config", "validate", str(file)]) == 0
    assert "echo: 2 stages" in capsys.readouterr().out
    file.write_text(ECHO.replace("next: two", "next: tow"))
    assert cli.main(["config", "validate", str(file)]) == 1
    assert "tow" in capsys.readouterr().err


def test_cli_names_its_commands(capsys):
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    listed = capsys.readouterr().out
    assert all(name in listed for name in ("serve", "route", "config"))
    with pytest.raises(SystemExit):
        cli.main(["serve", "--help"])
    assert "--dp-size" in capsys.readouterr().out


def test_ctrl_c_before_anything_runs_is_no_traceback(monkeypatch):
    def importing(_args):
        raise KeyboardInterrupt

    monkeypatch.setattr(launch_server, "_serve", importing)
    assert cli.main(["serve"]) == 130
    assert launch_server.main([]) == 130


def test_router_options_reach_the_fleet_and_need_one(capsys):
    parser = launch_server.build_parser()
    given = ["--dp-size", "2", "--policy", "random", "--router-cache-threshold", "0.2"]
    fields = launch_server.router_fields(parser.parse_args(given))
    assert fields == {"policy": "random", "cache_threshold": 0.2}
    assert launch_server.router_fields(parser.parse_args([])) == {}
    with pytest.raises(SystemExit):
        launch_server.main(["--router-threads", "2"])
    assert "--router-threads: there is a router only with a --dp-size" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--router-cache-threshold", "7"], "--router-cache-threshold: 7 is not between 0 and 1"),
        (["--policy", "fastest"], "--policy: 'fastest' is none of"),
    ],
)
def test_wrong_router_options_are_known_before_anything_is_loaded(flags, words, capsys):
    with pytest.raises(SystemExit):
        launch_server.main(["--dp-size", "2", *flags])
    assert words in capsys.readouterr().err


def test_limits_of_what_may_take_how_long_are_passed_on_to_replicas(tmp_path):
    config = tmp_path / "pipeline.yaml"
    config.write_text(ECHO + "watchdog: {step_timeout: 7, heartbeat_timeout: 8}\n")
    parser = launch_server.build_parser()
    args = parser.parse_args(["--watchdog-timeout", "900", "--request-timeout", "0"])
    again = parser.parse_args(passed_on(args, of_sections(HEALTH)))
    assert (again.watchdog_timeout, again.heartbeat_timeout, again.request_timeout) == (900.0, None, 0.0)
    loaded = load_pipeline(None, config)
    apply_health_flags(loaded, again)
    assert (loaded.watchdog.step_timeout, loaded.watchdog.heartbeat_timeout) == (900.0, 8.0)


@pytest.mark.parametrize("text", ["-1", "nan", "inf", "soon"])
def test_a_limit_is_a_number_of_seconds(text, capsys):
    with pytest.raises(SystemExit):
        launch_server.build_parser().parse_args([f"--watchdog-timeout={text}"])
    assert "is no number of seconds" in capsys.readouterr().err


def test_a_fleets_replicas_get_its_limits():
    given = ["--max-concurrent-requests", "-1", "--queue-size", "0", "--queue-timeout", "2.5"]
    args = launch_server.build_parser().parse_args(given)
    assert passed_on(args, of_sections(LIMITS)) == given
    assert given_limits(args) == {"max_concurrent_requests": -1, "queue_size": 0, "queue_timeout": 2.5}
    args = launch_server.build_parser().parse_args([])
    assert passed_on(args, of_sections(LIMITS)) == []
    assert given_limits(args) == {}


def test_a_fleets_replicas_get_what_its_command_line_says_of_them(tmp_path, monkeypatch):
    given = []

    async def run_fleet(options):
        given.extend(options.replica_args)
        return 0

    monkeypatch.setattr("sglang_omni.serve.launch.fleet.run_fleet", run_fleet)
    file = tmp_path / "echo.yaml"
    file.write_text(ECHO)
    flags = [
        *("--config", str(file), "--served-model-name", "parrot", "--log-level", "error"),
        *("--start-timeout", "7.0", "--max-body-size", "1000", "--max-json-size", "10", "--queue-size", "0"),
        *("--request-timeout", "5.0", "--heartbeat-timeout", "4.0", "--stage", "one.num_workers=2"),
    ]
    assert launch_server.main([*flags, "--port", "0", "--dp-size", "2", "--drain-timeout", "1"]) == 0
    parse = launch_server.build_parser().parse_args
    assert parse(given) == parse(flags)
