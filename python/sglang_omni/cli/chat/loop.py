"""The conversation in the terminal: reads a line, answers it, until Ctrl-D."""

from __future__ import annotations

import contextlib
import sys

from sglang_omni.cli.chat.answers import Answerer
from sglang_omni.cli.chat.commands import Talk, run_command
from sglang_omni.cli.chat.history import ChatHistory
from sglang_omni.cli.connection import CommandError, error_text
from sglang_omni.client import RequestError, SoundDeviceError, SyncClient

_PROMPT = "> "


class ChatLoop:
    def __init__(self, client: SyncClient, history: ChatHistory, answerer: Answerer, prog: str) -> None:
        self._talk = Talk(client, history, answerer)
        self._prog = prog

    def run(self) -> None:
        """Returns when the conversation is ended."""
        # Arrow keys and earlier lines, if Python was built with it.
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401
        print("Type a message; /help lists commands, Ctrl-D ends.", file=sys.stderr)
        for name in self._talk.history.attached:
            print(f"({name} goes with your first message)", file=sys.stderr)
        while True:
            try:
                line = input(_PROMPT).strip()
                if line.startswith("/"):
                    run_command(self._talk, line)
                elif line:
                    self._talk.answerer.ask(self._talk.history, line)
            except KeyboardInterrupt:
                print("\n(Ctrl-D ends)", file=sys.stderr)
            except EOFError:
                print(file=sys.stderr)
                return
            except (CommandError, RequestError, SoundDeviceError, RuntimeError, TimeoutError) as exc:
                print(f"{self._prog}: {error_text(exc)}", file=sys.stderr)
