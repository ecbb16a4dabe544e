"""What people type who know other servers, or mistype."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sglang_omni import __version__, cli, launch_host, launch_server
from sglang_omni.config.plan.split import check_split, possible_splits
from sglang_omni.models.qwen3_omni.config import Qwen3OmniPipelineConfig
from sglang_omni.serve.launch.model_settings import apply_model_flags

COMMAND = Path(sys.executable).with_name("sgl-omni")


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What ``sgl-omni serve`` says of wrong usage, before anything is loaded."""
    with pytest.raises(SystemExit) as caught:
        launch_server.main(arguments, prog="sgl-omni serve")
    assert caught.value.code == 2
    return capsys.readouterr().err.splitlines()[-2]


@pytest.mark.parametrize(
    ("flag", "words"),
    [
        ("--tensor-parallel-size=2", "--tensor-parallel-size: here it is called --tp-size"),
        ("--max-model-len=100", "here it is called --context-length"),
        ("--gpu-memory-utilization=0.9", "here it is called --mem-fraction-static"),
        ("--model=m", "here it is called --model-path"),
        ("--trust-remote-code", "no code of a checkpoint is run; leave it out"),
    ],
)
def test_flags_of_other_servers_say_what_serves_here(
    flag: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert words in refused(capsys, flag)
    assert words in refused(capsys, "some-model", *flag.split("="))


def test_every_counterpart_is_a_flag_of_ours() -> None:
    from sglang_omni.serve.launch.counterparts import _IS_CALLED, _SAYS

    known = launch_server.build_parser()._option_string_actions
    assert set(_IS_CALLED.values()) <= set(known)
    assert not set(_SAYS) & set(known)


@pytest.mark.parametrize(
    "arguments",
    [
        ("--mem-fraction-static", "1.7"),
        ("--mem-fraction-static", "nan"),
        ("--mem-fraction-static", "0"),
        ("--tp-size", "0"),
        ("--tp-size", "two"),
        ("--max-running-requests", "0"),
        ("--max-total-tokens", "-1"),
        ("--chunked-prefill-size", "0"),
        ("--context-length", "1.5"),
        ("--join-port", "70000"),
        ("--served-model-name", ""),
        ("--model-path", ""),
        ("--host", " "),
        ("--start-timeout", "nan"),
        ("--drain-timeout", "nan"),
    ],
)
def test_numbers_out_of_range_are_usage_errors(
    arguments: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert arguments[0] in refused(capsys, *arguments)


def test_an_empty_model_is_not_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    assert "MODEL: it is empty" in refused(capsys, "")


@pytest.mark.parametrize("setting", ["thinker.max_running_requests=0", "thinker.max_total_tokens = none"])
def test_one_stages_numbers_are_checked_as_the_flags_are(
    setting: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert launch_server.main(["--stage", setting]) == 1
    assert f"--stage {setting!r}: " in capsys.readouterr().err


def test_one_stages_setting_may_be_taken_back() -> None:
    config = Qwen3OmniPipelineConfig(model_path="nowhere")
    arguments = launch_server.build_parser().parse_args(["--stage", "thinker.context_length=null"])
    apply_model_flags(config, arguments)
    assert config.runtime_overrides["thinker"] == {"context_length": None}


def test_the_range_of_a_share_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert "'1.7' is not a share; give a number above 0, and at most 1" in refused(
        capsys, "--mem-fraction-static", "1.7"
    )


def test_the_model_may_come_without_an_option(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for arguments in ((str(tmp_path),), ("--model-path", str(tmp_path)), (str(tmp_path), "--port", "0")):
        assert cli.main(["serve", *arguments]) == 1
        assert f"{str(tmp_path)!r}: no checkpoint there" in capsys.readouterr().err
    assert cli.main(["check", str(tmp_path)]) == 1
    reported = capsys.readouterr().out
    assert f"MODEL {str(tmp_path)!r}: no checkpoint there" in reported
    assert "--model-path" not in reported
    assert "the model is given twice, as 'a' and --model-path 'b'" in refused(
        capsys, "a", "--model-path", "b"
    )


def test_a_split_that_cannot_be_is_reported_before_anything_is_loaded(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    shape = ["--heads", "9", "--kv-heads", "3", "--hidden", "72"]
    assert cli.main(["make-tiny-checkpoint", "text", str(tmp_path / "tiny"), *shape]) == 0
    assert launch_server.main([str(tmp_path / "tiny"), "--tp-size", "2"]) == 1
    error = capsys.readouterr().err
    assert (
        "stage 'thinker': tp_size=2 does not divide the model's num_attention_heads (9); it can be 1, 3"
        in error
    )
    assert "Traceback" not in error


def test_what_a_model_can_be_split_over() -> None:
    fields = {"num_attention_heads": 32, "num_key_value_heads": 4, "moe_intermediate_size": 768}
    assert possible_splits(fields) == [1, 2, 4, 8, 16, 32]
    with pytest.raises(ValueError, match=r"tp_size=6 does not divide the model's num_attention_heads \(32\)"):
        check_split(fields, 6)
    # No key-value heads said: as many as there are heads.
    assert possible_splits({"num_attention_heads": 6}) == [1, 2, 3, 6]


def test_qwen3_omni_knows_its_decoders(tmp_path: Path) -> None:
    assert cli.main(["make-tiny-checkpoint", "qwen3_omni", str(tmp_path / "tiny")]) == 0
    config = Qwen3OmniPipelineConfig(model_path=str(tmp_path / "tiny"))
    assert possible_splits(config.decoder_fields("thinker") or {})[0] == 1
    assert config.decoder_fields("talker") is not None
    assert config.decoder_fields("code2wav") is None


@pytest.mark.parametrize(
    "build_parser", [launch_server.build_parser, launch_host.build_parser], ids=["serve", "host"]
)
def test_flags_are_written_out(build_parser: object) -> None:
    parser = build_parser()  # type: ignore[operator]
    assert isinstance(parser, argparse.ArgumentParser)
    assert not parser.allow_abbrev


def test_an_abbreviation_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert "unrecognized arguments: --served-model=x; did you mean --served-model-name?" in refused(
        capsys, "--served-model=x"
    )
    with pytest.raises(SystemExit):
        cli.main(["config", "view", "--model-pat", "x"])
    with pytest.raises(SystemExit):
        cli.main(["make-tiny-checkpoint", "qwen3_omni", "nowhere", "--overwr"])


@pytest.mark.parametrize(
    "command",
    [
        [str(COMMAND), "--version"],
        [str(COMMAND), "version"],
        [sys.executable, "-m", "sglang_omni", "--version"],
    ],
)
def test_the_version(command: list[str]) -> None:
    said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert said.stdout.strip() == f"sgl-omni {__version__}"


OWN = """
model_path: none
name: mine
stages:
  - {name: count, process: a, factory: my_pipeline.count, terminal: true}
"""


def run_in(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [str(COMMAND), *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=60
    )


def test_modules_beside_a_config_are_found(tmp_path: Path) -> None:
    """The command itself has neither the current directory on its path nor the config's."""
    (tmp_path / "pipeline.yaml").write_text(OWN)
    (tmp_path / "my_pipeline.py").write_text("def count():\n    return len\n")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "pipeline.yaml").write_text(OWN)

    for folder, file in ((tmp_path, "pipeline.yaml"), (elsewhere, "../pipeline.yaml")):
        said = run_in(folder, "config", "validate", file)
        assert (said.returncode, said.stdout) == (0, "mine: 1 stages, no problem found\n"), said.stderr
    # The functions are in the current directory, the config is not.
    assert run_in(tmp_path, "config", "view", "elsewhere/pipeline.yaml").returncode == 0
    # Neither has them.
    (tmp_path / "my_pipeline.py").unlink()
    assert "no module named 'my_pipeline'" in run_in(tmp_path, "config", "validate", "pipeline.yaml").stderr
