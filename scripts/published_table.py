"""The tables of what `sgl-omni check` says of every published id, for docs/models.md.

From the facts in ``models/FAMILY/published.json``, without a network: each model's outline is checked by the
code that `sgl-omni check` runs, on GPUs that this machine need not have.
"""

from __future__ import annotations

import sys
import tempfile
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from sglang_omni.cli.check import gpus_of
from sglang_omni.config.factories.overrides import override_stages
from sglang_omni.config.plan.memory import GIB, MemoryPlan
from sglang_omni.config.plan.ram import plan_ram
from sglang_omni.config.schema.defaults import Default, HasDefaults
from sglang_omni.families import FAMILIES
from sglang_omni.gpus import assuming
from sglang_omni.hub import DownloadPlan
from sglang_omni.published import PublishedModel, published_models
from sglang_omni.ram import Ram
from sglang_omni.serve.launch.pipelines import LaunchError, fit_gpus, pipeline_for
from sglang_omni.testing.outlines import write_outline

# In GB, as GPUs are sold.
_SIZES = (8, 12, 16, 24, 32, 40, 48, 64, 80, 96, 141)
_COMMON = 80
_ENDLESS = Ram(1 << 60, 1 << 60)
# What facts may be of, if they were not seen.
_KINDS = ("configs", "listing", "tensors")


def tables() -> str:
    """Both tables: what a model takes, and what is in force for a request that says nothing of it."""
    sizes, defaults = [], []
    with tempfile.TemporaryDirectory(prefix="published-") as folder:
        for family in FAMILIES:
            for model in published_models(family.name):
                directory = Path(folder) / model.id.replace("/", "--")
                plans = write_outline(family.name, model, directory)
                sizes.append(_row(f"`{model.id}`", *_size_cells(plans, directory), _facts(model)))
                defaults.append(_row(f"`{model.id}`", *_default_cells(directory)))
    return "\n".join(
        [
            _row("id", "fetched", "smallest GPU", f"KV cache on one of {_COMMON} GB", "on a CPU", "not seen"),
            "|---|---|---|---|---|---|",
            *sizes,
            "",
            _row("id", "context", "sampling", "length", "voice or language"),
            "|---|---|---|---|---|",
            *defaults,
        ]
    )


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _size_cells(plans: Sequence[DownloadPlan], directory: Path) -> Iterator[str]:
    count = sum(len(plan.files) for plan in plans)
    yield f"{sum(plan.size for plan in plans) / 1e9:.1f} GB in {count} files"
    fits = partial(_plan, directory)
    place = bisect_left(_SIZES, True, key=lambda size: fits(size) is not None)
    yield f"{_SIZES[place]} GB" if place < len(_SIZES) else f"more than {_SIZES[-1]} GB"
    yield _pools(fits(_COMMON))
    yield _ram(directory)


def _plan(directory: Path, size: int) -> MemoryPlan | None:
    """That of a GPU with ``size`` GB; None if the model does not fit it."""
    with assuming(gpus_of(f"{size}GB")):
        try:
            return fit_gpus(pipeline_for(str(directory)))
        except LaunchError:
            return None


def _pools(plan: MemoryPlan | None) -> str:
    if plan is None:
        return "does not fit"
    (gpu,) = plan.gpus
    pools = [f"{stage.stage} {stage.tokens:,} tokens" for stage in gpu.stages if stage.tokens]
    return ", ".join(pools) or "fixed"


def _ram(directory: Path) -> str:
    with assuming([]):
        config = pipeline_for(str(directory))
    needed = []
    for dtype in ("float32", "bfloat16"):
        override_stages(config, "dtype", dtype)
        plan = plan_ram(config, _ENDLESS)
        assert plan is not None
        needed.append(f"{plan.needed / GIB:.1f}")
    return f"{needed[0]} GiB, {needed[1]} in bfloat16"


def _facts(model: PublishedModel) -> str:
    """Which kinds of a model's facts follow from others, and were not seen."""
    return ", ".join(kind for kind in _KINDS if kind in model.derived)


def _default_cells(directory: Path) -> Iterator[str]:
    with assuming([]):
        config = pipeline_for(str(directory))
    assert isinstance(config, HasDefaults)
    found: Sequence[Default] = list(config.defaults())
    # Tokens, of prompt and answer.
    yield "".join(each.value.partition(" ")[0] for each in found if each.name == "context")
    for names in (("sampling",), ("length",), ("voice", "language")):
        yield "; ".join(f"{each.value} ({each.source})" for each in found if each.name in names)


if __name__ == "__main__":
    sys.stdout.write(f"{tables()}\n")
