"""Completion in the shells themselves: what bash, zsh and fish offer after the words that are typed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sglang_omni.cli.command_words import words_of_all
from sglang_omni.cli.commands import COMMANDS
from sglang_omni.cli.completion import main

COMMAND = Path(sys.executable).with_name("sgl-omni")
# Calls the function as readline does, which takes words apart at "=".
ASK_BASH = """
eval "$(cat)"
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
_sgl_omni
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def bash_script() -> str:
    asked = [str(COMMAND), "completion", "bash"]
    return subprocess.run(asked, capture_output=True, text=True, check=True, timeout=60).stdout


def offered(script: str, *words: str, folder: Path | None = None) -> list[str]:
    """What bash offers for the last word."""
    said = subprocess.run(
        ["bash", "-c", ASK_BASH, "bash", "sgl-omni", *words],
        input=script,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        cwd=folder,
    )
    assert said.stderr == ""
    return said.stdout.split()


def test_bash_offers_every_command(bash_script: str) -> None:
    assert offered(bash_script, "") == [command.name for command in COMMANDS]
    assert offered(bash_script, "se") == ["serve"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("serve", "--mem"), ["--mem-fraction-static"]),
        (("serve", "--log-level", ""), ["debug", "info", "warning", "error"]),
        (("serve", "--log-level", "=", "w"), ["warning"]),
        (("serve", "--log-level", "="), ["debug", "info", "warning", "error"]),
        (("serve", "--log-level=w"), ["--log-level=warning"]),
        (("serve", "--port", "8000", "--policy", "ro"), ["round_robin"]),
        (("config", "v"), ["view", "validate"]),
        (("config", "resolve", "--laun"), ["--launcher"]),
        (("route", "to"), ["top"]),
        (("route", "top", "--int"), ["--interval"]),
        (("bench", ""), ["serve"]),
        (("bench", "serve", "--traffic", "re"), ["realtime"]),
        (("completion", ""), ["bash", "zsh", "fish"]),
        (("serve", "--no-such"), []),
    ],
)
def test_bash_offers_what_may_follow(bash_script: str, words: tuple[str, ...], expected: list[str]) -> None:
    assert offered(bash_script, *words) == expected


def test_bash_offers_files_for_free_values(bash_script: str, tmp_path: Path) -> None:
    (tmp_path / "pipeline.yaml").touch()
    assert offered(bash_script, "serve", "--config", "pi", folder=tmp_path) == ["pipeline.yaml"]
    assert offered(bash_script, "config", "view", "", folder=tmp_path) == ["pipeline.yaml"]


def test_an_option_that_the_help_leaves_out_is_not_offered() -> None:
    assert "--parent-pid" not in words_of_all()["serve"].options


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_read_their_script(
    shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    main([shell], prog="sgl-omni completion")
    file = tmp_path / f"script.{shell}"
    file.write_text(capsys.readouterr().out)
    if shell == "fish":
        asked = f"source {file}; complete -C 'sgl-omni config v'; complete -C 'sgl-omni serve --log-level w'"
        expected = {"view", "validate", "warning"}
    else:
        asked = f"source {file} && print ${{_comps[sgl-omni]}}"
        expected = {"_bash_complete"}
    said = subprocess.run([shell, "-c", asked], capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert said.returncode == 0, said.stderr
    assert expected <= {line.split()[0] for line in said.stdout.splitlines() if line}
