"""Ids of the hub in place of directories, against a small hub of our own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_hub import SHA, FakeHub, fake_hub
from published_listings import LEFT, fetched_of

from sglang_omni.published import published_model

# Each line in: arguments of ``download``; each line out: the directory, or what the error says. One process
# for many, because huggingface_hub reads its environment when it is imported.
_ASK = """
import json, sys
from sglang_omni.hub import HubError, download, plan
from sglang_omni.serve.launch.registry import PipelineError, own_files
for line in sys.stdin:
    arguments, options = json.loads(line)
    try:
        if options.pop("plan", False):
            planned = plan(*arguments, own_files=own_files)
            print(json.dumps(["plan", str(planned.directory), planned.size, planned.missing_size]))
            continue
        if options.pop("served", False):
            options["own_files"] = own_files
        print(json.dumps(["there", str(download(*arguments, **options))]))
    except (HubError, PipelineError) as exc:
        print(json.dumps(["error", str(exc)]))
"""
FILES = {
    "config.json": "{}",
    "tokenizer.json": "{}",
    "chat_template.jinja": "x",
    "model-00001-of-00001.safetensors": "weights",
    "consolidated.safetensors": "the same weights",
    "codec.pth": "a codec that no family asks for",
    "pytorch_model.bin": "the same weights",
    "original/params.json": "{}",
    "README.md": "words",
}


def ask(environment: dict[str, str], *questions: tuple[list[Any], dict[str, Any]]) -> list[list[str]]:
    lines = "".join(json.dumps(question) + "\n" for question in questions)
    done = subprocess.run(
        [sys.executable, "-c", _ASK],
        input=lines,
        capture_output=True,
        text=True,
        timeout=240,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | environment,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def index(*shards: str) -> str:
    return json.dumps({"weight_map": {f"tensor.{shard}": shard for shard in shards}})


@pytest.fixture(scope="module")
def repos(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("repos")
    for name, files in (("whole", FILES), ("gated", FILES), ("bare", {"config.json": "{}"})):
        for path, text in files.items():
            file = folder / name / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
    for repo, (family, _) in LEFT.items():
        model = published_model(family, repo)
        shard_names = [name for name in fetched_of(repo) if name.endswith(".safetensors")]
        for name in model.listing:
            file = folder / repo / name
            file.parent.mkdir(parents=True, exist_ok=True)
            is_index = name.endswith(".safetensors.index.json")
            file.write_text(index(*shard_names) if is_index else f"the content of {name}")
        (folder / repo / "config.json").write_text(json.dumps(model.config()))
    return {f"org/{name}": folder / name for name in ("whole", "gated", "bare")} | {
        repo: folder / repo for repo in LEFT
    }


@pytest.fixture(scope="module")
def hub(repos: dict[str, Path]) -> Iterator[FakeHub]:
    with fake_hub(repos, frozenset({"org/gated"})) as hub:
        yield hub


def test_what_is_downloaded_and_what_errors_say(hub: FakeHub, tmp_path: Path) -> None:
    environment = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path), "HF_TOKEN": "hf_mine"}
    settings, whole, again, tagged, no_tag, gated, unknown, bare = ask(
        environment,
        (["org/whole"], {"weights": False}),
        (["org/whole"], {}),
        (["org/whole"], {}),
        (["org/whole", "v1"], {}),
        (["org/whole", "v9"], {}),
        (["org/gated"], {}),
        (["org/nothing"], {}),
        (["org/bare"], {}),
    )
    directory = Path(settings[1])
    assert whole == again == tagged == settings == ["there", str(directory)]
    assert directory.name == SHA
    assert directory.is_relative_to(tmp_path)
    there = {str(file.relative_to(directory)) for file in directory.rglob("*") if file.is_file()}
    assert there == {
        *("config.json", "tokenizer.json", "chat_template.jinja"),
        "model-00001-of-00001.safetensors",
    }
    assert "Bearer hf_mine" in hub.tokens
    downloads = {path: count for path, count in hub.requests.items() if path.startswith("GET /org/whole/")}
    assert downloads
    assert set(downloads.values()) == {1}, "from the cache after the first time"

    assert no_tag[1].startswith("org/whole has no revision 'v9'")
    assert "org/gated is gated: accept its terms on" in gated[1]
    assert "hf auth login" in gated[1]
    assert "org/nothing is not on" in unknown[1]
    assert "check the name" in unknown[1]
    assert bare[1].startswith("org/bare cannot be served: it has neither model.safetensors nor")

    offline = environment | {"HF_HUB_OFFLINE": "1"}
    cached, missing = ask(offline, (["org/whole"], {}), (["org/other"], {}))
    assert cached == whole
    assert (
        "org/other is not, or not completely, in the cache, and HF_HUB_OFFLINE is set: unset it" in missing[1]
    )
    assert "hf download org/other" in missing[1]


def test_without_a_network(tmp_path: Path) -> None:
    (answer,) = ask({"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path)}, (["org/whole"], {}))
    assert answer[0] == "error"
    assert "org/whole cannot be downloaded (ConnectError" in answer[1]
    assert "HTTPS_PROXY" in answer[1]
    assert "give its directory" in answer[1]


def test_of_a_published_repository_is_fetched_what_its_family_reads(
    hub: FakeHub, repos: dict[str, Path], tmp_path: Path
) -> None:
    environment = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path)}
    planned = ask(environment, *(([repo], {"plan": True}) for repo in LEFT))
    for repo, (_, directory, size, missing) in zip(LEFT, planned, strict=True):
        sizes = {name: (repos[repo] / name).stat().st_size for name in ("config.json", *fetched_of(repo))}
        here = {path.name for path in Path(directory).rglob("*") if path.is_file()}
        assert here == {
            name for name in sizes if name == "config.json" or name.endswith("tensors.index.json")
        }
        assert size == sum(sizes.values())
        assert missing == sum(sizes[name] for name in sizes if name not in here)

    offline = environment | {"HF_HUB_OFFLINE": "1"}
    unserved = ask(offline, *(([repo], {"served": True}) for repo in LEFT))
    for repo, (_, reported) in zip(LEFT, unserved, strict=True):
        assert f"{repo} is not, or not completely, in the cache" in reported
    served = ask(environment, *(([repo], {"served": True}) for repo in LEFT))
    for repo, (_, directory) in zip(LEFT, served, strict=True):
        there = {str(path.relative_to(directory)) for path in Path(directory).rglob("*") if path.is_file()}
        assert there == {"config.json", *fetched_of(repo)}
        asked = [path for path in hub.requests if path.startswith(f"GET /{repo}/resolve/")]
        assert {hub.requests[path] for path in asked} == {1}, "nothing comes twice"

    lost = Path(served[1][1]) / "model-00002-of-00005.safetensors"
    lost.unlink()
    csm, incomplete, plan = ask(
        offline,
        (["sesame/csm-1b"], {"served": True}),
        (["Qwen/Qwen2.5-Omni-7B"], {"served": True}),
        (["sesame/csm-1b"], {"plan": True}),
    )
    assert csm == served[2]
    assert "Qwen/Qwen2.5-Omni-7B is not, or not completely, in the cache" in incomplete[1]
    assert plan == ["plan", csm[1], planned[2][2], 0]


def test_what_no_family_serves_is_reported_before_its_weights_are_fetched(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("unknown")
    (folder / "config.json").write_text('{"model_type": "vits"}')
    (folder / "model.safetensors").write_text("weights")
    with fake_hub({"org/vits": folder}) as hub:
        (answer,) = ask({"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path)}, (["org/vits"], {"served": True}))
    assert "no pipeline for model_type 'vits'" in answer[1]
    assert not [path for path in hub.requests if path.endswith("model.safetensors")]
