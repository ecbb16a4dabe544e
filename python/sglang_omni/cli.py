"""The command ``sgl-omni``: serve, host, route, trace, config, doctor, make-tiny-checkpoint, version."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

# Imported only when they are used.
_TINY_CHECKPOINTS = {"qwen3_omni": "sglang_omni.models.qwen3_omni.tiny_checkpoint.make.main"}


def main(argv: Sequence[str] | None = None) -> int:
    try:
        return _run(list(sys.argv[1:] if argv is None else argv))
    except KeyboardInterrupt:
        # Running servers handle signals themselves; before, imports take seconds.
        return 130


def _run(args: list[str]) -> int:
    # The launchers parse their own flags, such as `sgl-omni serve --help`.
    if args[:1] == ["serve"]:
        from sglang_omni.launch_server import main as serve

        return serve(args[1:], prog="sgl-omni serve")
    if args[:1] == ["host"]:
        from sglang_omni.launch_host import main as host

        return host(args[1:], prog="sgl-omni host")
    if args[:2] == ["route", "top"]:
        from sglang_omni.router.top import main as top

        return top(args[2:])
    if args[:1] == ["route"]:
        from sglang_omni.launch_router import main as route

        return route(args[1:], prog="sgl-omni route")
    if args[:1] == ["trace"]:
        from sglang_omni.trace_request import main as trace

        return trace(args[1:], prog="sgl-omni trace")
    if args[:1] == ["doctor"]:
        from sglang_omni.doctor import main as doctor

        return doctor(args[1:], prog="sgl-omni doctor")
    if args[:1] == ["make-tiny-checkpoint"] and args[1:2] and args[1] in _TINY_CHECKPOINTS:
        from sglang_omni.config.imports import import_string

        make = import_string(_TINY_CHECKPOINTS[args[1]])
        return make(args[2:], prog=f"sgl-omni make-tiny-checkpoint {args[1]}")
    from sglang_omni._core import __version__
    from sglang_omni.router.flags import parse
    from sglang_omni.serve.launch.launcher_flags import add_launcher_flag

    parser = argparse.ArgumentParser(
        prog="sgl-omni",
        description="Serve omni models as pipelines of stages, behind a cache-aware router.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"sgl-omni {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser(
        "serve", help="serve a model; sgl-omni serve --help lists its options", add_help=False
    )
    commands.add_parser(
        "host", help="join a coordinator on another machine and run stages here", add_help=False
    )
    commands.add_parser(
        "route",
        help="route requests to servers; sgl-omni route top shows them live",
        add_help=False,
    )
    commands.add_parser("trace", help="fetch what a request did when, for ui.perfetto.dev", add_help=False)
    tiny = commands.add_parser(
        "make-tiny-checkpoint",
        help="write a small random checkpoint for trials; sgl-omni make-tiny-checkpoint MODEL --help",
        description="Write a small random checkpoint of a model; --help after its name lists its options.",
    )
    tiny.add_argument("model", choices=list(_TINY_CHECKPOINTS), help="the model family")
    config = commands.add_parser("config", help="show or check a pipeline's config")
    actions = config.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name, text in (
        ("view", "the stages and their edges at a glance"),
        ("resolve", "everything the runtime derives from the config, as YAML"),
        ("validate", "check every rule; exit status 1 if one is broken"),
    ):
        action = actions.add_parser(name, help=text, description=text, allow_abbrev=False)
        action.add_argument("file", nargs="?", type=Path, help="YAML or JSON; default: speech-chat")
        action.add_argument("--model-path", help="as in sgl-omni serve")
        if name == "resolve":
            add_launcher_flag(action)
    commands.add_parser("doctor", help="say what this machine has and lacks to serve models", add_help=False)
    commands.add_parser("version", help="print the version, as --version does", add_help=False)
    chosen = parse(parser, args)
    if chosen.command == "version":
        print(f"sgl-omni {__version__}")
        return 0
    return _config(chosen)


def _config(args: argparse.Namespace) -> int:
    from sglang_omni.config import ConfigError, describe_config, resolve_config, validate_config
    from sglang_omni.serve.launch.pipelines import LaunchError, fit_gpus, load_pipeline

    try:
        config = load_pipeline(args.model_path, args.file, weights=False)
        memory = fit_gpus(config, elsewhere=True)
        if args.action == "view":
            print(describe_config(config))
        elif args.action == "validate":
            validate_config(config)
            print(f"{config.name}: {len(config.stages)} stages, no problem found")
        else:
            import yaml

            resolved = resolve_config(config, on_any_host=args.launcher == "ray", memory=memory)
            print(yaml.safe_dump(resolved, sort_keys=False, allow_unicode=True), end="")
    except (ConfigError, LaunchError, ImportError, OSError, ValueError) as exc:
        print(exc, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
