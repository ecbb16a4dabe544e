"""``sgl-omni config``: shows, draws or checks a pipeline's config."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sglang_omni.command_line import CommandParser
from sglang_omni.serve.launch.options import CASCADE, RAY, add_flags, of_sections
from sglang_omni.serve.launch.parts import check_part_flags, given_parts, load_cascade

if TYPE_CHECKING:
    from sglang_omni.config import PipelineConfig

_ACTIONS = {
    "view": "the stages and their edges at a glance",
    "resolve": "everything the runtime derives from the config, as YAML",
    "validate": "check every rule; exit status 1 if one is broken",
    "graph": "draw the stages and their edges: for this terminal, as Mermaid or as an SVG picture",
}
_FORMATS = ("text", "mermaid", "svg")
# What a file's name says of its format.
_SUFFIXES = {".svg": "svg", ".mmd": "mermaid", ".mermaid": "mermaid"}


def main(argv: Sequence[str], *, prog: str) -> int:
    """Prints what is asked for; returns 1 and the reasons if the config is wrong."""

    parser = _parser(prog)
    args = parser.parse_args(argv)
    if wrong := check_part_flags(args):
        parser.error(wrong)
    from sglang_omni.config import ConfigError, describe_config, resolve_config, validate_config
    from sglang_omni.serve.launch.pipelines import LaunchError, fit_gpus, load_pipeline

    try:
        if given_parts(args):
            config = load_cascade(args, weights=False)
        else:
            config = load_pipeline(args.model_path, args.file, weights=False)
        memory = fit_gpus(config, elsewhere=True)
        if args.action == "view":
            print(describe_config(config))
            for name, pipeline in getattr(config, "pipelines", dict)().items():
                print(f"\n{name}: {describe_config(pipeline)}")
        elif args.action == "validate":
            validate_config(config)
            print(f"{config.name}: {len(config.stages)} stages, no problem found")
        elif args.action == "graph":
            _draw(config, args.format, args.output)
        else:
            import yaml

            resolved = resolve_config(config, on_any_host=args.launcher == "ray", memory=memory)
            print(yaml.safe_dump(resolved, sort_keys=False, allow_unicode=True), end="")
    except (ConfigError, LaunchError, ImportError, OSError, ValueError) as exc:
        print(exc, file=sys.stderr)
        return 1
    return 0


def _draw(config: PipelineConfig, wanted: str | None, output: Path | None) -> None:
    """Draws the graph of a config in the format that is wanted or, if none is, that the file's name says."""
    from sglang_omni.config import validate_config
    from sglang_omni.config.draw.graph import pipeline_graph

    # Nothing is run, so the modules that the config names need not be installed here; they must be there.
    graph = pipeline_graph(validate_config(config))
    match wanted or _SUFFIXES.get(output.suffix if output is not None else "", "text"):
        case "svg":
            from sglang_omni.config.draw.svg import draw_svg as draw
        case "mermaid":
            from sglang_omni.config.draw.mermaid import draw_mermaid as draw
        case _:
            from sglang_omni.config.draw.text import draw_text as draw
    drawn = draw(graph).rstrip("\n") + "\n"
    if output is None:
        print(drawn, end="")
    else:
        output.write_text(drawn, encoding="utf-8")


def _parser(prog: str) -> argparse.ArgumentParser:
    parser = CommandParser(prog=prog, description="Show, draw or check a pipeline's config.")
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name, text in _ACTIONS.items():
        action = actions.add_parser(name, help=text, description=text)
        action.add_argument("file", nargs="?", type=Path, help="YAML or JSON; default: speech-chat")
        action.add_argument("--model-path", help="as in sgl-omni serve")
        flags = of_sections(CASCADE)
        if name == "resolve":
            flags += [flag for flag in of_sections(RAY) if flag.name == "launcher"]
        add_flags(action, flags, grouped=False)
        if name == "graph":
            action.add_argument(
                "--format", choices=_FORMATS, help="default: by the suffix of FILE, else text"
            )
            action.add_argument("-o", "--output", type=Path, metavar="FILE", help="in place of the terminal")
    return parser
