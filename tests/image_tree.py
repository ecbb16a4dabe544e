"""``make prove-image``: an H100's kernels are compiled in the file tree of the CUDA image, in no container.

The tree is made by the Dockerfile's own steps. Each RUN is done in a chroot, which has this machine's network
and caches of packages and no other file of it. For the images that are only in a registry something stands:
Debian's own Python 3.11 for ``python``, and for the stage with ``rust`` the wheel that ``make wheel`` made.

In the tree, as the image's user and with nothing but the image's environment, ``sgl-omni doctor`` must find
no fault, no compiler may be missing, and ``gpu_proofs.py`` must compile what gpu_proofs.json has of an H100.

sudo .venv/bin/python tests/image_tree.py
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import gpu_proofs

ROOT = Path(__file__).resolve().parents[1]
DOCKERFILE = ROOT / "deploy/docker/Dockerfile"
WORK = ROOT / "build/image"
# Of Debian, which stand for the image `python`: it has pip and Python's headers, and no compiler.
PYTHON = ("ca-certificates", "python3", "python3-dev", "python3-pip", "python3-venv")
# What a builder hands on to its steps: where packages come from, and by which certificates.
HANDED_ON = re.compile(r"(https?|no)_proxy|(PIP|UV)_\w+|\w*CA_BUNDLE|SSL_CERT_\w+", re.IGNORECASE)
# What an image says of containers, and does nothing to the tree.
OF_CONTAINERS = {"EXPOSE", "VOLUME", "HEALTHCHECK", "ENTRYPOINT", "STOPSIGNAL"}


class Step(NamedTuple):
    name: str
    text: str


class Stage(NamedTuple):
    """A stage of the Dockerfile; ``base`` is another one, or an image."""

    base: str
    steps: list[Step]


def stages() -> dict[str, Stage]:
    """The Dockerfile's, by name."""
    text = "\n".join(line for line in DOCKERFILE.read_text().splitlines() if not line.startswith("#"))
    # A line that ends in a backslash goes on.
    found: dict[str, Stage] = {}
    steps: list[Step] = []
    for line in re.sub(r"\\\n\s*", "", text).splitlines():
        name, _, rest = line.strip().partition(" ")
        if name == "FROM":
            base, _, stage = rest.partition(" AS ")
            steps = []
            found[stage] = Stage(base, steps)
        elif name and found:
            steps.append(Step(name, rest))
    return found


class Tree:
    """The files of a stage, and what its next step runs with."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
        self.arguments: dict[str, str] = {}
        self.user = "0:0"
        self.workdir = "/"

    def run(self, command: str, *, mounts: Mapping[str, Path], environment: Mapping[str, str]) -> str:
        """Runs a command of the shell in the tree, and returns its output.

        Raises:
            subprocess.CalledProcessError: It failed.
        """
        # Mounts of a namespace of their own end with its last process.
        lines = ["set -e", "mount -t proc proc proc", "mount --rbind /dev dev"]
        for target, source in mounts.items():
            place = self.folder / target.lstrip("/")
            if source.is_dir():
                place.mkdir(parents=True, exist_ok=True)
            else:
                place.touch()
            lines.append(f"mount --bind {source} {place}")
        lines.append('exec chroot --userspec="$1" . /bin/sh -c "cd $2; $3"')
        done = subprocess.run(
            ["unshare", "--mount", "sh", "-c", "\n".join(lines), "sh", self.user, self.workdir, command],
            cwd=self.folder,
            env={**self.environment, **environment},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        return done.stdout


def build(name: str, wheel: Path) -> Tree:
    """The tree of a stage, made of its base's by its steps.

    Raises:
        ValueError: A step is of a kind that is not known here.
    """
    stage = stages()[name]
    if stage.base in stages():
        tree = build(stage.base, wheel)
        # No other stage is made of that one.
        shutil.rmtree(WORK / name, ignore_errors=True)
        tree.folder = tree.folder.rename(WORK / name)
    else:
        assert stage.base.startswith("python:"), stage.base
        tree = Tree(WORK / name)
        shutil.rmtree(tree.folder, ignore_errors=True)
        subprocess.run(["cp", "-a", python_base(), tree.folder], check=True)
    for step in stage.steps:
        print(f"{name}: {step.name} {step.text}", flush=True)
        do(step, tree, wheel)
    return tree


def do(step: Step, tree: Tree, wheel: Path) -> None:
    """Does a step of the Dockerfile to a tree."""
    match step.name:
        case "RUN":
            mounts, command = caches(step.text)
            given = {name: value for name, value in os.environ.items() if HANDED_ON.fullmatch(name)}
            network = {"/etc/resolv.conf": Path("/etc/resolv.conf"), "/etc/ssl/certs": Path("/etc/ssl/certs")}
            tree.run(command, mounts=mounts | network, environment=given | tree.arguments)
        case "COPY":
            copy(step.text, tree, wheel)
        case "ENV":
            for pair in step.text.split():
                name, _, value = pair.partition("=")
                tree.environment[name] = value.replace("$PATH", tree.environment["PATH"])
        case "ARG":
            name, _, value = step.text.partition("=")
            tree.arguments[name] = value
        case "USER":
            tree.user = step.text
        case "WORKDIR":
            tree.workdir = step.text
        case _ if step.name not in OF_CONTAINERS:
            raise ValueError(f"nothing here does what the Dockerfile's {step.name} does")


def caches(text: str) -> tuple[dict[str, Path], str]:
    """The caches of a RUN that are mounted, and its command. They outlive the tree."""
    mounts = {}
    for target in re.findall(r"--mount=type=cache,target=(\S+)", text):
        kept = Path.home() / Path(target).relative_to("/root") if target.startswith("/root/") else None
        assert kept is not None, target
        kept.mkdir(parents=True, exist_ok=True)
        mounts[target] = kept
    return mounts, re.sub(r"--mount=\S+\s+", "", text)


def copy(text: str, tree: Tree, wheel: Path) -> None:
    """Does a COPY. What is of another stage is moved: nothing else is made of that one."""
    found = re.fullmatch(r"(?:--from=(\S+) )?(\S+) (\S+)", text)
    assert found is not None, text
    stage, source, target = found.groups()
    place = tree.folder / target.lstrip("/")
    if stage == "wheel":
        place.mkdir(parents=True)
        shutil.copy(wheel, place)
    elif stage is not None:
        other = build(stage, wheel)
        place.parent.mkdir(parents=True, exist_ok=True)
        (other.folder / source.lstrip("/")).rename(place)
        shutil.rmtree(other.folder)
    else:
        shutil.copy(ROOT / source, place)


def python_base() -> Path:
    """Debian with its own Python, as the image `python` is Debian with one."""
    base = WORK / "base"
    if not (base / "usr/local/bin/python").is_symlink():
        shutil.rmtree(base, ignore_errors=True)
        packages = f"--include={','.join(PYTHON)}"
        subprocess.run(["debootstrap", "--variant=minbase", packages, "bookworm", base], check=True)
        # Debian forbids what the image's pip may do.
        for file in base.glob("usr/lib/python3*/EXTERNALLY-MANAGED"):
            file.unlink()
        (base / "usr/local/bin/python").symlink_to("/usr/bin/python3")
    return base


def wrong(tree: Tree) -> Iterator[str]:
    """What the image lacks, or does not compile."""
    python = "/opt/sgl-omni/bin/python"
    for line in json.loads(in_image(tree, "/opt/sgl-omni/bin/sgl-omni doctor --json || true")):
        print(f"{line['status']}: {line['name']}: {line['text']}", flush=True)
        if line["status"] == "fail":
            yield f"{line['name']}: {line['text']}"
    # Where there is a GPU, the doctor says these too.
    program = "from sglang_omni.diagnosis import sglang_findings; print(*sglang_findings(), sep=chr(10))"
    yield from filter(None, in_image(tree, f"{python} -c '{program}'").splitlines())
    rows = json.loads(in_image(tree, f"{python} /proofs/gpu_proofs.py --column H100").splitlines()[-1])
    for name, row in rows.items():
        print(f"{name}: {json.dumps(row)}")
    kept = json.loads(gpu_proofs.KEPT.read_text())["columns"]["H100"]
    for name, text in gpu_proofs.failed(gpu_proofs.KINDS["H100"], rows, kept).items():
        yield f"{name}: {text}"


def in_image(tree: Tree, command: str) -> str:
    """The output of a command of the shell that runs as in a container of the image."""
    return tree.run(command, mounts={"/proofs": ROOT / "tests"}, environment={})


def main() -> int:
    if os.geteuid() != 0 or shutil.which("debootstrap") is None:
        print("A chroot and its packages take root, and `apt-get install debootstrap`.", file=sys.stderr)
        return 1
    (wheel,) = ROOT.glob("dist/sgl_omni-*.whl")
    WORK.mkdir(parents=True, exist_ok=True)
    failed = False
    for line in wrong(build("cuda", wheel)):
        print(f"FAILED {line}")
        failed = True
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
