"""``sgl-omni new``: makes a pipeline or a model family of your own, which is served and tested as it is."""

from __future__ import annotations

import keyword
import sys
from collections.abc import Sequence
from importlib.machinery import PathFinder
from pathlib import Path

from sglang_omni.command_line import CommandParser

_FOLDER = Path(__file__).with_name("templates")
# Template -> what its pipeline does, and a request to try it with.
_CHAT_BODY = '{"messages": [{"role": "user", "content": "Hello"}]}'
_JSON = "-H 'content-type: application/json'"
_TEMPLATES = {
    "chat": (
        "answers a conversation with text and sound",
        f"open http://127.0.0.1:8000/, or: curl 127.0.0.1:8000/v1/chat/completions {_JSON} -d '{_CHAT_BODY}'",
    ),
    "speech": (
        "speaks a text",
        f"curl 127.0.0.1:8000/v1/audio/speech {_JSON} "
        """-d '{"input": "Hello", "response_format": "wav"}' -o hello.wav""",
    ),
    "transcribe": (
        "writes down a recording",
        "curl 127.0.0.1:8000/v1/audio/transcriptions -F file=@recording.wav",
    ),
}
# What the names in the templates are replaced by: the folder's name, also as a class begins with it.
_NAME, _FAMILY, _CLASS = "my_pipeline", "my_family", "MyFamily"


def main(argv: Sequence[str], *, prog: str) -> int:
    """Makes the folder; returns 1 and the reason if it cannot."""
    args = _parser(prog).parse_args(argv)
    folder: Path = args.folder
    if problem := _problem(folder):
        print(f"{prog}: {problem}", file=sys.stderr)
        return 1
    try:
        files = make_project(folder, "family" if args.family else args.template)
    except OSError as exc:
        print(f"{prog}: {folder} cannot be made: {exc.strerror}", file=sys.stderr)
        return 1
    name = folder.name
    if args.family:
        print(f"{folder} is a package with a family of models that speak: {', '.join(files)}")
        print(f"Install it: cd {folder} && pip install --no-deps --no-build-isolation -e .")
        print("            with uv, whose environments have no pip: uv pip install --no-deps -e .")
        print(f"Try it:     sgl-omni make-tiny-checkpoint {name} checkpoint && sgl-omni serve checkpoint")
        print("Prove it:   pip install pytest && pytest")
        return 0
    does, trial = _TEMPLATES[args.template]
    print(f"{folder} {does}: {', '.join(files)}")
    print(f"Serve it:  cd {folder} && sgl-omni serve --config pipeline.yaml")
    print(f"Ask it:    {trial}")
    print("Test it:   pip install pytest && pytest")
    return 0


def make_project(folder: Path, template: str) -> list[str]:
    """Writes a template's files into ``folder``, whose name the pipeline or family gets.

    Returns:
        The files' paths in the folder.

    Raises:
        OSError: It cannot be written, or is not empty.
    """
    folder.mkdir(parents=True, exist_ok=True)
    words = {_NAME: folder.name, _FAMILY: folder.name, _CLASS: _class_name(folder.name)}
    written = []
    for kind in (template,) if template == "family" else (template, "any"):
        for source in sorted(path for path in (_FOLDER / kind).rglob("*") if path.is_file()):
            path = str(source.relative_to(_FOLDER / kind))
            if "__pycache__" in path:
                continue
            text = source.read_text(encoding="utf-8")
            for word, own in words.items():
                path, text = path.replace(word, own), text.replace(word, own)
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text, encoding="utf-8")
            written.append(path)
    return written


def _class_name(name: str) -> str:
    """``my_family`` as ``MyFamily``."""
    return "".join(part[:1].upper() + part[1:] for part in name.split("_"))


def _problem(folder: Path) -> str | None:
    name = folder.name
    if not name.isidentifier() or keyword.iskeyword(name):
        like = "".join(c if c.isalnum() else "_" for c in name).strip("_")
        hint = like if like.isidentifier() and not keyword.iskeyword(like) else _NAME
        return f"{name!r} is not a name: it needs letters, digits and underscores; as {hint!r}"
    if folder.exists() and not folder.is_dir():
        return f"{folder} is a file; give another name"
    if folder.exists() and any(folder.iterdir()):
        return f"{folder} exists and is not empty; give another name, or empty it"
    # A folder that is no package has a spec too, without a file.
    spec = PathFinder.find_spec(name)
    if name in sys.stdlib_module_names or (spec is not None and spec.origin is not None):
        return f"{name!r} is a module of this Python, which another would hide; give another name"
    return None


def _parser(prog: str) -> CommandParser:
    does = "; ".join(f"{name}: {what}" for name, (what, _) in _TEMPLATES.items())
    parser = CommandParser(
        prog=prog,
        description="Make a pipeline of your own: a folder with functions, a config, and tests that pass. Or "
        "with --family a package for a family of models, whose checkpoints are then served by their path.",
    )
    parser.add_argument(
        "folder", type=Path, metavar="NAME", help="the folder to make, and the pipeline's name"
    )
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument(
        "--family",
        action="store_true",
        help="a package with a family: config, stages around an autoregressive model, random checkpoints, "
        "and a test that compares it with a reference",
    )
    kinds.add_argument(
        "--template", choices=tuple(_TEMPLATES), default="chat", help=f"{does} (default: %(default)s)"
    )
    return parser
