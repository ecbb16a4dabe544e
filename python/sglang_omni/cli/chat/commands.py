"""The words of a conversation in the terminal that begin with a slash."""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sglang_omni.cli.chat.answers import Answerer
from sglang_omni.cli.chat.history import ChatHistory
from sglang_omni.cli.connection import CommandError
from sglang_omni.cli.media_files import content_part
from sglang_omni.client import SyncClient, record
from sglang_omni.command_line import meant_word


@dataclass
class Talk:
    """What the commands act on."""

    client: SyncClient
    history: ChatHistory
    answerer: Answerer


def _attach(kind: str) -> Callable[[Talk, str], None]:
    def attach(talk: Talk, name: str) -> None:
        if not name:
            raise CommandError(f"which file? As in: /{kind} FILE")
        talk.history.attach(name, content_part(name, kind))
        print(f"({name} goes with your next message)")

    return attach


def _record(talk: Talk, _: str) -> None:
    print("(speak; a second of silence ends it)")
    sound = record()
    data = base64.b64encode(sound.encode()).decode("ascii")
    part = {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}
    talk.history.attach("the recording", part)
    talk.answerer.ask(talk.history, "")


def _save(talk: Talk, name: str) -> None:
    if not name:
        raise CommandError(
            "which file? As in: /save talk.md, or /save answer.wav for the last answer's sound"
        )
    path = Path(name)
    try:
        if path.suffix.lower() in (".md", ".txt"):
            talk.history.save(path)
        elif talk.answerer.last_sound is None:
            raise CommandError(
                f"{name}: the last answer has no sound; start with --speak or --save. The conversation "
                "itself is saved as .md or .txt"
            )
        else:
            talk.answerer.last_sound.save(path)
    except ValueError as exc:
        raise CommandError(str(exc)) from None
    except OSError as exc:
        raise CommandError(f"{name}: cannot be written: {exc.strerror}") from None
    print(f"({name} is written)")


def _voice(talk: Talk, name: str) -> None:
    voices = talk.client.voices().voices
    if name and voices and name not in voices:
        raise CommandError(f"no voice {name!r}; there are {', '.join(voices)}")
    if not name:
        print(", ".join(voices) or "(the model has one voice, without a name)")
        return
    talk.answerer.voice = name
    if not talk.answerer.is_spoken:
        print("(answers are not spoken: start with --speak or --save)")


def _clear(talk: Talk, _: str) -> None:
    talk.history.clear()
    print("(forgotten)")


def _help(talk: Talk, _: str) -> None:
    for name, (__, takes, says) in COMMANDS.items():
        print(f"{f'/{name} {takes}':14}  {says}")
    print("Ctrl-C stops an answer; Ctrl-D ends.")


def _quit(talk: Talk, _: str) -> None:
    raise EOFError


# What runs it, what it takes, and what it does.
COMMANDS: dict[str, tuple[Callable[[Talk, str], None], str, str]] = {
    "image": (_attach("image"), "FILE", "send a picture with the next message"),
    "audio": (_attach("audio"), "FILE", "send sound with the next message"),
    "video": (_attach("video"), "FILE", "send a video with the next message"),
    "record": (_record, "", "speak the next message"),
    "voice": (_voice, "[NAME]", "list the voices, or take one"),
    "save": (
        _save,
        "FILE",
        "write the conversation (.md, .txt) or the last answer's sound (.wav, .mp3, ...)",
    ),
    "clear": (_clear, "", "forget the conversation"),
    "help": (_help, "", "show this"),
    "quit": (_quit, "", "end"),
}


def run_command(talk: Talk, line: str) -> None:
    """Runs ``/NAME ARGUMENT``.

    Raises:
        CommandError: There is no such command, or it cannot do it.
        EOFError: The conversation is to end.
    """
    name, _, argument = line[1:].partition(" ")
    if name not in COMMANDS:
        near = meant_word(name, COMMANDS)
        hint = f"did you mean /{near}? " if near else ""
        raise CommandError(f"no command /{name}; {hint}/help lists them")
    COMMANDS[name][0](talk, argument.strip())
