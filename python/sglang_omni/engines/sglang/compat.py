"""All that depends on SGLang's version: preparing its import, its settings, its process groups.

Written for SGLang 0.5.23. Other versions rename and reshape its scheduler freely, so they are refused instead
of used with a warning: `scheduler.py` overrides methods that SGLang calls, and one with another meaning, or
that is no longer called, gives wrong tokens and no error. The ``sglang`` extra installs this version.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, NoReturn

import torch

from sglang_omni import toolkit
from sglang_omni.diagnosis import kernels_failure, kernels_install_line
from sglang_omni.engines.options import EngineOptions, TensorParallel
from sglang_omni.engines.sglang.lora import computing
from sglang_omni.engines.sglang.settings import device_index, server_args
from sglang_omni.packages import install_line

SUPPORTED_VERSION = "0.5.23"

# The names that SGLang imports from its kernel package on a machine without a GPU. They belong to speculative
# decoding and to caches that are not used here; on a CPU none of them is called.
_KERNELS_IMPORTED_BY_NAME = (
    "assign_draft_cache_locs_contiguous_cpu",
    "assign_extend_cache_locs_cpu",
    "assign_req_to_token_pool_cpu",
    "build_tree_kernel_efficient_cpu",
    "copy_all_layer_kv_cache_cpu",
    "fill_accept_out_cache_loc_cpu",
    "fill_bonus_tokens_cpu",
    "rotate_input_ids_cpu",
    "verify_tree_greedy_cpu",
)

_prepared_for: str | None = None


class _FifoLock:
    """A lock that threads get in the order of asking, so that a busy engine cannot starve the others."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._last = 0
        self._current = 1

    def __enter__(self) -> None:
        with self._changed:
            self._last += 1
            turn = self._last
            while self._current != turn:
                self._changed.wait()

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._current += 1
            self._changed.notify_all()


# SGLang's settings are globals, which each engine swaps for its own while it works: one works at a time.
_ENGINE_LOCK = _FifoLock()


# How long the event loop's thread of a stage waits for SGLang's, whose steps are long stretches of Python.
# By Python's own 5 ms, 64 streams of a tiny Llama got 5 to 13 % fewer tokens a second, for a tenth more CPU
# each, and the first token came up to a fifth later. OmniEngine's steps wait for torch more often: there the
# same cost 7 to 13 % of the tokens of 64 streams, so that its processes keep Python's.
_SWITCH_INTERVAL_S = 0.0005


def prepare(device: str) -> None:
    """Makes ``import sglang`` work in this process, for engines on ``device`` ("cpu" or "cuda:N").

    Raises:
        ImportError: SGLang, or its kernels for a GPU, are missing or of another version, or what it compiles
            others with is missing.
        RuntimeError: The process already serves another kind of device; SGLang fixes it at import.
    """
    global _prepared_for
    kind = device.split(":")[0]
    if _prepared_for is not None:
        if _prepared_for != kind:
            raise RuntimeError(
                f"SGLang was loaded for {_prepared_for!r} in this process and cannot serve {kind!r} as well: "
                "give the stage a process of its own"
            )
        return
    check_version()
    if kind == "cpu":
        _choose_cpu_engine()
    else:
        toolkit.provide()
    # With an external package, SGLang imports its own 200 models only when one of them is needed.
    os.environ.setdefault("SGLANG_EXTERNAL_MODEL_PACKAGE", "sglang_omni.engines.sglang.models")
    _load_kernels(kind)
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    _prepared_for = kind


# What its ``get_rope`` computes, under the names of config.json.
ROPE_TYPES = (
    *("default", "linear", "dynamic", "llama3", "yarn", "deepseek_yarn", "longrope", "su", "mrope"),
    "proportional",
)


def check_version() -> None:
    """Raise ImportError if SGLang is not installed, or not of the supported version."""
    if importlib.util.find_spec("sglang") is None:
        raise ImportError(
            f"engine 'sglang' needs SGLang, which is not installed: {install_line('sglang')}",
            name="sglang",
        )
    version = importlib.metadata.version("sglang")
    if version != SUPPORTED_VERSION:
        raise ImportError(
            f"engine 'sglang' drives the scheduler of SGLang {SUPPORTED_VERSION}, but {version} is "
            f"installed: pip install 'sglang=={SUPPORTED_VERSION}'",
            name="sglang",
        )


def _choose_cpu_engine() -> None:
    if os.environ.get("SGLANG_USE_CPU_ENGINE") == "1":
        return
    if "sglang.srt.utils" in sys.modules:
        raise RuntimeError(
            "sglang was imported for a GPU before this engine was built: set SGLANG_USE_CPU_ENGINE=1 in the "
            "environment"
        )
    os.environ["SGLANG_USE_CPU_ENGINE"] = "1"


def _load_kernels(kind: str) -> None:
    """Imports SGLang's kernels, or on a CPU that cannot load them, a stand-in."""
    try:
        import sgl_kernel  # noqa: F401
    except (ImportError, OSError) as exc:
        if kind != "cpu":
            reason = kernels_failure(str(exc) or repr(exc))
            raise ImportError(
                f"SGLang's kernels cannot be loaded on this machine ({reason}): they need a CUDA driver and "
                f"{kernels_install_line()} (`sgl-omni doctor` checks both); device='cpu' does without",
                name="sgl_kernel",
            ) from exc
        # A later import must not find the half-initialised package.
        for name in [name for name in sys.modules if name.split(".")[0] == "sgl_kernel"]:
            del sys.modules[name]
        sys.modules["sgl_kernel"] = _stand_in()


def _stand_in() -> ModuleType:
    """A module with the names that SGLang imports, which raise when they are called.

    ``torch.ops.sgl_kernel`` stays empty: SGLang finds no CPU kernels and computes with plain torch.
    """
    module = ModuleType("sgl_kernel")
    module.__spec__ = importlib.util.spec_from_loader("sgl_kernel", loader=None)

    def missing(name: str) -> Any:
        def call(*args: object, **kwargs: object) -> NoReturn:
            raise RuntimeError(f"sgl_kernel.{name} is not available: SGLang's kernels cannot load here")

        return call

    for name in _KERNELS_IMPORTED_BY_NAME:
        setattr(module, name, missing(name))
    return module


def register_model(model: type) -> None:
    """Registers one of our classes with SGLang under its name."""
    from sglang.srt.models.registry import ModelRegistry

    ModelRegistry.models[model.__name__] = model


class Runtime:
    """One engine's settings, separate from those of the process's other engines.

    Args:
        model_path: A directory with a ``config.json`` for SGLang.
        load_format: SGLang's name of a loader, or a loader class.
        steps_ahead: As of ``DecoderSpec``.
    """

    def __init__(
        self,
        model_path: Path,
        options: EngineOptions,
        *,
        load_format: Any = "auto",
        steps_ahead: bool = True,
    ) -> None:
        from sglang.srt import runtime_context
        from sglang.srt.server_args import PortArgs

        _check_groups(options.tp)
        self.tp = options.tp
        self._options = options
        if options.device == "cpu" and options.tp.size > 1:
            _share_cores(options.tp.size)
        self.server_args = server_args(model_path, options, load_format, steps_ahead=steps_ahead)
        # No sockets: SGLang's other processes do not run here.
        self.port_args = PortArgs(
            tokenizer_ipc_name="",
            scheduler_input_ipc_name="",
            detokenizer_ipc_name="",
            nccl_port=options.tp.port or 0,
            rpc_ipc_name="",
            metrics_ipc_name="",
            tokenizer_worker_ipc_name=None,
            decoupled_spec_ipc_config=None,
        )
        self._context = runtime_context.create_context(
            self.server_args,
            role="scheduler",
            ranks=runtime_context.SpawnRanks(
                world_rank=options.tp.rank, dp_rank=None, gpu_id=device_index(options)
            ),
        )

    @contextmanager
    def active(self) -> Iterator[None]:
        """Makes this engine's settings SGLang's; other engines of the process wait."""
        from sglang.srt.runtime_context import use_context

        with _ENGINE_LOCK, use_context(self._context), torch.no_grad(), computing(self._options):
            yield

    @contextmanager
    def building(self) -> Iterator[None]:
        """Like ``active``, for constructing the engine's scheduler.

        SGLang creates its communication groups once per process, so all engines share those of the first.
        """
        from sglang.srt.distributed import bootstrap, parallel_state

        create, create_group = bootstrap.init_parallel_runtime, parallel_state.init_model_parallel_group
        parallel = self._context.parallel

        def join(**kwargs: Any) -> None:
            global _groups
            if _groups is not None:
                parallel.override_permanently(**_groups.placement)
                return
            if self.tp.size == 1 and not torch.distributed.is_initialized():
                # A group of one needs no port.
                torch.distributed.init_process_group(
                    "gloo" if self.server_args.device == "cpu" else "nccl",
                    store=torch.distributed.HashStore(),
                    rank=0,
                    world_size=1,
                )
            create(**kwargs)
            _groups = _Groups(self.tp, dict(parallel._stamp))

        with self.active():
            bootstrap.init_parallel_runtime = join
            if self.server_args.device == "cpu":
                # SGLang uses NCCL whenever the library is installed.
                parallel_state.init_model_parallel_group = partial(create_group, use_pynccl=False)
            try:
                yield
            finally:
                bootstrap.init_parallel_runtime = create
                parallel_state.init_model_parallel_group = create_group


class _Groups(NamedTuple):
    """``placement`` holds this process's ranks and group handles under SGLang's names."""

    tp: TensorParallel
    placement: dict[str, Any]


_groups: _Groups | None = None


def _check_groups(tp: TensorParallel) -> None:
    if _groups is not None and _groups.tp != tp:
        raise RuntimeError(
            f"this process is rank {_groups.tp.rank} of {_groups.tp.size} in SGLang's tensor parallel group "
            f"and cannot be rank {tp.rank} of {tp.size} as well: give the stage a process of its own"
        )


def _share_cores(num_ranks: int) -> None:
    """Gives each rank its own cores. By default SGLang gives each a whole NUMA node."""
    cores = sorted(os.sched_getaffinity(0))
    shares = [cores[rank::num_ranks] or cores for rank in range(num_ranks)]
    notation = "|".join(",".join(map(str, share)) for share in shares)
    os.environ.setdefault("SGLANG_CPU_OMP_THREADS_BIND", notation)
