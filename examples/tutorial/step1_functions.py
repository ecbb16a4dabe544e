"""Three functions that answer in Pig Latin."""

from sglang_omni.tasks import ChatRequest, TextResult


def load_read():  # a factory: it runs once, and may load a model
    def read(payload):  # the function: it gets each request
        return {"words": ChatRequest.of(payload).text.split()}

    return read


def load_translate(ending):
    def translate(payload):
        return {"words": [pig_latin(word, ending) for word in payload.data["words"]]}

    return translate


def load_write():
    def write(payload):
        return TextResult(text=" ".join(payload.data["words"]))

    return write


def pig_latin(word, ending):
    head = len(word) - len(word.lstrip("bcdfghjklmnpqrstvwxyz"))
    return word[head:] + word[:head] + ending
