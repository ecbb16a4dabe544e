"""What `deploy/` says: the images of the Dockerfile and the manifests for Kubernetes, as Python data."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

import yaml

from sglang_omni.launch_router import build_parser as router_parser
from sglang_omni.launch_server import build_parser as server_parser

ROOT = Path(__file__).parents[3]
DOCKERFILE = ROOT / "deploy/docker/Dockerfile"
KUBERNETES = ROOT / "deploy/kubernetes"
PARSERS = {"serve": server_parser, "route": router_parser}


def documents(path: str) -> dict[tuple[str, str], Any]:
    """The objects of a file below `deploy/kubernetes`, by kind and name."""
    found = yaml.safe_load_all((KUBERNETES / path).read_text())
    return {(each["kind"], each["metadata"]["name"]): each for each in found}


def image(target: str) -> dict[str, Any]:
    """A stage of the Dockerfile: its instructions by name, and those of the stages that it is built from."""
    stages: dict[str, dict[str, Any]] = {}
    name = ""
    # A line that ends in a backslash goes on.
    for line in re.sub(r"\\\n", " ", DOCKERFILE.read_text()).splitlines():
        instruction, _, rest = line.strip().partition(" ")
        if instruction == "FROM":
            base, _, name = rest.partition(" AS ")
            stages[name] = dict(stages.get(base, {}))
        elif instruction == "RUN":
            stages[name]["RUN"] = [*stages[name].get("RUN", []), rest]
        elif name and instruction.isupper():
            stages[name][instruction] = rest
    return stages[target]


def command(target: str, args: list[str]) -> tuple[str, argparse.Namespace]:
    """The command of `sgl-omni` that an image runs with these arguments, and its options."""
    program, dashes, name, *own = json.loads(image(target)["ENTRYPOINT"])
    assert (program, dashes, name) == ("tini", "--", "sgl-omni")
    return read_command([*own, *args])


def read_command(words: list[str]) -> tuple[str, argparse.Namespace]:
    """The command and the options of what follows `sgl-omni`. Options that do not exist end the test."""
    subcommand, *options = words
    return subcommand, PARSERS[subcommand]().parse_args(options)
