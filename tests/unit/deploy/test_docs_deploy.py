"""docs/deploy.md and the unit for systemd: what they name exists, and their command lines can be read."""

from __future__ import annotations

import configparser
import re
import shlex
from pathlib import Path

import pytest
import yaml
from deployed import DOCKERFILE, KUBERNETES, ROOT, command, image, read_command
from documented import Page

PAGE = Page("deploy.md")
COMPOSE = ROOT / "deploy/compose/compose.yaml"
UNIT = ROOT / "deploy/systemd/sgl-omni.service"
# What `docker run` itself takes with a value, of what the page uses.
DOCKERS_OPTIONS = {"-p", "-v", "--gpus", "--shm-size", "--ulimit"}


def unit() -> configparser.SectionProxy:
    read = configparser.ConfigParser(strict=False, interpolation=None, delimiters=("=",))
    read.optionxform = str  # type: ignore[assignment,method-assign]
    read.read_string(re.sub(r"\\\n", " ", UNIT.read_text()))
    return read["Service"]


def run_lines() -> list[tuple[str, list[str]]]:
    """Target and arguments of each `docker run` of the page."""
    found = []
    for line in re.findall(r"^docker run (.+)$", re.sub(r"\\\n", " ", PAGE.text), re.M):
        words = iter(shlex.split(line))
        for word in words:
            if word in DOCKERS_OPTIONS:
                next(words)
            elif not word.startswith("-"):
                target = word.partition(":")[2] or word.removeprefix("sgl-omni-")
                found.append((target, list(words)))
    return found


def test_paths_exist() -> None:
    named = set(re.findall(r"(?:deploy|requirements|scripts|\.github)/[\w./-]+", PAGE.text))
    assert len(named) > 5
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_every_target_is_built_and_every_folder_is_reported() -> None:
    built = re.findall(r"docker build -f (\S+) --target (\w+) -t (\S+) \.", PAGE.text)
    assert {target for _, target, _ in built} == {"router", "cpu", "cuda"}
    assert all(ROOT / path == DOCKERFILE and image(target) for path, target, _ in built)
    folders = {str(path.parent.relative_to(KUBERNETES)) for path in KUBERNETES.rglob("kustomization.yaml")}
    assert folders == set(re.findall(r"^\| `((?:base|overlays|components)[\w/]*)` \|", PAGE.text, re.M))


def test_compose_starts_what_the_images_run() -> None:
    services = yaml.safe_load(COMPOSE.read_text())["services"]
    for name, task in {"router": "route", "server": "serve"}.items():
        service = services[name]
        build = service["build"]
        assert (COMPOSE.parent / build["context"] / build["dockerfile"]).resolve() == DOCKERFILE
        subcommand, options = command(build["target"], service["command"])
        assert subcommand == task
        assert options.drain_timeout < int(service["stop_grace_period"].removesuffix("s"))
        keys = {
            Path(value).name for value in vars(options).values() if str(value).startswith("/run/secrets/")
        }
        assert keys == set(service["secrets"])
        # The images' own ports are what the others name.
        assert int(image(build["target"])["EXPOSE"]) == {"router": 30000, "server": 8000}[name]
    _, router = command("router", services["router"]["command"])
    assert router.worker_dns == ["server:8000"]


@pytest.mark.parametrize(("target", "args"), run_lines())
def test_images_take_the_arguments(target: str, args: list[str]) -> None:
    assert args
    assert command(target, args)


def test_the_units_options_exist_and_requests_have_time_to_end() -> None:
    service = unit()
    program, *words = shlex.split(service["ExecStart"])
    assert program == "/opt/sgl-omni/bin/sgl-omni"
    subcommand, options = read_command(words)
    assert subcommand == "serve"
    assert service["KillMode"] == "mixed"
    assert options.drain_timeout + 20 <= float(service["TimeoutStopSec"])
