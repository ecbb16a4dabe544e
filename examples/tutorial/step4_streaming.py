"""The same, with an answer that is sent word by word, and with sound if the caller wants some."""

import numpy as np

from sglang_omni.tasks import AudioChunk, ChatRequest, TextChunk


def load_read():
    def read(payload):
        return {"words": ChatRequest.of(payload).text.split()}

    return read


def load_translate(ending):
    def translate(payload):
        return {"words": [pig_latin(word, ending) for word in payload.data["words"]]}

    return translate


def load_write():
    def write(payload):  # a generator: what it yields is sent at once
        speaks = "audio" in ChatRequest.of(payload).modalities
        for index, word in enumerate(payload.data["words"]):
            yield TextChunk(text=word if index == 0 else f" {word}")
            if speaks:
                yield AudioChunk(audio_data=beep(len(word)), sample_rate=24_000)

    return write


def beep(letters):
    time = np.arange(2_400 * letters) / 24_000
    return (0.2 * np.sin(2 * np.pi * 440 * time)).astype(np.float32)


def pig_latin(word, ending):
    head = len(word) - len(word.lstrip("bcdfghjklmnpqrstvwxyz"))
    return word[head:] + word[:head] + ending
