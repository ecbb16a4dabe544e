"""Two processes on one GPU: what they get of it, with and without MPS, and what lending memory costs."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping

import torch
from bench import Bench, Skip

_SECONDS = 4.0
# Small products in a row, as a decoder's step has them: alone they leave most of a GPU idle.
_WORK = """
import sys, time, torch
rows = torch.randn(8, 2048, device="cuda", dtype=torch.bfloat16)
weight = torch.randn(2048, 2048, device="cuda", dtype=torch.bfloat16)
def step():
    x = rows
    for _ in range(200):
        x = torch.nn.functional.rms_norm(x @ weight, (2048,))
    torch.cuda.synchronize()
step()
print("ready", flush=True)
sys.stdin.readline()
end, steps = time.monotonic() + float(sys.argv[1]), 0
while time.monotonic() < end:
    step()
    steps += 1
print(steps, flush=True)
"""


def run(bench: Bench) -> None:
    if not bench.on_gpu:
        raise Skip("needs a GPU")
    alone = sum(_rates(1, {}))
    bench.row("sharing", "one process", alone, "steps/s")
    bench.row("sharing", "two processes, together", sum(_rates(2, {})), "steps/s", f"one: {alone:.4g}")
    _lending(bench)
    with _mps() as environment:
        together = sum(_rates(2, environment))
    bench.row("sharing", "two processes under MPS, together", together, "steps/s", f"one: {alone:.4g}")


def _rates(count: int, environment: Mapping[str, str]) -> list[float]:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _WORK, str(_SECONDS)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )
        for _ in range(count)
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            if process.stdout.readline() != "ready\n":
                raise RuntimeError("a process did not start")
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        return [int(process.communicate(timeout=60)[0]) / _SECONDS for process in processes]
    finally:
        for process in processes:
            process.kill()


@contextlib.contextmanager
def _mps() -> Iterator[Mapping[str, str]]:
    control = shutil.which("nvidia-cuda-mps-control")
    if control is None:
        raise Skip("nvidia-cuda-mps-control is not installed; what came before it was measured")
    with tempfile.TemporaryDirectory() as folder:
        places = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        environment = {**os.environ, **places}
        subprocess.run([control, "-d"], env=environment, check=True, timeout=30)
        try:
            yield places
        finally:
            subprocess.run([control], input="quit\n", text=True, env=environment, check=False, timeout=30)


# Opens the memory behind a handle fifty times, and prints the median of the seconds it took.
_OPEN = """
import sys, time, torch
from sglang_omni.relay.shm.cuda_driver import cuda_driver
torch.cuda.init()
driver, handle, taken = cuda_driver(), bytes.fromhex(sys.argv[1]), []
with driver.on(0):
    for _ in range(50):
        began = time.perf_counter()
        driver.close_memory(driver.open_memory(handle))
        taken.append(time.perf_counter() - began)
print(sorted(taken)[25])
"""


def _lending(bench: Bench) -> None:
    """What lending a tensor to another process costs: a handle of its memory, opened and closed there."""
    from sglang_omni.relay.shm.cuda_driver import cuda_driver

    driver = cuda_driver()
    tensor = torch.empty(1 << 24, device=bench.device)
    with driver.on(0):
        start, size = driver.allocation(tensor.data_ptr())
        exported = bench.milliseconds(lambda: driver.export_memory(start))
        handle = driver.export_memory(start)
    bench.row("sharing", "export a handle", exported * 1000, "us")
    command = [sys.executable, "-c", _OPEN, handle.hex()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    opened = float(done.stdout) * 1e6
    bench.row("sharing", "open and close it in another process", opened, "us", f"{size >> 20} MiB")
    began = time.perf_counter()
    for _ in range(100):
        torch.cuda.synchronize()
    bench.row("sharing", "synchronize an idle device", (time.perf_counter() - began) * 1e4, "us")
