"""``sgl-omni new``: makes the folder of a pipeline of your own, which is served and tested as it is."""

from __future__ import annotations

import keyword
import shutil
import sys
from collections.abc import Sequence
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
# In every project, in this order.
_FILES = ("pipeline.py", "pipeline.yaml", "test_pipeline.py", "conftest.py", "README.md")
_NAME = "my_pipeline"


def main(argv: Sequence[str], *, prog: str) -> int:
    """Makes the folder; returns 1 and the reason if it cannot."""
    args = _parser(prog).parse_args(argv)
    folder: Path = args.folder
    if problem := _problem(folder):
        print(f"{prog}: {problem}", file=sys.stderr)
        return 1
    try:
        make_project(folder, args.template)
    except OSError as exc:
        print(f"{prog}: {folder} cannot be made: {exc.strerror}", file=sys.stderr)
        return 1
    does, trial = _TEMPLATES[args.template]
    print(f"{folder} {does}: {', '.join(_FILES)}")
    print(f"Serve it:  cd {folder} && sgl-omni serve --config pipeline.yaml")
    print(f"Ask it:    {trial}")
    print("Test it:   pip install pytest && pytest")
    return 0


def make_project(folder: Path, template: str) -> None:
    """Writes a template's files into ``folder``, whose name the pipeline gets.

    Raises:
        OSError: It cannot be written, or is not empty.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name in _FILES:
        source = next(path for kind in (template, "any") if (path := _FOLDER / kind / name).exists())
        shutil.copyfile(source, folder / name)
        if name in ("pipeline.yaml", "README.md"):
            text = source.read_text(encoding="utf-8")
            (folder / name).write_text(text.replace(_NAME, folder.name), encoding="utf-8")


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
    return None


def _parser(prog: str) -> CommandParser:
    does = "; ".join(f"{name}: {what}" for name, (what, _) in _TEMPLATES.items())
    parser = CommandParser(
        prog=prog,
        description="Make a pipeline of your own: a folder with functions, a config, and tests that pass.",
    )
    parser.add_argument(
        "folder", type=Path, metavar="NAME", help="the folder to make, and the pipeline's name"
    )
    parser.add_argument(
        "--template", choices=tuple(_TEMPLATES), default="chat", help=f"{does} (default: %(default)s)"
    )
    return parser
