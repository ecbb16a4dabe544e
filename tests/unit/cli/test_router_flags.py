"""What the router's command lines take, and what they say to what they do not."""

from __future__ import annotations

import json

import pytest

from sglang_omni import launch_router, launch_server
from sglang_omni._core import check_router_config
from sglang_omni.command_line import meant_option
from sglang_omni.router import top


@pytest.mark.parametrize("main", [launch_router.main, top.main])
def test_options_are_written_out(main, capsys):
    flag, whole = ("--worker-url", "--worker-urls") if main is launch_router.main else ("--ur", "--url")
    with pytest.raises(SystemExit) as caught:
        main([flag, "http://127.0.0.1:1"])
    assert caught.value.code == 2
    said = capsys.readouterr().err
    assert f"unrecognized arguments: {flag}" in said
    assert f"did you mean {whole}?" in said


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("--access-log", "--router-access-log"),
        ("--worker-url", None),
        ("--modelpath", "--model-path"),
        ("--prot", "--port"),
        ("--text-only", None),
        ("--zzz", None),
        ("--", None),
    ],
)
def test_only_what_is_near_is_suggested(given, meant):
    known = launch_server.build_parser().options()
    assert meant_option(given, known) == meant


def test_a_wrong_value_is_reported_without_the_place_in_a_json_that_the_user_never_saw():
    with pytest.raises(ValueError, match='policy: "roundrobin" is none of random, round_robin') as caught:
        check_router_config(json.dumps({"policy": "roundrobin"}))
    assert "line" not in str(caught.value)
