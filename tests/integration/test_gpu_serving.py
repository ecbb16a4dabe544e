"""What ``sgl-omni serve`` starts for a checkpoint on machines whose GPUs only a driver of these tests has."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_machine import FakeMachine
from qwen3_omni_oracle import Oracle
from served_process import served_process
from tiny_checkpoints import TinyCheckpoint

_STAGES = Path(__file__).with_name("stages_without_models")
# A stage and the GPUs that its process sees.
Seen = set[tuple[str, str | None]]


@pytest.fixture
def serve(tmp_path: Path) -> Callable[..., Seen]:
    """Starts a server whose stages load nothing, and ends it when it is up."""

    def start(checkpoint: Path, *flags: str) -> Seen:
        record = tmp_path / "stages"
        record.unlink(missing_ok=True)
        environment = {"PYTHONPATH": str(_STAGES), "STAGES_FILE": str(record)}
        flags = ("--model-path", str(checkpoint), "--mps", "off", *flags)
        with served_process(tmp_path / "log", *flags, env=os.environ | environment):
            pass
        stages: dict[int, list[dict[str, Any]]] = defaultdict(list)
        for line in record.read_text().splitlines():
            entry = json.loads(line)
            stages[entry["pid"]].append(entry)
        for entries in stages.values():
            # One process sees one list, and its only GPU has the index 0 in it.
            assert len({entry["visible"] for entry in entries}) == 1
            assert {entry["gpu_id"] for entry in entries} <= {None, 0}
        return {(entry["stage"], entry["visible"]) for entries in stages.values() for entry in entries}

    return start


@pytest.mark.parametrize("gpus", [1, pytest.param(3, marks=pytest.mark.long)])
def test_a_llama_has_a_gpu_for_each_replica(
    fake_machine: FakeMachine,
    serve: Callable[..., Seen],
    tiny_checkpoint: Callable[..., TinyCheckpoint],
    gpus: int,
) -> None:
    fake_machine.has(gpus)
    seen = serve(tiny_checkpoint("llama").path, *(["--dp-size", str(gpus)] if gpus > 1 else []))
    tokenizing = {visible for stage, visible in seen if stage == "preprocess"}
    thinking = {visible for stage, visible in seen if stage == "thinker"}
    assert {stage for stage, _ in seen} == {"preprocess", "thinker"}
    assert thinking == {str(gpu) for gpu in range(gpus)}
    # A stage without a GPU sees what its replica sees.
    assert tokenizing == ({None} if gpus == 1 else thinking)


def test_a_qwen3_is_split_over_two_gpus(
    fake_machine: FakeMachine, serve: Callable[..., Seen], tiny_checkpoint: Callable[..., TinyCheckpoint]
) -> None:
    fake_machine.has(2)
    flags = ["--tp-size", "2", "--stage", "thinker.gpu=[0,1]"]
    seen = serve(tiny_checkpoint("qwen3").path, *flags)
    assert seen == {("preprocess", None), ("thinker", "0"), ("thinker", "1")}


@pytest.mark.parametrize(
    ("gpus", "flags", "places"),
    [
        (1, [], {("0", "0")}),
        (2, [], {("0", "1")}),
        (8, [], {("0", "1")}),
        pytest.param(
            4,
            ["--dp-size", "2"],
            {("0", "1"), ("2", "3")},
            marks=pytest.mark.long,
        ),
    ],
)
def test_qwen3_omni_speaks_on_a_second_gpu_if_there_is_one(
    fake_machine: FakeMachine,
    serve: Callable[..., Seen],
    qwen3_omni: Callable[..., Oracle],
    gpus: int,
    flags: list[str],
    places: set[tuple[str, str]],
) -> None:
    fake_machine.has(gpus)
    seen = serve(qwen3_omni().path, *flags)
    for stage in ("thinker", "image_encoder", "audio_encoder"):
        assert {visible for name, visible in seen if name == stage} == {place[0] for place in places}
    for stage in ("talker", "code2wav"):
        assert {visible for name, visible in seen if name == stage} == {place[1] for place in places}
