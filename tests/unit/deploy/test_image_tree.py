"""`make prove-image` does what the Dockerfile says."""

from __future__ import annotations

import re
from pathlib import Path

import image_tree
import pytest
from deployed import DOCKERFILE
from image_tree import Step, Tree


class Written(Tree):
    """Notes what is to be run instead of running it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.ran: list[tuple[str, str, set[str], dict[str, str]]] = []

    def run(self, command: str, *, mounts: dict, environment: dict) -> str:  # type: ignore[type-arg,override]
        self.ran.append((self.user, command, set(mounts), {**self.environment, **environment}))
        return ""


def test_every_step_of_every_stage_is_read() -> None:
    read = [step for stage in image_tree.stages().values() for step in ("FROM", *stage.steps)]
    written = re.findall(r"^[A-Z]+ ", DOCKERFILE.read_text(), re.M)
    # Two ARGs are before the first stage.
    assert len(read) == len(written) - 2
    assert image_tree.stages()["cuda"].base == "server"


def test_steps_are_done_as_by_a_builder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    tree = Written(tmp_path)
    wheel = tmp_path / "sgl_omni-1-abi3.whl"
    wheel.touch()
    for step in (
        Step("ARG", "EXTRAS=sglang"),
        Step("ENV", "PATH=/opt/sgl-omni/bin:$PATH HOME=/cache"),
        Step("COPY", "--from=wheel /wheels /wheels"),
        Step("RUN", "--mount=type=cache,target=/root/.cache/uv uv pip install x[$EXTRAS]"),
        Step("USER", "1000:1000"),
        Step("RUN", "true"),
        Step("EXPOSE", "8000"),
    ):
        image_tree.do(step, tree, wheel)
    assert (tmp_path / "wheels" / wheel.name).is_file()
    (user, command, mounts, environment), (later, *_) = tree.ran
    assert (user, command, later) == ("0:0", "uv pip install x[$EXTRAS]", "1000:1000")
    assert mounts == {"/root/.cache/uv", "/etc/resolv.conf", "/etc/ssl/certs"}
    assert environment["PATH"].startswith("/opt/sgl-omni/bin:/usr/local/sbin:")
    assert (environment["HOME"], environment["EXTRAS"]) == ("/cache", "sglang")


def test_what_is_not_known_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="ADD"):
        image_tree.do(Step("ADD", "a b"), Tree(tmp_path), tmp_path)
