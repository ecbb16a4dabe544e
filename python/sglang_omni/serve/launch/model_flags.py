"""The flags about the model, under SGLang's names, and their effect on a pipeline."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from sglang_omni import hub
from sglang_omni.serve.launch.flags import count, count_or_any, not_empty, share
from sglang_omni.serve.launch.part_flags import is_of_part

if TYPE_CHECKING:
    from sglang_omni.config import PipelineConfig


class _Flag(NamedTuple):
    """
    Attributes:
        flag: As the command line has it.
        argument: The factories' name for it.
        const: The value that a flag sets that takes none.
        metavar: What its value is, for --help.
        several: Whether it takes several values.
        join: Makes the argument from several values.
    """

    flag: str
    argument: str
    help: str
    type: Callable[[str], Any] = count
    choices: Sequence[str] | None = None
    const: Any = None
    metavar: str = "N"
    several: bool = False
    join: Callable[[list[Any]], Any] = list


def _adapter(text: str) -> str:
    """For ``type=``: ``NAME=PATH``, or a path that is its own name."""
    name, _, path = not_empty(text).rpartition("=")
    return f"{name or path}={path}"


def _adapter_files(fields: Mapping[str, Any]) -> tuple[str, ...]:
    """Those of an adapter, also if its repository holds the merged model beside it."""
    return ("adapter_model.safetensors",)


def _by_name(adapters: list[str]) -> dict[str, str]:
    """
    Raises:
        ValueError: Two have one name, or one is not an adapter in PEFT's layout.
    """
    paths: dict[str, str] = {}
    for name, _, path in (adapter.partition("=") for adapter in adapters):
        if name in paths:
            raise ValueError(f"--lora-paths: two adapters are called {name!r}")
        directory = hub.download(path, own_files=_adapter_files) if hub.is_repo_id(path) else Path(path)
        if not (directory / "adapter_config.json").is_file():
            raise ValueError(
                f"--lora-paths {name}={path}: no adapter there (no adapter_config.json); give the directory "
                "of one in PEFT's layout, or an id of the hub"
            )
        paths[name] = str(directory.resolve())
    return paths


def _file(text: str) -> str:
    """For ``type=``: the path of a file, from the root."""
    path = Path(not_empty(text)).expanduser()
    if not path.is_file():
        raise argparse.ArgumentTypeError(f"there is no file {text!r}")
    return str(path.resolve())


_FLAGS = (
    _Flag("--engine", "engine", "what schedules autoregressive stages", str, ("sglang", "omni")),
    _Flag(
        "--dtype",
        "dtype",
        "what is computed in; auto: on a GPU the checkpoint's own 16 bits, on a CPU float32",
        str,
        ("auto", "float32", "bfloat16", "float16"),
    ),
    _Flag(
        "--quantization",
        "quantization",
        "how SGLang quantizes, such as fp8, or reads a checkpoint that does not name it (awq, gptq, ...)",
        not_empty,
        metavar="METHOD",
    ),
    _Flag(
        "--kv-cache-dtype",
        "kv_cache_dtype",
        "what SGLang keeps keys and values in, such as fp8_e4m3",
        not_empty,
        metavar="DTYPE",
    ),
    _Flag(
        "--attention-backend",
        "attention_backend",
        "SGLang's attention kernels, such as fa3, flashinfer or triton; its choice by the GPU",
        not_empty,
        metavar="NAME",
    ),
    _Flag("--disable-cuda-graph", "cuda_graph", "launch each kernel of a step on its own", const=False),
    _Flag(
        "--disable-overlap-schedule",
        "overlap_schedule",
        "read a step's tokens before the next step is launched, with SGLang on a GPU",
        const=False,
    ),
    _Flag("--context-length", "context_length", "tokens of prompt and answer together"),
    _Flag("--max-running-requests", "max_running_requests", "requests that are computed together"),
    _Flag("--max-total-tokens", "max_total_tokens", "size of the KV cache"),
    _Flag(
        "--chunked-prefill-size",
        "chunked_prefill_size",
        "tokens of a prompt computed in one step; -1 for all of them",
        count_or_any,
    ),
    _Flag("--mem-fraction-static", "mem_fraction_static", "share of a GPU for weights and KV cache", share),
    _Flag("--disable-radix-cache", "prefix_cache", "share no prefixes between requests", const=False),
    _Flag(
        "--allowed-media-hosts",
        "allowed_media_hosts",
        "hosts that media are fetched from by URL, as HOST or HOST:PORT; * for any",
        not_empty,
        metavar="HOST",
        several=True,
    ),
    _Flag(
        "--lora-paths",
        "lora_paths",
        "LoRA adapters that SGLang loads, by the names that requests give as their model",
        _adapter,
        metavar="NAME=PATH",
        several=True,
        join=_by_name,
    ),
    _Flag("--max-loras-per-batch", "max_loras_per_batch", "adapters that are computed together"),
    _Flag(
        "--chat-template",
        "chat_template",
        "the file of a chat template to take instead of the checkpoint's",
        _file,
        metavar="FILE",
    ),
    _Flag(
        "--tool-call-parser",
        "tool_call_parser",
        "how the model writes calls of tools, such as hermes; by default as its chat template says",
        not_empty,
        metavar="NAME",
    ),
    _Flag(
        "--reasoning-parser",
        "reasoning_parser",
        "the marks around what the model thinks, such as qwen3; none leaves them in the answer",
        not_empty,
        metavar="NAME",
    ),
    _Flag("--tp-size", "tp_size", "ranks that a model is split over"),
)


def _name(flag: _Flag) -> str:
    return flag.flag.removeprefix("--").replace("-", "_")


MODEL_FLAGS = (*map(_name, _FLAGS), "stage")


def add_model_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "the model", "Each for every stage that has it; the config's own where not given."
    )
    for flag in _FLAGS:
        if flag.const is not None:
            group.add_argument(flag.flag, action="store_const", const=True, help=flag.help)
        elif flag.several:
            group.add_argument(
                flag.flag, type=flag.type, nargs="+", action="extend", metavar=flag.metavar, help=flag.help
            )
        else:
            group.add_argument(
                flag.flag,
                type=flag.type,
                choices=flag.choices,
                metavar=None if flag.choices else flag.metavar,
                help=flag.help,
            )
    group.add_argument(
        "--stage",
        action="append",
        default=[],
        metavar="STAGE.NAME=VALUE",
        help="one stage's setting, as in thinker.gpu=0; may be given again",
    )


def apply_model_flags(config: PipelineConfig, args: argparse.Namespace) -> None:
    """Change ``config`` as the flags say.

    Raises:
        ValueError: No stage has what a flag sets, or a ``--stage`` is wrong; the text names the flag.
    """
    from sglang_omni.config.factories.overrides import override_stage, override_stages

    for flag in _FLAGS:
        value = getattr(args, _name(flag))
        if value is None:
            continue
        value = flag.join(value) if flag.several else value if flag.const is None else flag.const
        if not override_stages(config, flag.argument, value):
            raise ValueError(f"{flag.flag}: no stage of {config.name} takes it")
    for setting in args.stage:
        if is_of_part(config, setting):
            continue
        try:
            _check_setting(setting)
            override_stage(config, setting)
        except ValueError as exc:
            raise ValueError(f"--stage {exc}") from exc


def _check_setting(setting: str) -> None:
    """Raise ValueError if ``STAGE.NAME=VALUE`` has a value that NAME's own flag would refuse."""
    name, _, text = setting.partition("=")
    if text.strip() in ("", "~", "null"):
        return
    for flag in _FLAGS:
        if flag.const is None and not flag.several and name.strip().endswith(f".{flag.argument}"):
            try:
                flag.type(text.strip())
            except argparse.ArgumentTypeError as exc:
                raise ValueError(f"{setting!r}: {exc}") from None
