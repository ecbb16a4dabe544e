"""Pipelines and fleets on machines whose GPUs only a driver of these tests has: what their processes see."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import httpx
import psutil
import pytest
from fake_machine import FakeMachine, gpu_uuid
from fake_mps import FakeMps
from processes import command_line
from served_process import ServedProcess
from shouting_server import launch
from waiting import PATIENCE

from sglang_omni.config import load_config
from sglang_omni.pipeline.processes.runner import MultiProcessPipelineRunner

__all__ = ["launch"]

CONFIG = """
model_path: none
name: gpus
endpoints: {{base_path: {folder}/run}}
stages:
  - {{name: first, process: first, factory: gpu_report.load, gpu: 1, next: second,
     runtime: {{resources: {{total_gpu_memory_fraction: 0.4}}}}}}
  - {{name: second, process: second, factory: gpu_report.load, gpu: 1, next: third,
     runtime: {{resources: {{total_gpu_memory_fraction: 0.4}}}}}}
  - {{name: third, process: third, factory: gpu_report.load, terminal: true}}
"""


async def test_a_run_starts_mps_for_processes_that_share_a_gpu_and_ends_it(
    fake_machine: FakeMachine, short_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    control = FakeMps(tmp_path, monkeypatch)
    control.install()
    fake_machine.has(2)
    file = short_path / "pipeline.yaml"
    file.write_text(CONFIG.format(folder=short_path))
    async with MultiProcessPipelineRunner(load_config(file)) as runner:
        async with asyncio.timeout(PATIENCE):
            first, second, third = await runner.coordinator.submit("r", [])
        assert "quit" not in control.calls
    assert first == second
    pipes = first.pop("CUDA_MPS_PIPE_DIRECTORY")
    assert pipes.startswith(str(short_path))
    assert first == {"CUDA_VISIBLE_DEVICES": gpu_uuid(1), "gpu_id": 0, "gpus": [gpu_uuid(1)]}
    everything = {"CUDA_VISIBLE_DEVICES": None, "CUDA_MPS_PIPE_DIRECTORY": None, "gpu_id": None}
    assert third == {**everything, "gpus": [gpu_uuid(0), gpu_uuid(1)]}
    assert control.calls == [f"start {gpu_uuid(1)}", "get_server_list", "quit"]


def test_each_replica_of_a_fleet_has_gpus_of_its_own(
    fake_machine: FakeMachine, launch: Callable[..., ServedProcess]
) -> None:
    visible = [gpu_uuid(number) for number in (4, 2, 1, 0)]
    fake_machine.has(5, ",".join(visible))
    server = launch("--dp-size", "2", "--mps", "off", config=CONFIG)
    assert httpx.get(f"{server.base_url}/health", timeout=PATIENCE).status_code == 200

    def sees(process: psutil.Process) -> str:
        return process.environ()["CUDA_VISIBLE_DEVICES"]

    replicas = server.children("launch_server")
    assert sorted(map(sees, replicas)) == sorted([",".join(visible[:2]), ",".join(visible[2:])])
    for replica in replicas:
        stages = [child for child in replica.children() if "processes.child" in command_line(child)]
        both = sees(replica)
        assert sorted(map(sees, stages)) == sorted([both, *[both.split(",")[1]] * 2])
