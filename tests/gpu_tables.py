"""The tables of docs/gpu.md, computed. ``python tests/gpu_tables.py`` writes them into the page."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import gpu_proofs
from fake_gpus import KINDS, fake_gpus
from published_shapes import TEXT_MODELS, write_qwen3_omni, write_text_model

from sglang_omni.config import PipelineConfig
from sglang_omni.config.plan.memory import CONTEXT_BYTES, choose, fit_memory, reserve_of
from sglang_omni.config.plan.memory_plan import MemoryPlan, gib
from sglang_omni.models.decoder.memory import text_model_demand
from sglang_omni.models.omni.pipelines import place_on_gpus
from sglang_omni.models.qwen3_omni.config import (
    Qwen3OmniPipelineConfig,
    Qwen3OmniTextPipelineConfig,
)

PAGE = Path(__file__).parents[1] / "docs" / "gpu.md"
# What is sold as 24, 48, 80 and 141 GB.
_OMNI_MACHINES = (("RTX 4090", 1), ("RTX A6000", 1), ("H100 80GB", 1), ("H100 80GB", 2), ("H200", 1))
# Where all stages in one process are of use.
_ONE_PROCESS = ("RTX A6000", "H100 80GB")
_TEXT_MACHINES = ("L4", "RTX 4090", "L40S", "A100 80GB", "H200")


def tables() -> dict[str, str]:
    """Each table's lines by the name that its markers have in the page."""
    with tempfile.TemporaryDirectory() as folder:
        omni = write_qwen3_omni(Path(folder, "omni"))
        fp8 = write_qwen3_omni(Path(folder, "omni-fp8"), fp8=True)
        plan = omni_plan(Qwen3OmniPipelineConfig(model_path=str(omni)), "H100 80GB", 1)
        return {
            "qwen3-omni": _table(_omni_rows(omni, fp8)),
            "qwen3-omni on 80 GB": "\n".join(["```text", *plan.lines(), "```"]),
            "text": _table(_text_rows(Path(folder))),
            "proofs": _table(_proof_rows()),
        }


def omni_plan(config: PipelineConfig, kind: str, number: int, *, in_one_process: bool = False) -> MemoryPlan:
    """Where the default placement leads on a machine of fake GPUs."""
    if in_one_process:
        for stage in config.stages:
            stage.process = "all"
    gpus = fake_gpus(kind, number)
    place_on_gpus(config, [gpu.index for gpu in gpus])
    plan = fit_memory(config, gpus)
    assert plan is not None
    return plan


def with_tables(page: str, computed: dict[str, str]) -> str:
    """The page with the tables between its markers replaced."""
    for name, table in computed.items():
        begin, end = f"<!-- computed: {name} -->\n", "\n<!-- end -->"
        pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.S)
        page, count = pattern.subn(lambda _, text=f"{begin}{table}{end}": text, page)  # type: ignore[misc]
        assert count == 1, f"docs/gpu.md has {count} places for the table {name!r}"
    return page


def _omni_rows(omni: Path, fp8: Path) -> Iterator[Sequence[str]]:
    yield "GPUs", "bfloat16, with speech", "bfloat16, text only", "FP8, with speech", "FP8, text only"
    for kind, number in _OMNI_MACHINES:
        for together in (False, True)[: 1 + (number == 1 and kind in _ONE_PROCESS)]:
            plans = (
                omni_plan(config_cls(model_path=str(path)), kind, number, in_one_process=together)
                for path in (omni, fp8)
                for config_cls in (Qwen3OmniPipelineConfig, Qwen3OmniTextPipelineConfig)
            )
            how = ", one process" if together else ""
            yield f"{number} x {kind}, {_memory(kind)}{how}", *map(_pools, plans)


def _pools(plan: MemoryPlan) -> str:
    if not plan.fits:
        missing = sum(-used.free for used in plan.gpus if used.free < 0)
        return f"no: {gib(missing)} are missing"
    stages = [stage for used in plan.gpus for stage in used.stages if stage.tokens]
    return " + ".join(f"{stage.tokens:,}" for stage in stages)


def _text_rows(folder: Path) -> Iterator[Sequence[str]]:
    yield "model", "weights", "KV of a token", *(f"{kind}, {_memory(kind)}" for kind in _TEXT_MACHINES)
    for name in TEXT_MODELS:
        demand = text_model_demand(write_text_model(folder / name, name), {})
        cells = []
        for kind in _TEXT_MACHINES:
            total = fake_gpus(kind)[0].total_bytes
            room = total - reserve_of(total, has_engine=True) - CONTEXT_BYTES
            memory = choose(demand, room, total)
            cells.append(f"{memory.tokens:,}" if memory.total <= room else "no")
        yield name, gib(demand.weights), f"{demand.token_bytes // 1024} KiB", *cells


def _proof_rows() -> Iterator[Sequence[str]]:
    """What ``make prove-gpu`` found when it was last run."""
    kept = json.loads(gpu_proofs.KEPT.read_text())
    kinds = gpu_proofs.KINDS
    versions = kept["versions"]
    compilers = f"nvcc {versions['nvidia-cuda-nvcc']}, Triton {versions['triton']}"
    yield f"SGLang {versions['sglang']}, {compilers}", *kinds
    for title, prefix in (
        ("CUDA modules of a step", "CUDA: "),
        (f"FlashInfer {versions['flashinfer-python']}, where it is SGLang's attention", "FlashInfer: "),
        ("Triton, positions on three axes", "Triton: mrope"),
        ("Triton, Qwen3-Omni's experts", "Triton: experts"),
    ):
        cells = []
        for kind in kinds:
            rows = [row for name, row in kept["columns"].get(kind, {}).items() if name.startswith(prefix)]
            cells.append(_proved(rows, kinds[kind].shared_kib))
        yield title, *cells


def _proved(rows: Sequence[dict[str, int]], shared_kib: int) -> str:
    if not rows:
        return "-"
    count = sum(row["kernels"] for row in rows)
    if "shared_bytes" not in rows[0]:
        return f"{count} compiled, loaded"
    most = max(row["shared_bytes"] for row in rows) / 1024
    return f"{count} compiled, {most:.0f} of {shared_kib} KiB"


def _memory(kind: str) -> str:
    return f"{KINDS[kind][0] / 1024:.1f} GiB"


def _table(rows: Iterable[Sequence[str]]) -> str:
    head, *body = rows
    return "\n".join(
        ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
        + [f"| {' | '.join(row)} |" for row in body]
    )


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text(), tables()))
