"""Serve a model: ``python -m sglang_omni.launch_server [--model-path ...] [--port 8000] [--dp-size N]``."""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sglang_omni._core import check_router_config
from sglang_omni.router.flags import add_flags, known_options, parse, port
from sglang_omni.serve.api.limits import DEFAULT_MAX_BODY_SIZE, DEFAULT_MAX_JSON_SIZE
from sglang_omni.serve.launch.counterparts import counterpart
from sglang_omni.serve.launch.health_flags import add_health_flags, apply_health_flags, health_arguments
from sglang_omni.serve.launch.host_flags import add_host_flags, check_host_flags, hosts_launcher
from sglang_omni.serve.launch.key_flags import add_key_flags, routers_keys, take_access
from sglang_omni.serve.launch.limit_flags import add_limit_flags, given_limits, limit_arguments
from sglang_omni.serve.launch.log_limit import LogLimit
from sglang_omni.serve.launch.model_flags import add_model_flags, apply_model_flags, model_arguments
from sglang_omni.serve.launch.ray_flags import add_ray_flags, check_ray_flags, ray_launcher

if TYPE_CHECKING:
    from sglang_omni.config import PipelineConfig
    from sglang_omni.pipeline.processes.launcher import Launcher

DEFAULT_MODEL = "speech-chat"
_SPEECH_CHAT = "sglang_omni.models.speech_chat.config.SpeechChatPipelineConfig"
# model_type of a checkpoint's config.json -> the pipeline that serves it, called with model_path.
_PIPELINES = {
    "llama": _SPEECH_CHAT,
    "qwen2": _SPEECH_CHAT,
    "qwen3": _SPEECH_CHAT,
    "qwen3_omni_moe": "sglang_omni.models.qwen3_omni.config.default_config",
}


class LaunchError(Exception):
    """Why nothing can be served, for the person at the terminal."""


def _not_empty(text: str) -> str:
    """For ``type=``: an empty value is a shell's variable that is not set, and not a wish for the default."""
    if not text.strip():
        raise argparse.ArgumentTypeError("it is empty; leave it out for the default")
    return text


def build_parser(prog: str = "python -m sglang_omni.launch_server") -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=prog,
        usage="%(prog)s [MODEL] [--port PORT] [--dp-size REPLICAS] [--OPTION VALUE]...",
        description="Serve an omni model with an OpenAI-compatible API.",
        epilog="Options with --router- in front are the router's, which --dp-size 2 or more starts.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "model",
        nargs="?",
        type=_not_empty,
        metavar="MODEL",
        help="directory of a Qwen3-Omni, Llama or Qwen checkpoint, or "
        f"{DEFAULT_MODEL!r} for the bundled one (default)",
    )
    parser.add_argument("--model-path", type=_not_empty, metavar="MODEL", help="the same, as an option")
    parser.add_argument("--config", type=Path, metavar="FILE", help="the pipeline as a YAML or JSON file")
    parser.add_argument(
        "--host", type=_not_empty, default="127.0.0.1", help="address to listen on (default: %(default)s)"
    )
    parser.add_argument("--port", type=port, default=8000, help="0 picks a free one (default: %(default)s)")
    parser.add_argument(
        "--dp-size",
        type=int,
        default=1,
        metavar="REPLICAS",
        help="two or more replicas get a router in front of them (default: 1)",
    )
    parser.add_argument(
        "--served-model-name",
        type=_not_empty,
        metavar="NAME",
        help="the name requests give the model (default: the pipeline's)",
    )
    parser.add_argument(
        "--max-body-size",
        type=int,
        default=DEFAULT_MAX_BODY_SIZE,
        metavar="BYTES",
        help="larger request bodies are refused with 413 (default: %(default)s, 64 MiB)",
    )
    parser.add_argument(
        "--max-json-size",
        type=int,
        default=DEFAULT_MAX_JSON_SIZE,
        metavar="BYTES",
        help="JSON bodies that are larger without their media, too (default: %(default)s, 8 MiB)",
    )
    parser.add_argument(
        "--start-timeout",
        type=float,
        default=600.0,
        metavar="SECONDS",
        help="a server that is not up after this long gives up (default: %(default)g)",
    )
    parser.add_argument(
        "--drain-timeout",
        type=float,
        default=30.0,
        metavar="SECONDS",
        help="time that requests under way have to end once SIGTERM has come (default: %(default)g)",
    )
    parser.add_argument(
        "--log-level",
        choices=("debug", "info", "warning", "error"),
        default="info",
        help="what is less than this is not logged (default: info)",
    )
    parser.add_argument("--parent-pid", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--log-name", default="server", help=argparse.SUPPRESS)
    parser.add_argument(
        "--policy",
        dest="router_policy",
        default=argparse.SUPPRESS,
        metavar="POLICY",
        help="short for --router-policy",
    )
    add_health_flags(parser)
    add_limit_flags(parser)
    add_key_flags(parser)
    add_host_flags(parser)
    add_ray_flags(parser)
    add_model_flags(parser)
    # Workers and addresses are the fleet's business, and so is when its members leave.
    add_flags(parser, prefix="router-", without=("worker_urls", "host", "port", "drain_timeout"))
    return parser


def main(argv: Sequence[str] | None = None, *, prog: str = "python -m sglang_omni.launch_server") -> int:
    parser = build_parser(prog)
    argv = sys.argv[1:] if argv is None else argv
    if elsewhere := counterpart(argv, known_options(parser)):
        parser.error(elsewhere)
    args = parse(parser, argv)
    if args.model is not None:
        if args.model_path not in (None, args.model):
            parser.error(f"the model is given twice, as {args.model!r} and --model-path {args.model_path!r}")
        args.model_path = args.model
    if args.dp_size < 1:
        parser.error("--dp-size must be at least 1")
    check_host_flags(parser, args)
    check_ray_flags(parser, args)
    if not args.start_timeout > 0:
        parser.error("--start-timeout must be more than 0 seconds")
    if not args.drain_timeout >= 0:
        parser.error("--drain-timeout must be at least 0 seconds")
    if args.max_body_size < 1:
        parser.error("--max-body-size must be at least 1")
    if args.max_json_size < 1:
        parser.error("--max-json-size must be at least 1")
    if args.dp_size == 1 and (fields := router_fields(args)):
        flags = ", ".join(f"--router-{name.replace('_', '-')}" for name in fields)
        parser.error(f"{flags}: there is a router only with a --dp-size of 2 or more")
    args.access = take_access(parser, args)
    args.router = router_fields(args)
    if args.dp_size > 1:
        args.router = routers_keys(parser, args.access, args.router)
    try:
        # Better known before the models are loaded than when the router starts.
        check_router_config(json.dumps(args.router))
    except ValueError as exc:
        field, _, why = str(exc).partition(":")
        parser.error(f"--router-{field.replace('_', '-')}:{why}")
    if args.parent_pid is not None:
        from sglang_omni.serve.launch.member import write_stacks_on_request
        from sglang_omni.serve.launch.processes import end_with_parent

        write_stacks_on_request()
        end_with_parent(args.parent_pid)
    logging.basicConfig(
        level=args.log_level.upper(),
        format=f"%(asctime)s %(levelname)s [{args.log_name}] %(name)s: %(message)s",
    )
    for handler in logging.getLogger().handlers:
        handler.addFilter(LogLimit())
    for chatty in ("httpx", "uvicorn"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    try:
        return _serve(args)
    except LaunchError as exc:
        print(f"{parser.prog}: {exc}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        # Once it starts processes it sees to signals. Before that it imports, which takes seconds.
        return 130


def _serve(args: argparse.Namespace) -> int:
    # Imported here, so that --help is there at once.
    from sglang_omni.config import ConfigError, validate_config
    from sglang_omni.pipeline.processes.process import WorkerFailure

    try:
        config = load_pipeline(args.model_path, args.config)
        apply_model_flags(config, args)
        apply_health_flags(config, args)
        _check_installed(config)
        validate_config(config)
        _check_split(config)
        return _run_fleet(config, args) if args.dp_size > 1 else _run_replica(config, args)
    except ConfigError as exc:
        raise LaunchError(f"the config cannot be used:\n{exc}") from exc
    except WorkerFailure as exc:
        raise LaunchError(exc.reason) from exc
    except (OSError, ValueError, RuntimeError) as exc:
        raise LaunchError(str(exc)) from exc


def _run_replica(config: PipelineConfig, args: argparse.Namespace) -> int:
    from sglang_omni.serve.launch.replica import ReplicaOptions, run_replica

    options = ReplicaOptions(
        host=args.host,
        port=args.port,
        model_name=args.served_model_name,
        max_body_size=args.max_body_size,
        max_json_size=args.max_json_size,
        start_timeout=args.start_timeout,
        drain_timeout=args.drain_timeout,
        request_timeout=args.request_timeout or None,
        limits=given_limits(args),
        launcher=_launcher(args),
        access=args.access,
    )
    return asyncio.run(run_replica(config, options))


def _launcher(args: argparse.Namespace) -> Launcher | None:
    if args.launcher == "ray":
        return ray_launcher(args)
    return hosts_launcher(args) if args.join_port is not None else None


def _run_fleet(config: PipelineConfig, args: argparse.Namespace) -> int:
    from sglang_omni.serve.launch.fleet import FleetOptions, run_fleet

    replica_args = ["--max-body-size", str(args.max_body_size), "--log-level", args.log_level]
    replica_args += ["--max-json-size", str(args.max_json_size)]
    replica_args += ["--start-timeout", str(args.start_timeout)]
    for flag, value in (
        ("--model-path", args.model_path),
        ("--config", args.config),
        ("--served-model-name", args.served_model_name),
    ):
        if value is not None:
            replica_args += [flag, str(value)]
    replica_args += [*limit_arguments(args), *health_arguments(args), *model_arguments(args)]
    options = FleetOptions(
        size=args.dp_size,
        host=args.host,
        port=args.port,
        replica_args=replica_args,
        router=args.router,
        start_timeout=args.start_timeout + 30.0,
        drain_timeout=args.drain_timeout,
        heartbeat_timeout=config.watchdog.heartbeat_timeout,
    )
    return asyncio.run(run_fleet(options))


def router_fields(args: argparse.Namespace) -> dict[str, Any]:
    """The fields of `RouterConfig` that were given."""
    given = vars(args).items()
    return {name.removeprefix("router_"): value for name, value in given if name.startswith("router_")}


def load_pipeline(model_path: str | None, config_file: Path | None) -> PipelineConfig:
    """The pipeline to serve: a config file's, or the one that fits the checkpoint.

    Raises:
        ConfigError: The config breaks a rule.
        LaunchError: There is no such checkpoint, or no pipeline for it.
    """
    from sglang_omni.config import import_string, load_config
    from sglang_omni.config.imports import import_beside

    if config_file is not None:
        import_beside(config_file)
        config = load_config(config_file)
        if model_path is not None:
            config.model_path = model_path
        return config
    path = model_path or DEFAULT_MODEL
    dotted = _SPEECH_CHAT if path == DEFAULT_MODEL else _pipeline_of(Path(path))
    return import_string(dotted)(model_path=path)


def _pipeline_of(checkpoint: Path) -> str:
    try:
        kind = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))["model_type"]
    except (FileNotFoundError, NotADirectoryError):
        fetch = ""
        if len(checkpoint.parts) == 2 and not checkpoint.is_absolute() and not checkpoint.exists():
            # Two names, as a model of the hub has, which nothing is loaded from here.
            fetch = f":\n  hf download {checkpoint} --local-dir {checkpoint.name}"
        raise LaunchError(
            f"--model-path {str(checkpoint)!r}: no checkpoint there (no config.json); give the directory of "
            f"one, or {DEFAULT_MODEL!r}{fetch}"
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as exc:
        raise LaunchError(f"--model-path {str(checkpoint)!r}: unreadable config.json: {exc!r}") from exc
    if kind not in _PIPELINES:
        raise LaunchError(
            f"--model-path {str(checkpoint)!r}: no pipeline for model_type {kind!r}; there is one for "
            f"{', '.join(_PIPELINES)}; others need a --config"
        )
    return _PIPELINES[kind]


def _check_installed(config: PipelineConfig) -> None:
    """A pipeline's class may say in ``required_packages`` which modules it needs, by install command."""
    required: dict[str, Sequence[str]] = getattr(config, "required_packages", {})
    missing = {
        command: [name for name in modules if importlib.util.find_spec(name) is None]
        for command, modules in required.items()
    }
    if any(missing.values()):
        names = ", ".join(name for modules in missing.values() for name in modules)
        commands = "".join(f"\n  {command}" for command, modules in missing.items() if modules)
        raise LaunchError(f"{config.name} needs {names}, not installed here:{commands}")


def _check_split(config: PipelineConfig) -> None:
    """Says before anything is loaded that a model cannot be split over the ranks its stages ask for.

    A pipeline's class may give in ``decoder_fields(stage_name)`` what its checkpoint says of a stage's
    decoder, or None if nothing is known yet.
    """
    from sglang_omni.config.split import check_split, possible_splits

    decoder_fields = getattr(config, "decoder_fields", None)
    for stage in config.stages:
        if stage.tp_size == 1 or decoder_fields is None or (fields := decoder_fields(stage.name)) is None:
            continue
        try:
            check_split(fields, stage.tp_size)
        except ValueError as exc:
            possible = ", ".join(map(str, possible_splits(fields)))
            raise LaunchError(f"stage {stage.name!r}: {exc}; it can be {possible}") from None


if __name__ == "__main__":
    sys.exit(main())
