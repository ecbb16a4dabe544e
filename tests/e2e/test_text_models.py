"""Language models through ``sgl-omni serve``: token for token what transformers' ``generate`` says.

One checkpoint is served from a directory, one from a hub by two replicas behind the router.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx
import openai
import pytest
from fake_hub import FakeHub, fake_hub
from fleet import Fleet
from openai.types import CompletionChoice
from tiny_checkpoints import VOCAB_SIZE, TinyCheckpoint, with_tokenizer

PROMPT = [5, 7, 11, 150, 3]
CONTEXT = 256
# Two replicas behind the router; what has a session goes to the same one.
FLEET = ("--dp-size", "2", "--policy", "consistent_hash")


@dataclass
class Served:
    checkpoint: TinyCheckpoint
    server: Fleet
    name: str
    hub: FakeHub | None = None

    def post(self, path: str, body: Mapping[str, object]) -> httpx.Response:
        return httpx.post(self.server.base_url + path, json=body, timeout=120)

    @property
    def client(self) -> openai.OpenAI:
        return openai.OpenAI(
            base_url=f"{self.server.base_url}/v1", api_key="none", max_retries=0, timeout=120
        )


@pytest.fixture(scope="module", params=["llama", "qwen2", "qwen3"])
def served(
    request: pytest.FixtureRequest,
    tiny_checkpoint: Callable[..., TinyCheckpoint],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Served]:
    shape = request.param
    folder = tmp_path_factory.mktemp(shape)
    checkpoint = tiny_checkpoint(shape)
    path = with_tokenizer(checkpoint, folder / shape, temperature=0.7, do_sample=False)
    with ExitStack() as ends:
        if shape == "qwen3":
            hub = ends.enter_context(fake_hub({"org/tiny": path}))
            with pytest.MonkeyPatch.context() as patch:
                patch.setitem(os.environ, "HF_ENDPOINT", hub.url)
                patch.setitem(os.environ, "HF_HOME", str(folder / "hub"))
                server = Fleet.launch(folder / "log", "org/tiny", "--revision", "v1", *FLEET)
            served = Served(checkpoint, server, "org/tiny", hub)
        elif shape == "qwen2":
            # Its own template cannot be compiled.
            template = (path / "chat_template.jinja").rename(folder / "another.jinja")
            (path / "chat_template.jinja").write_text("{% if %}")
            flags = ("--model-path", str(path), "--chat-template", str(template))
            server = Fleet.launch(folder / "log", *flags)
            served = Served(checkpoint, server, str(path))
        else:
            server = Fleet.launch(folder / "log", "--model-path", str(path))
            served = Served(checkpoint, server, str(path))
        ends.callback(server.stop)
        yield served


def text(token_ids: list[int]) -> str:
    return " ".join(f"t{token}" for token in token_ids)


def test_every_way_to_ask(served: Served) -> None:
    """Greedy, because generation_config.json says so."""
    expected = served.checkpoint.greedy(PROMPT, 12)
    assert [model.id for model in served.client.models.list()] == [served.name]

    native = served.post("/generate", {"input_ids": PROMPT, "sampling_params": {"max_new_tokens": 12}})
    assert native.json()["output_ids"] == expected
    whole = served.client.completions.create(model=served.name, prompt=PROMPT, max_tokens=12)
    assert whole.choices[0].text == text(expected)
    assert whole.choices[0].finish_reason == "length"
    stream = served.client.completions.create(
        model=served.name, prompt=text(PROMPT), max_tokens=12, stream=True
    )
    pieces = [chunk.choices[0].text for chunk in stream if chunk.choices]
    assert "".join(pieces) == text(expected)
    assert len(pieces) > 6
    chat = served.client.chat.completions.create(
        model=served.name, messages=[{"role": "user", "content": text(PROMPT)}], max_tokens=12
    )
    assert chat.choices[0].message.content == text(served.checkpoint.greedy([1, *PROMPT, 2], 12))
    assert chat.usage is not None
    assert chat.usage.prompt_tokens == len(PROMPT) + 2


def test_an_answer_ends_at_a_stop_text_or_with_the_context(served: Served) -> None:
    expected = served.checkpoint.greedy(PROMPT, 12)
    stop = f"t{expected[6]}"
    stopped = served.client.completions.create(model=served.name, prompt=PROMPT, stop=[stop], max_tokens=12)
    assert stopped.choices[0].finish_reason == "stop"
    assert stop not in stopped.choices[0].text.split()
    full = served.client.completions.create(model=served.name, prompt=PROMPT)
    assert full.usage is not None
    assert full.usage.completion_tokens == CONTEXT - len(PROMPT)


def test_answers_to_one_prompt_share_its_prefill(served: Served) -> None:
    prompt = [token % 190 for token in range(7, 135)]
    body = {"input_ids": [prompt], "sampling_params": {"n": 3, "max_new_tokens": 6, "temperature": 0}}
    answers = served.post("/generate", body).json()
    expected = served.checkpoint.greedy(prompt, 6)
    assert [answer["output_ids"] for answer in answers] == [expected] * 3
    cached = [answer["meta_info"]["cached_tokens"] for answer in answers]
    assert cached[0] == 0
    assert min(cached[1:]) > len(prompt) // 2

    several = served.client.completions.create(
        model=served.name, prompt=[PROMPT, PROMPT[1:]], n=2, max_tokens=6, echo=True, stream=True
    )
    texts = [""] * 4
    for chunk in several:
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    for index, token_ids in enumerate((PROMPT, PROMPT, PROMPT[1:], PROMPT[1:])):
        assert texts[index] == text(token_ids) + text(served.checkpoint.greedy(token_ids, 6))


def test_seeds_make_answers_that_differ_and_can_be_asked_for_again(served: Served) -> None:
    def texts(n: int, seed: int) -> list[str]:
        answer = served.client.completions.create(
            model=served.name, prompt=PROMPT, max_tokens=8, temperature=1.5, n=n, seed=seed
        )
        return [choice.text for choice in answer.choices]

    four = texts(4, 3)
    assert len(set(four)) == 4
    assert texts(4, 3) == four
    assert texts(1, 6) == four[3:]


def test_log_probabilities_are_transformers(served: Served) -> None:
    import torch

    answer = served.client.completions.create(
        model=served.name, prompt=PROMPT, max_tokens=6, temperature=0, echo=True, logprobs=2, n=2
    )
    token_ids = PROMPT + served.checkpoint.greedy(PROMPT, 6)
    with torch.no_grad():
        scores = served.checkpoint.model(torch.tensor([token_ids])).logits[0].log_softmax(-1)
    expected = [scores[index, token].item() for index, token in enumerate(token_ids[1:])]
    for choice in answer.choices:
        told = choice.logprobs
        assert told is not None
        assert told.tokens == [f"t{token}" for token in token_ids]
        assert told.token_logprobs is not None
        assert told.token_logprobs[0] is None
        assert told.token_logprobs[1:] == pytest.approx(expected, abs=1e-4)
        assert told.top_logprobs is not None
        assert len(told.top_logprobs[-1]) == 2

    best = served.client.completions.create(
        model=served.name, prompt=PROMPT, max_tokens=6, temperature=1.5, best_of=6, n=2, logprobs=0, seed=1
    )
    every = served.client.completions.create(
        model=served.name, prompt=PROMPT, max_tokens=6, temperature=1.5, n=6, logprobs=0, seed=1
    )
    likeliest = sorted((mean(choice) for choice in every.choices), reverse=True)
    assert [mean(choice) for choice in best.choices] == pytest.approx(likeliest[:2])


def mean(choice: CompletionChoice) -> float:
    assert choice.logprobs is not None
    values = [value for value in choice.logprobs.token_logprobs or () if value is not None]
    return sum(values) / len(values)


def test_tokens_of_texts_and_texts_of_tokens(served: Served) -> None:
    told = served.post("/tokenize", {"prompt": text(PROMPT), "return_token_strs": True}).json()
    strings = [f"t{token}" for token in PROMPT]
    assert told == {"count": 5, "max_model_len": CONTEXT, "tokens": PROMPT, "token_strs": strings}
    chat = served.post("/tokenize", {"messages": [{"role": "user", "content": text(PROMPT)}]}).json()
    assert chat["tokens"] == [1, *PROMPT, 2]
    assert served.post("/detokenize", {"tokens": PROMPT}).json() == {"prompt": text(PROMPT)}
    # What is longer than the context can still be counted.
    assert served.post("/tokenize", {"prompt": "t5 " * 300}).json()["count"] == 300
    unknown = served.post("/detokenize", {"tokens": [VOCAB_SIZE]})
    assert (unknown.status_code, unknown.json()["error"]["param"]) == (400, "tokens")


async def test_a_conversation_of_responses(served: Served) -> None:
    """Kept responses are in one replica, which their session leads to."""
    expected = text(served.checkpoint.greedy([1, *PROMPT, 2], 12))
    session = {"x-session-id": "a conversation"}
    client = served.client.with_options(default_headers=session)
    first = client.responses.create(model=served.name, input=text(PROMPT), max_output_tokens=12)
    assert (first.output_text, first.status) == (expected, "incomplete")
    last = first.id
    for _ in range(4):
        stream = client.responses.create(
            model=served.name,
            input=text(PROMPT),
            max_output_tokens=12,
            previous_response_id=last,
            stream=True,
        )
        ended = list(stream)[-1]
        assert ended.type == "response.incomplete"
        assert ended.response.output_text == expected
        last = ended.response.id
    assert len(list(client.responses.input_items.list(last, order="asc"))) == 9
    async with openai.AsyncOpenAI(
        base_url=f"{served.server.base_url}/v1", api_key="none", max_retries=0, default_headers=session
    ) as asking:
        assert (await asking.responses.retrieve(first.id)).output_text == expected
        await asking.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError, match="x-session-id"):
        client.responses.retrieve(first.id)


def test_other_modalities_are_refused(served: Served) -> None:
    sound = {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}}
    for content, said in (([sound], "audio"), ([{"type": "image_url", "image_url": {"url": "a"}}], "image")):
        body = {"model": served.name, "messages": [{"role": "user", "content": content}]}
        answer = served.post("/v1/chat/completions", body)
        assert answer.status_code == 400
        assert said in json.dumps(answer.json()["error"])
    speech = served.post("/v1/audio/speech", {"model": served.name, "input": "x", "voice": "alloy"})
    assert speech.status_code == 400
    assert "does not do speech; it does chat, completion" in speech.json()["error"]["message"]


@pytest.mark.parametrize("served", ["qwen3"], indirect=True)
def test_a_fleets_checkpoint_is_downloaded_once(served: Served) -> None:
    assert served.hub is not None
    files = {path: count for path, count in served.hub.requests.items() if "/resolve/" in path}
    assert files
    assert {count for path, count in files.items() if path.startswith("GET")} == {1}
    # To see which files there are, and to fetch those that are needed.
    assert max(count for path, count in served.hub.requests.items() if "/api/" in path) == 2
    log = served.server.log.read_text()
    assert log.count("Looking up org/tiny, revision 'v1',") == 1
    assert Path(log.split("org/tiny, revision 'v1', is in ")[1].split()[0]).is_dir()
