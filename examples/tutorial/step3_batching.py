"""The same, with a translator that takes several requests at once."""

from sglang_omni.scheduling.simple_scheduler import SimpleScheduler
from sglang_omni.tasks import ChatRequest, TextResult


def load_read():
    def read(payload):
        return {"words": ChatRequest.of(payload).text.split()}

    return read


def load_translate(ending, max_batch_size):
    def translate(payload):
        (result,) = translate_all([payload])
        return result

    def translate_all(payloads):  # a model would take one batch of tensors here
        for payload in payloads:
            words = [pig_latin(word, ending) for word in payload.data["words"]]
            payload.data = {"words": words, "batch": len(payloads)}
        return payloads

    return SimpleScheduler(
        translate,
        batch_compute_fn=translate_all,
        max_batch_size=max_batch_size,
        max_batch_wait_ms=200,  # how long the first request of a batch waits for others
    )


def load_write():
    def write(payload):
        words, batch = payload.data["words"], payload.data["batch"]
        return TextResult(text=f"{' '.join(words)} (of {batch})")

    return write


def pig_latin(word, ending):
    head = len(word) - len(word.lstrip("bcdfghjklmnpqrstvwxyz"))
    return word[head:] + word[:head] + ending
