"""The checks before a start, by name: a server ends at the first that fails, `sgl-omni check` goes on."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from sglang_omni.diagnosis import Finding, Status
from sglang_omni.serve.launch.model_settings import apply_model_flags
from sglang_omni.serve.launch.parts import check_keys
from sglang_omni.serve.launch.pipelines import check_installed, check_split, fit_gpus, fit_ram
from sglang_omni.serve.launch.preflight import check_gpus

if TYPE_CHECKING:
    from sglang_omni.config import PipelineConfig
    from sglang_omni.config.plan.pipeline import PipelinePlan

logger = logging.getLogger(__name__)


class Checks:
    """
    Args:
        go_on: True if a check that fails is noted, and the next one runs; False if it raises.

    Attributes:
        findings: What was found, in the order of the checks.
    """

    def __init__(self, *, go_on: bool = False) -> None:
        self._go_on = go_on
        self.findings: list[Finding] = []

    def failed(self, name: str | None = None) -> bool:
        """True if a check failed; of that name, if one is given."""
        return any(f.status == "fail" and name in (None, f.name) for f in self.findings)

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        """In it, an error is what a check finds."""
        try:
            yield
        except Exception as exc:
            # What a checkpoint of others makes our code raise is what is looked for.
            if not self._go_on:
                raise
            self.tell(name, sentence(exc), "fail")

    def tell(self, name: str, text: str, status: Status = "ok") -> bool:
        """Note what a check found, and log it unless others go on.

        Returns:
            False if it was found before, and is not noted again. One fault may fail several checks.
        """
        if any((f.text, f.name if status == "ok" else name) == (text, name) for f in self.findings):
            return False
        self.findings.append(Finding(status, name, text))
        if not self._go_on:
            logger.info("%s: %s", name, text)
        return True


def sentence(exc: BaseException) -> str:
    """An error in a line; of one with a table below it, the line above."""
    if isinstance(exc, OSError) and exc.strerror is not None:
        return f"{exc.filename}: {exc.strerror}" if exc.filename else exc.strerror
    # The table of a memory plan begins with its first GPU.
    text = " ".join(str(exc).partition("\nGPU ")[0].split())
    return (
        text
        if isinstance(exc, (ValueError, RuntimeError, ImportError, OSError)) or _is_ours(exc)
        else (f"{type(exc).__name__}: {text}")
    )


def _is_ours(exc: BaseException) -> bool:
    return type(exc).__module__.startswith("sglang_omni.")


def check_weights(model_path: str, checks: Checks) -> None:
    """Check that the files of a checkpoint's weights are there, and as long as their headers say.

    Raises:
        FileNotFoundError, ValueError: They are not.
    """
    from sglang_omni.config.plan.weights import tensor_sizes

    sizes = tensor_sizes(model_path)
    dtypes = ", ".join(sorted({size.dtype for size in sizes}))
    gigabytes = sum(size.stored_bytes for size in sizes) / 1e9
    checks.tell("weights", f"{len(sizes):,} tensors, {gigabytes:.2f} GB of {dtypes}")


def check_pipeline(
    config: PipelineConfig, args: argparse.Namespace, checks: Checks, *, assumed: bool = False
) -> PipelinePlan | None:
    """The plan of a pipeline with the flags applied, checked as far as that takes no time.

    Args:
        config: The pipeline, which is changed.
        args: Those of the model, of a part and of health; ``launcher`` and ``dp_size``.
        checks: What was found is noted here.
        assumed: True if the GPUs are not this machine's.

    Returns:
        None if a check failed, and others went on.

    Raises:
        LaunchError, ConfigError, OSError, ValueError, RuntimeError: What is wrong, unless ``checks`` go on.
    """
    from sglang_omni.config import validate_config

    elsewhere = args.launcher == "ray"
    with checks.of("options"):
        check_keys(config)
        apply_model_flags(config, args)
        apply_health_flags(config, args)
    with checks.of("packages"):
        check_installed(config)
    if (Path(config.model_path) / "config.json").is_file():
        with checks.of("weights"):
            check_weights(config.model_path, checks)
    with checks.of("memory"):
        memory = fit_gpus(config, elsewhere=elsewhere)
        if memory is not None and checks.tell("memory", memory.summary()):
            for line in memory.lines():
                logger.info("%s", line)
        if not elsewhere and (ram := fit_ram(config, args.dp_size)) is not None:
            checks.tell("memory", ram.summary())
    plan = None
    with checks.of("config"):
        plan = validate_config(config)
        check_split(config)
    if plan is not None and not (elsewhere or assumed):
        with checks.of("GPUs"):
            check_gpus(plan)
    return plan


def apply_health_flags(config: PipelineConfig, args: argparse.Namespace) -> None:
    """Change ``config`` as the flags say."""
    if args.watchdog_timeout is not None:
        config.watchdog.step_timeout = args.watchdog_timeout
    if args.heartbeat_timeout is not None:
        config.watchdog.heartbeat_timeout = args.heartbeat_timeout
