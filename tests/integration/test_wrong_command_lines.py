"""Wrong command lines: each ends with 2 for a usage or 1 for a failure, and says what to do next.

A row is the command line, its exit status, and words that the message must have.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from sglang_omni import cli
from sglang_omni.cli.command_words import words_of_all

NOWHERE = "http://127.0.0.1:1"
WRONG = [
    ("srve", 2, "'srve' is none of serve, route,"),
    ("srve", 2, "did you mean 'serve'?"),
    ("--hlep", 2, "did you mean --help?"),
    ("", 2, "are required: COMMAND"),
    ("serve --polcy random", 2, "did you mean --policy?"),
    ("serve --policy roundrobin", 2, "'roundrobin' is none of random, round_robin,"),
    ("serve --policy roundrobin", 2, "did you mean 'round_robin'?"),
    ("serve --port 99999", 2, "--port: '99999' is not a port; give 0 to 65535"),
    ("serve --mem-fraction-static 1.7", 2, "give a number above 0, and at most 1"),
    ("serve --tp-size 0", 2, "'0' is not a whole number of at least 1"),
    ("serve --max-model-len 100", 2, "here it is called --context-length"),
    ("serve --trust-remote-code", 2, "no code of a checkpoint is run; leave it out"),
    ("serve --served-model x", 2, "did you mean --served-model-name?"),
    ("serve --access-log", 2, "did you mean --router-access-log?"),
    ("serve --attention-backend", 2, "--attention-backend: needs a value"),
    ("serve --served-model-name", 2, "--served-model-name: needs at least one value"),
    ("serve nowhere", 1, "no checkpoint there (no config.json); give the directory of one"),
    ("serve a --model-path b", 2, "the model is given twice, as 'a' and --model-path 'b'"),
    ("serve --config nowhere.yaml", 1, "nowhere.yaml: cannot be read: No such file or directory"),
    ("serve --config bad.yaml", 1, "bad.yaml: not valid YAML"),
    ("serve --router-policy random", 2, "there is a router only with a --dp-size of 2 or more"),
    ("serve --dp-size 2 --router-cache-threshold 7", 2, "7 is not between 0 and 1"),
    ("serve --ssl-certfile a.pem", 2, "give both, or neither"),
    ("serve --api-key-file nowhere", 2, "error: --api-key-file: cannot read nowhere: No such file"),
    ("serve --stage thinkr.gpu=0", 1, "no stage 'thinkr'; did you mean 'thinker'?"),
    ("serve --stage thinker.gpuu=0", 1, "did you mean 'gpu'?"),
    ("serve --stage thinker", 1, "expected STAGE.NAME=VALUE"),
    ("serve --join-key x", 2, "hosts join only with a --join-port"),
    ("serve --log-level loud", 2, "'loud' is none of debug, info, warning, error"),
    ("serve --start-timeout -1", 2, "'-1' is no number of seconds above 0"),
    ("route --worker-url http://a", 2, "did you mean --worker-urls?"),
    ("route --worker-urls ftp://a", 2, "the right form is http://host:port"),
    ("route --worker-urls http://a --cache-threshold 3", 2, "3 is not between 0 and 1"),
    (f"route top --url {NOWHERE}", 1, f"no router answers at {NOWHERE}"),
    ("route top --interval 0", 2, "--interval must be more than 0 seconds"),
    ("host --coordinatr tcp://1 --name a", 2, "did you mean --coordinator?"),
    (
        "host --coordinator tcp://1.2.3.4:1 --name a --join-key nowhere",
        2,
        "nowhere: no such file; copy there",
    ),
    ("trace", 2, "are required: REQUEST_ID"),
    (f"trace abc --url {NOWHERE}", 1, "Connection refused"),
    ("config veiw", 2, "did you mean 'view'?"),
    ("config view nowhere.yaml", 1, "nowhere.yaml: cannot be read"),
    ("config resolve --launcher slurm", 2, "'slurm' is none of local, ray"),
    ("doctor --jsn", 2, "did you mean --json?"),
    ("version 2", 2, "unrecognized arguments: 2"),
    ("completion tcsh", 2, "'tcsh' is none of bash, zsh, fish"),
    ("make-tiny-checkpoint qwen3_omi x", 2, "did you mean 'qwen3_omni'?"),
    ("make-tiny-checkpoint qwen3_omni x --seed y", 2, "--seed: 'y' is not a whole number"),
    ("bench serv", 2, "did you mean 'serve'?"),
    ("bench serve --trafic chat", 2, "did you mean --traffic?"),
    ("bench serve --traffic video", 2, "'video' is none of chat, completions,"),
    ("bench serve --url ftp://x", 2, "give one like http://127.0.0.1:8000"),
    (f"bench serve --url {NOWHERE}", 1, "is the server up? --url says where"),
    ("bench serve --request-rate 0", 2, "give requests a second, above 0, or inf"),
    ("bench serve --duration 5", 2, "give --request-rate or --concurrency"),
    ("bench serve --goodput ttft", 2, "give a name and the most it may be: ttft:500"),
    ("bench serve --goodput tfft:5", 2, "did you mean 'ttft'?"),
    ("bench serve --dataset-name sharegpt", 2, "give --dataset-path"),
    ("bench serve --dataset-name custom --dataset-path lines.jsonl", 1, "lines.jsonl, line 1: not "),
    ("bench serve --plot x.png", 2, "give a name that ends with .svg"),
    ("bench serve --output-json nowhere/x.json", 2, "there is no folder"),
    ("bench serve --extra-body '{a}'", 2, "'{a}' is no JSON"),
]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bad.yaml").write_text("stages: [")
    (tmp_path / "lines.jsonl").write_text('{"promt": 1}\n')
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(("line", "status", "words"), WRONG)
def test_a_wrong_command_line(line: str, status: int, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        ended = cli.main(shlex.split(line))
    except SystemExit as exc:
        ended = exc.code  # type: ignore[assignment]
    said = capsys.readouterr().err
    assert ended == status, said
    assert words in said
    assert "Traceback" not in said
    assert "line 1 column" not in said
    if status == 2:
        assert "--help says more" in said.splitlines()[-1]


def test_what_is_near_nothing_gets_no_hint(capsys: pytest.CaptureFixture[str]) -> None:
    for line in ("serve --text-only", "bench serve --backend vllm", "zzz"):
        with pytest.raises(SystemExit):
            cli.main(shlex.split(line))
        assert "did you mean" not in capsys.readouterr().err


HEAVY = ("torch", "transformers", "fastapi", "pydantic", "aiohttp", "httpx", "numpy", "uvicorn", "av", "zmq")


@pytest.mark.parametrize("command", sorted(words_of_all())[1:])
def test_help_imports_nothing_heavy(command: str) -> None:
    code = (
        "import sys\nfrom sglang_omni import cli\n"
        f"try: cli.main([*{command.split()!r}, '--help'])\n"
        "except SystemExit as done: assert not done.code, done.code\n"
        f"print('LOADED', *(m for m in {HEAVY!r} if m in sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert f"usage: sgl-omni {command}" in done.stdout
    assert done.stdout.splitlines()[-1].split() == ["LOADED"]
