"""A conversation by voice: speak, listen, and interrupt it; Ctrl-C ends it.

Needs a microphone and a loudspeaker, better headphones, and the extra `audio`.

    python examples/client_voice.py http://127.0.0.1:8000
"""

from __future__ import annotations

import sys
import threading

from sglang_omni.client import Player, SyncClient, microphone
from sglang_omni.client.realtime import (
    AnswerDone,
    AnswerSound,
    AnswerText,
    Heard,
    SpeakerStarted,
    SyncRealtimeSession,
)


def send_microphone(session: SyncRealtimeSession) -> None:
    for sound in microphone():
        session.send_audio(sound.samples, sound.sample_rate)


def main(url: str) -> None:
    with SyncClient(url) as client, client.realtime(instructions="Be brief.") as session:
        threading.Thread(target=send_microphone, args=[session], daemon=True).start()
        player = Player()
        print("Speak.")
        for event in session:
            match event:
                case SpeakerStarted() if player.played_s:
                    # Barge-in: be silent, and let the model know how much of its answer was heard.
                    player.stop()
                    session.interrupt(player.played_s)
                    player = Player()
                case Heard():
                    print("you:", event.text)
                case AnswerText():
                    print(event.text, end="", flush=True)
                case AnswerSound():
                    player.add(event)
                case AnswerDone():
                    print(f" ({event.status})")


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    except KeyboardInterrupt:
        pass
