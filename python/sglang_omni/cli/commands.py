"""Every command of ``sgl-omni``, and the function that runs it.

A new command is a module beside this one and a line here.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import NamedTuple, Protocol


class CommandMain(Protocol):
    """Runs a command; returns its exit status."""

    def __call__(self, argv: Sequence[str], *, prog: str) -> int:
        """
        Args:
            argv: What follows the command's name.
            prog: The command, as its help and its errors name it.
        """


class Command(NamedTuple):
    """
    Attributes:
        module: Where its ``main`` is, imported if the command is used. For ``--help`` it imports no torch.
        help: What it does, in half a line.
    """

    name: str
    module: str
    help: str

    def load(self) -> CommandMain:
        """The function that runs it."""
        run: CommandMain = import_module(self.module).main
        return run


COMMANDS = (
    Command("serve", "sglang_omni.launch_server", "serve a model"),
    Command("route", "sglang_omni.cli.route", "route requests to servers; route top shows them live"),
    Command("host", "sglang_omni.launch_host", "join a coordinator on another machine and run stages here"),
    Command("chat", "sglang_omni.cli.chat", "talk to a model in the terminal"),
    Command("say", "sglang_omni.cli.say", "speak a text, to the loudspeaker or a file"),
    Command("transcribe", "sglang_omni.cli.transcribe", "write down what is said in sound files"),
    Command("voices", "sglang_omni.cli.voices", "list the voices of a server's model"),
    Command("models", "sglang_omni.cli.models", "list what a server serves, or what this installation can"),
    Command("bench", "sglang_omni.bench.command", "measure a server: bench serve sends it load"),
    Command("trace", "sglang_omni.cli.trace", "fetch what a request did when, for ui.perfetto.dev"),
    Command("config", "sglang_omni.cli.config", "show or check a pipeline's config"),
    Command("new", "sglang_omni.cli.new", "make a pipeline or a model family of your own, with tests"),
    Command("check", "sglang_omni.cli.check", "say if a model would start, without its weights"),
    Command("doctor", "sglang_omni.cli.doctor", "say what this machine has and lacks to serve models"),
    Command(
        "make-tiny-checkpoint",
        "sglang_omni.cli.tiny_checkpoint",
        "write a small random checkpoint for trials",
    ),
    Command("completion", "sglang_omni.cli.completion", "print a script that completes commands in a shell"),
    Command("version", "sglang_omni.cli.version", "print the version, as --version does"),
)
