"""Where keys come from, and that they do not stay there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from sglang_omni.launch_server import _parse, build_parser
from sglang_omni.serve.launch.keys import replicas_environment, routers_keys, runs_key, take_access

ENVIRONMENT = ("SGLANG_OMNI_API_KEY", "SGLANG_OMNI_ADMIN_API_KEY")


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*ENVIRONMENT, "SGLANG_OMNI_ROUTER_WORKER_API_KEY"):
        monkeypatch.delenv(name, raising=False)


def access(*flags: str) -> Any:
    parser = build_parser()
    return take_access(parser, parser.parse_args(flags))


def test_flags_and_files(tmp_path: Path) -> None:
    file, admin = tmp_path / "keys", tmp_path / "admin"
    file.write_text("c\n\n d \na\n")
    admin.write_text("boss\n")
    found = access(
        *("--api-key", "a", "--api-key", "b", "--api-key-file", str(file)),
        *("--admin-api-key-file", str(admin), "--allowed-hosts", "x", "y", "--host", "::"),
    )
    assert found.api_keys == ("a", "b", "c", "d")
    assert (found.admin_key, found.allowed_hosts, found.host) == ("boss", ("x", "y"), "::")


def test_the_environment_counts_if_no_flag_does_and_is_left_without(monkeypatch: pytest.MonkeyPatch) -> None:
    for flags, keys, admin in (
        ((), ("one", "two"), "boss"),
        (("--api-key", "a", "--admin-api-key", "b"), ("a",), "b"),
    ):
        monkeypatch.setenv(ENVIRONMENT[0], "one two")
        monkeypatch.setenv(ENVIRONMENT[1], "boss")
        found = access(*flags)
        assert (found.api_keys, found.admin_key) == (keys, admin)
        assert not set(ENVIRONMENT) & set(os.environ)
    assert (access().api_keys, access().admin_key) == ((), None)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--api-key", ""), "empty"),
        (("--api-key", "two words"), "visible ASCII"),
        (("--api-key", "é"), "visible ASCII"),
        (("--admin-api-key", "\n"), "visible ASCII"),
        (("--api-key-file", "/nowhere"), "--api-key-file: cannot read /nowhere"),
        (("--api-key-file", os.devnull), "holds no key"),
        (("--admin-api-key", "a", "--admin-api-key-file", "FILE"), "there is to be one"),
    ],
)
def test_what_can_be_no_key_is_said(
    flags: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.write_text("a\n")
    with pytest.raises(SystemExit):
        access(*(str(file) if flag == "FILE" else flag for flag in flags))
    said = capsys.readouterr().err
    assert words in said
    assert "two words" not in said


def test_a_fleets_keys_are_its_routers(capsys: pytest.CaptureFixture[str]) -> None:
    found = access("--api-key", "a", "--admin-api-key", "b", "--allowed-hosts", "n")
    assert routers_keys(build_parser(), found, {"policy": "random"}) == {
        "policy": "random",
        "api_key": ["a"],
        "admin_api_key": "b",
        "allowed_hosts": ["n"],
    }
    assert routers_keys(build_parser(), access(), {"api_key": ["r"]}) == {"api_key": ["r"]}
    for own in ("api_key", "api_key_file"):
        with pytest.raises(SystemExit):
            routers_keys(build_parser(), found, {own: "r"})
        flag = own.replace("_", "-")
        assert f"--api-key and --router-{flag} are the same in a fleet" in capsys.readouterr().err


def test_the_key_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key, router = runs_key({"policy": "random"})
    assert router == {"policy": "random", "worker_api_key": key}
    assert len(key) > 40
    assert runs_key({})[0] != key
    file = tmp_path / "key"
    file.write_text("given\n")
    assert runs_key({"worker_api_key_file": str(file)}) == ("given", {"worker_api_key": "given"})
    assert runs_key({"worker_api_key": "told"}) == ("told", {"worker_api_key": "told"})
    monkeypatch.setenv("SGLANG_OMNI_ROUTER_WORKER_API_KEY", "found")
    monkeypatch.setenv("SGLANG_OMNI_ROUTER_API_KEY", "clients'")
    assert runs_key({})[0] == "found"
    environment = replicas_environment("key")
    assert [environment[name] for name in ENVIRONMENT] == ["key", "key"]
    assert not {"found", "clients'"} & set(environment.values())


def test_the_key_of_a_run_may_be_made_from_a_secret() -> None:
    key, router = runs_key({}, b"secret")
    assert router == {"worker_api_key": key}
    assert runs_key({}, b"secret")[0] == key != runs_key({}, b"other")[0]
    assert b"secret".hex() not in key
    assert runs_key({"worker_api_key": "told"}, b"secret")[0] == "told"


def test_owners_are_the_same_wherever_voices_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = ("--voices-dir", str(tmp_path / "kept"))
    first, again = (_parse(build_parser(), [*folder]).access.owner_secret for _ in range(2))
    assert first == again != _parse(build_parser(), []).access.owner_secret
    with pytest.raises(SystemExit):
        _parse(build_parser(), ["--voices-dir", "/proc/kept"])
    assert "--voices-dir /proc/kept: No such file or directory" in capsys.readouterr().err


def test_a_file_may_name_tenants(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("plain\nblue a\nblue  b\nred team c\n")
    found = access("--api-key-file", str(file), "--api-key", "d")
    assert found.api_keys == ("d", "plain", "a", "b", "c")
    assert found.tenants == {"a": "blue", "b": "blue", "c": "red team"}
    # Its router reads the names from the file; what only the flag has, it is told.
    fields = routers_keys(build_parser(), found, {}, file)
    assert (fields["api_key"], fields["api_key_file"]) == (["d", "plain"], str(file))


def test_one_key_of_two_tenants_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "keys"
    file.write_text("blue a\nred a\n")
    with pytest.raises(SystemExit):
        access("--api-key-file", str(file))
    assert "one key is that of 'blue' and of 'red'" in capsys.readouterr().err
