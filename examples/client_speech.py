"""A text spoken into a file, and a file written down.

python examples/client_speech.py http://127.0.0.1:8000 "Hello there." hello.wav
"""

from __future__ import annotations

import sys
from pathlib import Path

from sglang_omni.client import GenerateRequest, SyncClient, save


def main(url: str, text: str, path: str) -> None:
    with SyncClient(url) as client:
        print("voices:", ", ".join(client.voices().voices))
        save(path, client.speech_stream(GenerateRequest(prompt=text)))
        result = client.transcribe(Path(path).read_bytes(), word_timestamps=True)
        for word in result.words:
            print(f"{word.start:5.2f} {word.word.strip()}")


if __name__ == "__main__":
    main(*sys.argv[1:])
