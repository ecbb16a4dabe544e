"""The flags of a server that hosts join, and of the hosts."""

from __future__ import annotations

from pathlib import Path

import pytest

from sglang_omni.launch_host import main as host
from sglang_omni.launch_server import build_parser
from sglang_omni.launch_server import main as serve
from sglang_omni.pipeline.processes.hosts.join_key import read_join_key, read_or_create_join_key
from sglang_omni.pipeline.processes.hosts.launcher import HostsLauncher
from sglang_omni.serve.launch.launchers import chosen_launcher


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["--join-key", "k"], "--join-key: hosts join only with a --join-port"),
        (["--host-timeout", "5"], "--host-timeout: hosts join only with a --join-port"),
        (["--join-port", "0", "--dp-size", "2"], "--join-port: hosts join one replica"),
    ],
)
def test_flags_that_do_not_fit_together(
    flags: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        serve(flags)
    assert problem in capsys.readouterr().err


def test_a_server_writes_its_key_and_says_where_it_is(tmp_path: Path) -> None:
    file = tmp_path / "key"
    flags = ["--join-port", "0", "--host-address", "127.0.0.1", "--join-key", str(file)]
    launcher = chosen_launcher(build_parser().parse_args([*flags, "--host-timeout", "7.5"]))
    assert isinstance(launcher, HostsLauncher)
    assert (launcher.host_address, launcher.host_timeout) == ("127.0.0.1", 7.5)
    read_join_key(file)


def test_a_timeout_that_no_connection_can_keep_is_refused(tmp_path: Path) -> None:
    flags = ["--join-port", "0", "--host-address", "127.0.0.1", "--join-key", str(tmp_path / "key")]
    with pytest.raises(ValueError, match="host_timeout=1 is too short"):
        chosen_launcher(build_parser().parse_args([*flags, "--host-timeout", "1"]))


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["--coordinator", "tcp://127.0.0.1:1"], "no such file; copy there the coordinator's key file"),
        (["--coordinator", "127.0.0.1:1", "--join-key", "KEY"], "tcp://ADDRESS:PORT is"),
        (
            ["--coordinator", "tcp://127.0.0.1:1", "--join-key", "KEY", "--address", "192.0.2.7"],
            "'192.0.2.7' is not an address of this machine",
        ),
    ],
)
def test_a_host_that_cannot_begin_says_why(
    tmp_path: Path,
    flags: list[str],
    problem: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "nothing"))
    read_or_create_join_key(tmp_path / "key")
    given = [str(tmp_path / "key") if flag == "KEY" else flag for flag in flags]
    with pytest.raises(SystemExit):
        host([*given, "--name", "b"])
    assert problem in " ".join(capsys.readouterr().err.split())
