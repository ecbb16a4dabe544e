"""A voice server of a few lines: it takes what is loud enough for speech, and answers with a tone."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from websockets.sync.server import ServerConnection, serve

RATE = 24_000
_ENDS_AFTER_S = 0.2


@dataclass
class ScriptedVoice:
    """
    Attributes:
        threshold: The lowest sample that it takes for speech.
        answer: Its sound, in seconds: tone and silence in turn.
        transcript: What it understands in every turn; None if it writes nothing down.
        finds_turns: False if it refuses to.
        answers: False if it says nothing.
        took: The types of the events that it got, but for sound.
    """

    threshold: int = 4000
    answer: tuple[float, ...] = (3.0,)
    transcript: str | None = "What colour is the sea?"
    finds_turns: bool = True
    answers: bool = True
    took: list[dict[str, Any]] = field(default_factory=list)

    def __call__(self, socket: ServerConnection) -> None:
        session = _Session(self, socket)
        session.send("session.created")
        for text in socket:
            session.take(json.loads(text))


class _Session:
    def __init__(self, script: ScriptedVoice, socket: ServerConnection) -> None:
        self.script, self.socket = script, socket
        self.finds_turns = False
        self.number = 0
        self.silent_s: float | None = None
        self.ends: float | None = None

    def send(self, kind: str, **fields: Any) -> None:
        self.socket.send(json.dumps({"type": kind, **fields}))

    def take(self, event: dict[str, Any]) -> None:
        if event["type"] == "input_audio_buffer.append":
            samples = np.frombuffer(base64.b64decode(event["audio"]), "<i2").astype(int)
            self.hear(bool((np.abs(samples) >= self.script.threshold).any()), len(samples) / RATE)
            return
        self.script.took.append(event)
        if event["type"] == "session.update":
            self.update(event["session"]["audio"]["input"])
        elif event["type"] == "input_audio_buffer.commit":
            self.commit()
        elif event["type"] == "response.create":
            self.respond()

    def update(self, listening: dict[str, Any]) -> None:
        turns = listening.get("turn_detection")
        refused = (turns and not self.script.finds_turns) or (
            listening.get("transcription") and self.script.transcript is None
        )
        if refused:
            self.send("error", error={"message": "not here"})
            return
        self.finds_turns = turns is not None
        self.send("session.updated", session={})

    def hear(self, is_loud: bool, seconds: float) -> None:
        if self.ends is not None and time.monotonic() > self.ends:
            self.done("completed")
        if not self.finds_turns:
            return
        if is_loud:
            if self.silent_s is None:
                self.send("input_audio_buffer.speech_started", item_id=f"item {self.number}")
                if self.ends is not None:
                    self.done("cancelled")
            self.silent_s = 0.0
        elif self.silent_s is not None:
            self.silent_s += seconds
            if self.silent_s > _ENDS_AFTER_S:
                self.silent_s = None
                self.commit()
                self.respond()

    def commit(self) -> None:
        self.number += 1
        item = f"item {self.number}"
        self.send("input_audio_buffer.committed", item_id=item)
        if self.script.transcript is not None:
            kind = "conversation.item.input_audio_transcription.completed"
            self.send(kind, item_id=item, transcript=self.script.transcript)

    def respond(self) -> None:
        if not self.script.answers:
            return
        places = {"response_id": f"answer {self.number}", "item_id": f"spoken {self.number}"}
        self.send("response.created", response={"id": places["response_id"]})
        for part, seconds in enumerate(self.script.answer):
            tone = np.full(round(seconds * RATE), 9000 * (part % 2 == 0), "<i2")
            delta = base64.b64encode(tone.tobytes()).decode()
            self.send("response.output_audio.delta", delta=delta, **places)
        # With an open microphone it is under way for as long as it plays.
        self.ends = time.monotonic() + sum(self.script.answer)
        if not self.finds_turns:
            self.done("completed")

    def done(self, status: str) -> None:
        self.ends = None
        self.send("response.done", response={"id": f"answer {self.number}", "status": status})


@contextmanager
def serving(script: ScriptedVoice) -> Iterator[str]:
    """Serves it in a thread; gives its base URL."""
    with serve(script, "127.0.0.1", 0, max_size=None) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.socket.getsockname()[1]}"
        finally:
            server.shutdown()
            thread.join()
