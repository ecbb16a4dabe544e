"""Which STUN and TURN servers may be given, and where their credentials come from."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sglang_omni import launch_server
from sglang_omni.launch_server import build_parser
from sglang_omni.serve.launch.ice import TURN_CREDENTIALS, replicas_turn, take_ice_servers
from sglang_omni.serve.realtime.ice import IceServers

STUN, TURN = "stun:stun.example:3478", "turn:turn.example:3478?transport=udp"


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TURN_CREDENTIALS, raising=False)


def taken(*flags: str) -> IceServers:
    parser = build_parser()
    return take_ice_servers(parser, parser.parse_args(flags))


def test_credentials_come_from_the_environment_or_a_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert taken() == IceServers()
    assert taken("--ice-server", STUN) == IceServers((STUN,))
    monkeypatch.setenv(TURN_CREDENTIALS, "omni pass:word")
    found = taken("--ice-server", STUN, "--ice-server", TURN)
    assert found == IceServers((STUN, TURN), "omni", "pass:word")
    assert "pass:word" not in repr(found)
    assert TURN_CREDENTIALS not in os.environ
    monkeypatch.setenv(TURN_CREDENTIALS, replicas_turn(found)[TURN_CREDENTIALS])
    assert taken("--ice-server", STUN, TURN) == found
    file = tmp_path / "turn"
    file.write_text("1764360000:omni secret\n")
    assert taken("--ice-server", "turns:t", "--turn-credentials-file", str(file)) == IceServers(
        ("turns:t",), "1764360000:omni", "secret"
    )


def test_replicas_get_the_servers_on_their_command_line_and_the_password_elsewhere(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = []

    async def run_fleet(options):
        found.append(options)
        return 0

    monkeypatch.setattr("sglang_omni.serve.launch.fleet.run_fleet", run_fleet)
    config, file = tmp_path / "echo.yaml", tmp_path / "turn"
    config.write_text(
        "{model_path: none, name: a, stages: [{name: one, process: a, factory: os.getcwd, terminal: true}]}"
    )
    file.write_text("omni secret")
    flags = ["--config", str(config), "--dp-size", "2", "--port", "0", "--ice-server", STUN, TURN]
    assert launch_server.main([*flags, "--turn-credentials-file", str(file)]) == 0
    [options] = found
    words = options.replica_args
    assert [words[at + 1] for at, word in enumerate(words) if word == "--ice-server"] == [STUN, TURN]
    assert not any("secret" in word for word in words)
    assert options.replica_environment == {TURN_CREDENTIALS: "omni secret"}


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--ice-server", "turn.example:3478"), "is no URL like stun:HOST:PORT"),
        (("--ice-server", "turn://turn.example"), "is no URL like"),
        (("--ice-server", "stuns:a"), "is no URL like"),
        (("--ice-server", "stun:a?transport=udp"), "is no URL like"),
        (("--ice-server", "turns:a?transport=udp"), "is no URL like"),
        (("--ice-server", "turn:a?transport=sctp"), "is no URL like"),
        (("--ice-server", "turn:omni:secret@a"), "is no URL like"),
        (("--ice-server", "stun:a", "stun:b"), "at most one STUN server and one TURN server"),
        (("--ice-server", "turn:a", "turns:b"), "at most one STUN server and one TURN server"),
        (("--ice-server", TURN), f"set {TURN_CREDENTIALS}"),
        (("--turn-credentials-file", "/nowhere"), "there is no TURN server"),
        (("--ice-server", TURN, "--turn-credentials-file", "/nowhere"), "cannot read /nowhere: No such file"),
        (("--ice-server", TURN, "--turn-credentials-file", "/dev/null"), "one line `USERNAME PASSWORD`"),
    ],
)
def test_what_cannot_be_used_is_said_at_the_start(
    flags: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        taken(*flags)
    assert words in capsys.readouterr().err


def test_without_aiortc_there_are_no_calls(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sglang_omni.serve.launch.ice.find_spec", lambda _: None)
    with pytest.raises(SystemExit):
        taken("--ice-server", STUN)
    assert "pip install 'sgl-omni[realtime]'" in capsys.readouterr().err
