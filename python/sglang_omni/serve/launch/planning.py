"""The plan of what a server serves: of the hub's models, checked before their weights are fetched."""

from __future__ import annotations

import argparse
import logging
import tempfile
from collections.abc import Callable, Sequence
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

from sglang_omni.hub import Outlines, outlines_only
from sglang_omni.serve.launch.checks import Checks, check_pipeline
from sglang_omni.serve.launch.pipelines import LaunchError

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from sglang_omni.config import PipelineConfig
    from sglang_omni.config.plan.pipeline import PipelinePlan

logger = logging.getLogger(__name__)

# Less is fetched as fast as it is checked: building stages takes some seconds, because it imports torch.
_WORTH_BUILDING = 1_000_000_000


def checked_plan(load: Callable[[], PipelineConfig], args: argparse.Namespace) -> PipelinePlan:
    """The plan of the pipeline that ``load`` gives.

    What would be downloaded is first checked by its configs and the headers of its weights.

    Args:
        load: Loads the pipeline.
        args: As of ``check_pipeline``.

    Raises:
        LaunchError, ConfigError, OSError, ValueError, RuntimeError: What is wrong.
    """
    checks = Checks()
    with tempfile.TemporaryDirectory(prefix="sgl-omni-outlines-") as folder:
        outlines = Outlines(Path(folder))
        with outlines_only(outlines):
            try:
                config = load()
                plan = check_pipeline(config, args, checks)
                fetches = outlines.missing_size > 0
                if outlines.missing_size >= _WORTH_BUILDING and _is_ours(config):
                    _check_stages(config, outlines)
            except Exception as exc:
                if not outlines.broken:
                    raise _named(exc, outlines) from exc
                logger.warning("its weights are not checked before they are fetched: %s", exc)
                fetches = True
            if fetches:
                outlines.complete = True
                plan = check_pipeline(load(), args, checks)
    assert plan is not None, "a check that fails ends a start"
    return plan


def _named(exc: Exception, outlines: Outlines) -> Exception:
    """An error that names repositories, and not where their outlines were."""
    text = str(exc)
    return exc if outlines.named(text) == text else LaunchError(outlines.named(text))


def _is_ours(config: PipelineConfig) -> bool:
    """True if no factory is of another package, which may do more than build a stage."""
    return all(str(stage.factory).startswith("sglang_omni.") for stage in config.stages)


def _check_stages(config: PipelineConfig, outlines: Outlines) -> None:
    """Builds all stages from headers, in a process of its own: this one needs no torch.

    Raises:
        LaunchError: The stages cannot be built; the text is the first reason.
    """
    logger.info("checking the headers of the weights before %.1f GB are fetched", outlines.missing_size / 1e9)
    ours, theirs = get_context("spawn").Pipe(duplex=False)
    child = get_context("spawn").Process(target=_build_stages, args=(theirs, config, outlines), daemon=True)
    child.start()
    theirs.close()
    try:
        faults: Sequence[str] = ours.recv()
    except EOFError:
        child.join()
        logger.warning("the headers are not checked: the process for it ended with %s", child.exitcode)
        return
    child.join()
    if faults:
        raise LaunchError(faults[0])


def _build_stages(answer: Connection, config: PipelineConfig, outlines: Outlines) -> None:
    from sglang_omni.serve.launch.model_checks import check_model

    checks = Checks(go_on=True)
    with outlines_only(outlines):
        check_model(config, checks, unseen=outlines.unseen)
    answer.send([finding.text for finding in checks.findings if finding.status == "fail"])
