"""``make prove-gpu``: the kernels of SGLang's steps are compiled for every kind of GPU, without one.

Its CUDA kernels, and those of FlashInfer where that is its attention, are compiled by nvcc and also loaded:
the library opens, which no GPU has run. Its Triton kernels are called as a step calls them, with the
published shapes of Qwen3-30B-A3B and of Qwen3-Omni's thinker and talker, and what they take of shared memory
must fit the GPU. A GPU's column is made by a process of its own: SGLang keeps the first architecture it sees.

What was proved is kept in gpu_proofs.json, from which ``gpu_tables.py`` writes docs/gpu.md. A row of that
file that is not proved any more, or with fewer kernels, is a failure: delete the file to take proofs away.

python tests/gpu_proofs.py [KIND ...]
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

KEPT = Path(__file__).with_suffix(".json")
# What compiles, and what is compiled.
COMPILERS = ("nvidia-cuda-nvcc", "torch", "triton", "sglang", "flashinfer-python")


class Kind(NamedTuple):
    """
    Attributes:
        device_name: As CUDA has it: SGLang's tuned tiles go by it.
        shared_kib: The shared memory that a block may have.
        has_flashinfer: True if SGLang takes FlashInfer for attention.
    """

    capability: tuple[int, int]
    device_name: str
    shared_kib: int
    has_flashinfer: bool


KINDS = {
    "A100": Kind((8, 0), "NVIDIA A100-SXM4-80GB", 163, True),
    "L4": Kind((8, 9), "NVIDIA L4", 99, True),
    "H100": Kind((9, 0), "NVIDIA H100 80GB HBM3", 227, False),
    "B200": Kind((10, 0), "NVIDIA B200", 227, False),
    "RTX 5090": Kind((12, 0), "NVIDIA GeForce RTX 5090", 99, True),
}
# A row of a column: how many kernels were compiled, and, of Triton's, the most bytes of shared memory that
# one takes; or why not.
Row = dict[str, Any]
Column = dict[str, Row]
# Of decode steps and of prompts: SGLang chooses tiles by them.
_TOKENS = (1, 8, 64, 512, 8192)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=", ".join(KINDS))
    parser.add_argument("--column", choices=KINDS, help=argparse.SUPPRESS)
    parser.add_argument("--triton-alone", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.column:
        print(json.dumps(column(KINDS[args.column], triton_alone=args.triton_alone)))
        return 0
    started = time.monotonic()
    kinds = args.kinds or list(KINDS)
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(os.cpu_count()) as pool:
        driver = stand_in_driver(Path(folder))
        columns = {pool.submit(in_a_process, kind, driver): kind for kind in kinds}
        # A column is kept once it is made, so that a run that is ended keeps those before.
        kept = [keep(columns[made], made.result()) for made in as_completed(columns)]
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    wall, cpu = time.monotonic() - started, spent.ru_utime + spent.ru_stime
    print(f"{wall / 60:.1f} minutes, and {cpu / 60:.1f} of a CPU's time")
    return 0 if all(kept) else 1


def keep(kind: str, proved: Column) -> bool:
    """Writes a column into the file, unless something is wrong with it; True if nothing is."""
    kept = json.loads(KEPT.read_text())
    wrong = failed(KINDS[kind], proved, kept["columns"].get(kind, {}))
    for name, row in proved.items():
        print(f"{kind}: {name}: {json.dumps(row)}")
    for name, text in wrong.items():
        print(f"FAILED {kind}: {name}: {text}")
    if not wrong:
        kept["columns"][kind] = proved
        kept["versions"] = {name: version(name).partition("+")[0] for name in COMPILERS}
        KEPT.write_text(json.dumps(kept, indent=1) + "\n")
    return not wrong


def failed(kind: Kind, proved: Column, before: Column) -> dict[str, str]:
    """What is wrong with the rows of a column, beside what was proved ``before``."""
    wrong = {name: "not proved any more" for name in before if name not in proved}
    for name, row in proved.items():
        had = before.get(name, {}).get("kernels", 1)
        if "kernels" not in row:
            wrong[name] = row["why"]
        elif row["kernels"] < had:
            wrong[name] = f"{row['kernels']} kernels, and there were {had}"
        elif row.get("shared_bytes", 0) > kind.shared_kib * 1024:
            wrong[name] = f"a kernel takes {row['shared_bytes']} bytes of {kind.shared_kib} KiB"
    return wrong


def stand_in_driver(folder: Path) -> Path:
    """The folder of a library by the driver's name: FlashInfer's kernels are linked to it."""
    from fake_machine import compile_driver

    return compile_driver(folder).parent


def in_a_process(kind: str, driver: Path, *options: str) -> Column:
    """The rows of a column. Nothing that was compiled before is used.

    Args:
        kind: The GPU's.
        driver: The folder of a stand-in for its driver.
        options: ``--triton-alone`` for the rows that take no nvcc.
    """
    with tempfile.TemporaryDirectory() as kept:
        names = ("SGLANG_JIT_CACHE_DIR", "TRITON_CACHE_DIR", "FLASHINFER_WORKSPACE_BASE", "XDG_CACHE_HOME")
        folders = {name: f"{kept}/{name}" for name in names}
        done = subprocess.run(
            [sys.executable, __file__, "--column", kind, *options],
            env={
                **os.environ,
                **folders,
                "LD_LIBRARY_PATH": str(driver),
                "FLASHINFER_CUDA_ARCH_LIST": ".".join(map(str, KINDS[kind].capability)),
            },
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
    if done.returncode != 0:
        return {"all": {"why": f"its process ended with status {done.returncode}"}}
    rows: Column = json.loads(done.stdout.splitlines()[-1])
    return rows


def column(kind: Kind, *, triton_alone: bool = False) -> Column:
    from sglang_omni import toolkit
    from sglang_omni.engines.sglang import compat

    if not triton_alone:
        toolkit.provide()

    # What needs no driver to load.
    compat.prepare("cpu")
    from sglang.kernels.jit.utils.arch import override_jit_cuda_arch

    with override_jit_cuda_arch(*kind.capability):
        rows = dict(triton_kernels(kind))
        if triton_alone:
            return rows
        rows |= dict(cuda_kernels())
    return rows | (dict(flashinfer_kernels()) if kind.has_flashinfer else {})


def cuda_kernels() -> Iterator[tuple[str, Row]]:
    import torch

    from sglang_omni.engines.sglang.kernels import _modules
    from sglang_omni.model_runner.config import DecoderConfig

    qwen3 = DecoderConfig(
        model_type="qwen3_moe",
        vocab_size=151_936,
        hidden_size=2048,
        intermediate_size=6144,
        num_hidden_layers=48,
        num_attention_heads=32,
        num_key_value_heads=4,
        head_dim=128,
        max_position_embeddings=40_960,
        rms_norm_eps=1e-6,
        rope_theta=1e6,
        qk_norm=True,
        num_experts=128,
        num_experts_per_tok=8,
        moe_intermediate_size=768,
    )
    # Llama's heads have 128 channels too, and those of small models 64.
    small = replace(qwen3, head_dim=64, num_experts=0)
    builds = {
        f"{build.func.__name__.removeprefix('_jit_').removesuffix('_module')}{build.args}": build
        for config in (qwen3, small)
        for build in _modules(torch.bfloat16, config)
    }
    for name, build in builds.items():
        yield f"CUDA: {name.replace('torch.', '')}", outcome(lambda build=build: bool(build()))


def flashinfer_kernels() -> Iterator[tuple[str, Row]]:
    """Attention as SGLang plans it for heads of 128 channels, four and more queries' to a key's.

    Both prompts and decode steps have the kernels of prompts then. A prompt whose beginning is in the KV
    cache is attended to in two parts, which are merged.
    """
    import torch
    from flashinfer.cascade import get_cascade_module
    from flashinfer.prefill import get_batch_prefill_module

    bf16 = (torch.bfloat16,) * 3
    plan = ("fa2", *bf16, torch.int32, 128, 128, 0, False, False, False)
    yield "FlashInfer: attention", outcome(lambda: bool(get_batch_prefill_module(*plan)))
    yield "FlashInfer: merged parts", outcome(lambda: bool(get_cascade_module()))


def triton_kernels(kind: Kind) -> Iterator[tuple[str, Row]]:
    for heads, kv_heads, whose in ((32, 4, "thinker"), (16, 2, "talker")):
        yield f"Triton: mrope, {whose}", fits(kind, lambda h=heads, k=kv_heads: mrope(h, k))
    for shape, whose in (((2048, 768, 8), "thinker"), ((1024, 384, 6), "talker")):
        yield f"Triton: experts, {whose}", fits(kind, lambda shape=shape: experts(kind, *shape))


def mrope(heads: int, kv_heads: int) -> None:
    import torch
    from sglang.kernels.ops.attention.rotary_triton import triton_mrope_fused

    queries, keys = (torch.empty(2, count * 128, dtype=torch.bfloat16) for count in (heads, kv_heads))
    tables = torch.empty(4096, 128, dtype=torch.bfloat16)
    positions = torch.zeros(3, 2, dtype=torch.int64)
    triton_mrope_fused(
        queries, keys, tables, positions, [24, 20, 20], 128, 128, True, False, True, axis_map=None
    )


def experts(kind: Kind, hidden: int, inner: int, top_k: int) -> None:
    import torch
    import triton.language as tl
    from sglang.kernels.ops.moe.fused_moe_triton_kernels import invoke_fused_moe_kernel
    from sglang.kernels.ops.moe.moe_align_small_numel import moe_align_small_numel
    from sglang.srt.layers.moe.moe_runner.triton_utils import fused_moe_triton_config as tiles

    tiles.get_device_name = lambda: kind.device_name
    # Of SGLang's settings, which a server publishes, tiles depend on this one.
    deterministic = SimpleNamespace(enable_deterministic_inference=False)
    tiles.get_exec = lambda: SimpleNamespace(deterministic=deterministic)
    up, down = (
        torch.empty(shape, dtype=torch.bfloat16, device="meta")
        for shape in ((128, 2 * inner, hidden), (128, hidden, inner))
    )
    for tokens in _TOKENS:
        tile, (down_tile, _) = tiles.try_get_optimal_moe_config(
            up.shape, down.shape, top_k, None, tokens, return_down_config=True
        )
        # As its caller does.
        tile, down_tile = dict(tile), dict(down_tile or tile)
        up_tma, down_tma = (each.pop("USE_TMA", False) for each in (tile, down_tile))
        rows = tokens * top_k
        numbers = {name: torch.empty(rows, dtype=torch.int32) for name in ("sorted", "experts")}
        chosen = torch.zeros(tokens, top_k, dtype=torch.int32)
        count = torch.empty(1, dtype=torch.int32)
        if rows <= 64:
            moe_align_small_numel(
                chosen, 129, tile["BLOCK_SIZE_M"], numbers["sorted"], numbers["experts"], count
            )
        products = (
            (up, tokens, False, top_k, tile, {"b_use_tma": up_tma, "c_sorted": down_tma}),
            (down, rows, True, 1, down_tile, {"a_use_tma": down_tma, "b_use_tma": down_tma}),
        )
        for weights, given, weighted, each, its_tile, how in products:
            invoke_fused_moe_kernel(
                torch.empty(given, weights.shape[2], dtype=torch.bfloat16, device="meta"),
                weights,
                None,
                torch.empty(tokens, top_k, weights.shape[1], dtype=torch.bfloat16, device="meta"),
                *(None, None, None),
                torch.ones(tokens, top_k),
                chosen,
                numbers["sorted"],
                numbers["experts"],
                count,
                weighted,
                each,
                its_tile,
                tl.bfloat16,
                *(False, False, False, False, False),
                **how,
            )


def outcome(compiles: Callable[[], int]) -> Row:
    try:
        count = compiles()
    except Exception as failure:  # noqa: BLE001  the other rows are worth having
        lines = [line for line in str(failure).splitlines() if "rror" in line]
        return {"why": (lines or str(failure).splitlines() or [repr(failure)])[0].strip()[:80]}
    return {"kernels": int(count)} if count else {"why": "nothing was compiled"}


def fits(kind: Kind, work: Callable[[], None]) -> Row:
    """How many Triton kernels ``work`` calls, compiled and not launched, and their shared memory."""
    with compiling(kind.capability) as taken:

        def compiles() -> int:
            work()
            return len(taken)

        row = outcome(compiles)
    return row | {"shared_bytes": max(taken.values())} if "kernels" in row else row


@contextmanager
def compiling(capability: tuple[int, int]) -> Iterator[Mapping[str, int]]:
    """In it, calls of Triton kernels compile them for a GPU.

    Yields:
        The bytes of shared memory that each takes, by its hash.
    """
    from triton.backends.compiler import GPUTarget
    from triton.runtime.driver import driver
    from triton.runtime.jit import JITFunction

    class Machine:
        def get_current_target(self) -> GPUTarget:
            return GPUTarget("cuda", 10 * capability[0] + capability[1], 32)

        def get_current_device(self) -> int:
            return 0

        def get_current_stream(self, device: int) -> int:
            return 0

    run = JITFunction.run
    taken: dict[str, int] = {}

    def compiled(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        kernel = run(self, *args, grid=grid, warmup=True, **kwargs)
        taken[kernel.hash] = kernel.metadata.shared
        return kernel

    JITFunction.run = compiled
    driver.set_active(Machine())
    try:
        yield taken
    finally:
        JITFunction.run = run


if __name__ == "__main__":
    sys.exit(main())
