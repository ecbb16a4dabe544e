"""The same, with two stages that work side by side, and one that waits for both."""

from sglang_omni.tasks import ChatRequest, TextChunk


def load_read():
    def read(payload):
        return {"words": ChatRequest.of(payload).text.split()}

    return read


def load_translate(ending):
    def translate(payload):
        return {"words": [pig_latin(word, ending) for word in payload.data["words"]]}

    return translate


def load_count():
    def count(payload):
        return {"letters": sum(len(word) for word in payload.data["words"])}

    return count


def merge(payloads):  # {stage: payload}, once both have come
    merged = payloads["translate"]
    merged.data = {**merged.data, **payloads["count"].data}
    return merged


def load_write():
    def write(payload):
        for word in payload.data["words"]:
            yield TextChunk(text=f"{word} ")
        yield TextChunk(text=f"({payload.data['letters']} letters before)")

    return write


def pig_latin(word, ending):
    head = len(word) - len(word.lstrip("bcdfghjklmnpqrstvwxyz"))
    return word[head:] + word[:head] + ending
