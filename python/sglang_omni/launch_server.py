"""Serve a model: ``python -m sglang_omni.launch_server [--model-path ...] [--port 8000] [--dp-size N]``."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sglang_omni._core import check_router_config, router_policies
from sglang_omni.command_line import CommandParser
from sglang_omni.router.flags import add_flags as add_router_flags
from sglang_omni.serve.kept_voices import KeptVoices, owners_secret
from sglang_omni.serve.launch.counterparts import counterpart
from sglang_omni.serve.launch.flags import not_empty
from sglang_omni.serve.launch.ice import replicas_turn, take_ice_servers
from sglang_omni.serve.launch.keys import routers_keys, take_access
from sglang_omni.serve.launch.launchers import check_launcher_flags, chosen_launcher
from sglang_omni.serve.launch.listening import (
    Certificate,
    check_listen_flags,
    routers_listening,
)
from sglang_omni.serve.launch.log_limit import limit_logs
from sglang_omni.serve.launch.options import add_flags, given_limits, passed_on
from sglang_omni.serve.launch.parts import (
    check_part_flags,
    given_parts,
    load_cascade,
)
from sglang_omni.serve.launch.pipelines import (
    DEFAULT_MODEL,
    LaunchError,
    load_pipeline,
)
from sglang_omni.serve.launch.stopping import stop_with_parent
from sglang_omni.serve.launch.tracing import take_tracing
from sglang_omni.supervision.exits import write_stacks_on_sigquit

if TYPE_CHECKING:
    from sglang_omni.config import PipelineConfig
    from sglang_omni.config.plan.pipeline import PipelinePlan

logger = logging.getLogger(__name__)


def build_parser(prog: str = "python -m sglang_omni.launch_server") -> CommandParser:
    parser = CommandParser(
        prog=prog,
        usage="%(prog)s [MODEL] [--port PORT] [--dp-size REPLICAS] [--OPTION VALUE]...",
        description="Serve an omni model with an OpenAI-compatible API.",
        epilog="Options with --router- in front are the router's, which --dp-size 2 or more starts.",
    )
    parser.add_argument(
        "model",
        nargs="?",
        type=not_empty,
        metavar="MODEL",
        help="directory or hub id of a Qwen3-Omni checkpoint or a language model (Llama, Qwen, Mistral, "
        f"...), or {DEFAULT_MODEL!r} for the bundled one (default)",
    )
    add_flags(parser)
    parser.add_argument("--parent-pid", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--log-name", default="server", help=argparse.SUPPRESS)
    parser.add_argument(
        "--policy",
        dest="router_policy",
        choices=router_policies(),
        default=argparse.SUPPRESS,
        help="short for --router-policy",
    )
    # The fleet itself sets the router's workers and address, and when it leaves.
    add_router_flags(parser, prefix="router-", without=("worker_urls", "host", "port", "drain_timeout"))
    return parser


def main(argv: Sequence[str] | None = None, *, prog: str = "python -m sglang_omni.launch_server") -> int:
    """Serve until a signal ends it; returns the exit status, 2 for wrong options."""
    parser = build_parser(prog)
    args = _parse(parser, sys.argv[1:] if argv is None else argv)
    if args.parent_pid is not None:
        write_stacks_on_sigquit()
        stop_with_parent(args.parent_pid)
    _log_to_stderr(args)
    try:
        return _serve(args)
    except LaunchError as exc:
        print(f"{parser.prog}: {exc}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        # Once processes are started, signals are handled. Before that come imports, which take seconds.
        return 130


def _parse(parser: CommandParser, argv: Sequence[str]) -> argparse.Namespace:
    """The options, with the server's keys as ``access`` and the fields of the RouterConfig as ``router``.

    Ends the program if they are wrong or do not fit together.
    """
    if elsewhere := counterpart(argv, parser.options()):
        parser.error(elsewhere)
    args = parser.parse_args(argv)
    if args.model is not None:
        if args.model_path not in (None, args.model):
            parser.error(f"the model is given twice, as {args.model!r} and --model-path {args.model_path!r}")
        args.model_path = args.model
    if wrong := check_part_flags(args):
        parser.error(wrong)
    check_launcher_flags(parser, args)
    args.router = router_fields(args)
    if args.dp_size == 1 and args.router:
        flags = ", ".join(f"--router-{name.replace('_', '-')}" for name in args.router)
        parser.error(f"{flags}: there is a router only with a --dp-size of 2 or more")
    check_listen_flags(parser, args)
    args.access = take_access(parser, args)
    if args.voices_dir is not None:
        try:
            args.access = replace(args.access, owner_secret=owners_secret(args.voices_dir))
        except OSError as exc:
            parser.error(f"--voices-dir {args.voices_dir}: {exc.strerror or exc}")
    args.ice_servers = take_ice_servers(parser, args)
    args.tracing = take_tracing(parser, args)
    if args.tracing is not None and args.api_workers > 1:
        parser.error("--api-workers: spans of requests are made in one process only; leave one of both out")
    if args.dp_size > 1:
        router = routers_keys(parser, args.access, args.router, args.api_key_file)
        args.router = routers_listening(parser, args, router)
        if args.tracing is not None and args.tracing.endpoint is not None:
            args.router.setdefault("otlp_traces_endpoint", args.tracing.endpoint)
    try:
        # Better known before the models are loaded than when the router starts.
        check_router_config(json.dumps(args.router))
    except ValueError as exc:
        field, _, why = str(exc).partition(":")
        parser.error(f"--router-{field.replace('_', '-')}:{why}")
    return args


def router_fields(args: argparse.Namespace) -> dict[str, Any]:
    """The fields of `RouterConfig` that were given."""
    given = vars(args).items()
    return {name.removeprefix("router_"): value for name, value in given if name.startswith("router_")}


def _log_to_stderr(args: argparse.Namespace) -> None:
    logging.basicConfig(
        level=args.log_level.upper(),
        format=f"%(asctime)s %(levelname)s [{args.log_name}] %(name)s: %(message)s",
    )
    limit_logs()


def _serve(args: argparse.Namespace) -> int:
    """Decide what is served, and serve it as one replica or as a fleet."""
    # Imported here, so that --help comes at once.
    from sglang_omni.config import ConfigError
    from sglang_omni.pipeline.processes.process import ProcessFailure

    try:
        if args.dp_size > 1:
            return _run_fleet(args)
        return _run_replica(_plan(args), args)
    except ConfigError as exc:
        raise LaunchError(f"the config cannot be used:\n{exc}") from exc
    except ProcessFailure as exc:
        raise LaunchError(exc.reason) from exc
    except OSError as exc:
        raise LaunchError(_without_number(exc)) from exc
    except (ValueError, RuntimeError) as exc:
        raise LaunchError(str(exc)) from exc


def _without_number(exc: OSError) -> str:
    if exc.strerror is None:
        return str(exc)
    return f"{exc.filename}: {exc.strerror}" if exc.filename else exc.strerror


def _plan(args: argparse.Namespace) -> PipelinePlan:
    """The plan of the pipeline that the flags describe; raises what ``_serve`` tells."""
    from sglang_omni.serve.launch.planning import checked_plan
    from sglang_omni.serve.launch.preflight import check_system

    check_system()
    if given_parts(args):
        return checked_plan(partial(load_cascade, args), args)
    return checked_plan(partial(load_pipeline, args.model_path, args.config, args.revision), args)


def _run_replica(plan: PipelinePlan, args: argparse.Namespace) -> int:
    import uvloop

    from sglang_omni.serve.launch.replica import ReplicaOptions, run_replica

    options = ReplicaOptions(
        host=args.host,
        port=args.port,
        model_names=_model_names(plan.config, args),
        max_body_size=args.max_body_size,
        max_json_size=args.max_json_size,
        start_timeout=args.start_timeout,
        drain_timeout=args.drain_timeout,
        api_workers=args.api_workers,
        request_timeout=args.request_timeout or None,
        strict_params=args.strict_params,
        limits=given_limits(args),
        launcher=chosen_launcher(args),
        access=args.access,
        tls=None if args.ssl_certfile is None else Certificate(args.ssl_certfile, args.ssl_keyfile),
        tracing=args.tracing,
        ice_servers=args.ice_servers,
        voices=_kept_voices(plan.config, args),
    )
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run_replica(plan, options))


def _kept_voices(config: PipelineConfig, args: argparse.Namespace) -> KeptVoices | None:
    """
    Raises:
        LaunchError: There is a folder for voices, and the model clones none.
    """
    if args.voices_dir is None:
        return None
    encoder = getattr(config, "voice_encoder", lambda: None)()
    if encoder is None:
        raise LaunchError(f"--voices-dir: {config.name} clones no voices; leave it out")
    return KeptVoices(args.voices_dir, encoder)


def _model_names(config: PipelineConfig, args: argparse.Namespace) -> list[str]:
    """The names by which requests may ask for the model: the pipeline's, and the one of the command line."""
    names: list[str] = args.served_model_name or [config.name or "", args.model_path or ""]
    return list(dict.fromkeys(filter(None, names)))


def _run_fleet(args: argparse.Namespace) -> int:
    from sglang_omni.gpus import only_first, visible_devices
    from sglang_omni.proto.kv_events import KvEventsConfig
    from sglang_omni.serve.launch.fleet import FleetOptions, gpus_of_replicas, run_fleet, share_of_each

    devices = visible_devices()
    # What a pipeline is depends on its GPUs. A replica sees its own alone.
    with only_first(share_of_each(devices, args.dp_size)):
        plan = _plan(args)
    config = plan.config
    # Known before the replicas start.
    _kept_voices(config, args)
    if args.kv_events_config is not None:
        KvEventsConfig.parse(args.kv_events_config).of_rank(0, args.dp_size)
    from_hub = Path(config.model_path).is_absolute() and config.model_path != args.model_path
    if from_hub and not given_parts(args):
        # Downloaded from the hub: the replicas get the directory, and the name by which it was asked for.
        args.served_model_name = _model_names(config, args)
        args.model_path = config.model_path
    options = FleetOptions(
        size=args.dp_size,
        host=args.host,
        port=args.port,
        replica_args=passed_on(args),
        replica_environment=replicas_turn(args.ice_servers),
        router=args.router,
        run_secret=None if args.voices_dir is None else args.access.owner_secret,
        start_timeout=args.start_timeout + 30.0,
        drain_timeout=args.drain_timeout,
        heartbeat_timeout=plan.config.watchdog.heartbeat_timeout,
        gpus=gpus_of_replicas(plan, devices, args.dp_size),
    )
    return asyncio.run(run_fleet(options))


if __name__ == "__main__":
    sys.exit(main())
