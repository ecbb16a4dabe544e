"""What a bare install must be able to import, and what it must not drag in."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = (
    "torch",
    "transformers",
    "numpy.f2py",
    "onnxruntime",
    "faster_whisper",
    "ray",
    "nixl_cu13",
    "mooncake",
)


@pytest.mark.parametrize(
    "module",
    [
        "sglang_omni",
        "sglang_omni.client",
        "sglang_omni.config",
        "sglang_omni.launch_host",
        "sglang_omni.launch_router",
        "sglang_omni.launch_server",
        "sglang_omni.models.qwen3_omni.memory",
        "sglang_omni.models.text.config",
        "sglang_omni.pipeline.coordinator",
        "sglang_omni.pipeline.processes.hosts.launcher",
        "sglang_omni.proto",
        "sglang_omni.relay",
        "sglang_omni.scheduling.messages",
        "sglang_omni.serve",
        "sglang_omni.tasks",
    ],
)
def test_imports_nothing_heavy(module: str) -> None:
    code = f"import sys, {module}; print(*(m for m in {HEAVY!r} if m in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_router_help_needs_only_the_standard_library() -> None:
    code = (
        "import runpy, sys\n"
        "sys.argv = ['launch_router', '--help']\n"
        "try: runpy.run_module('sglang_omni.launch_router', run_name='__main__')\n"
        "except SystemExit as done: assert not done.code, done.code\n"
        "heavy = ('torch', 'fastapi', 'prometheus_client', 'zmq', 'httpx', 'numpy')\n"
        "print('LOADED', *(m for m in heavy if m in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "--worker-urls" in done.stdout
    assert done.stdout.strip().splitlines()[-1] == "LOADED"
