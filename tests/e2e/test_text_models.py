"""Published language models, each served by its id: token for token what transformers' ``generate`` says.

Their names, configs, vocabularies and the style of their templates are as published, their weights random.
One has two replicas behind the router.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import httpx
import openai
import published_text_models
import pytest
from fake_hub import FakeHub
from openai.types import CompletionChoice
from published_server import client_of, serving
from published_text_models import LLAMA, QWEN2, QWEN3, change_settings, text_model
from served_process import ServedProcess
from tiny_checkpoints import TinyCheckpoint

from sglang_omni.published import published_model

SENTENCE = "The old house"
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "now",
        "description": "The time of day",
        "parameters": {"type": "object", "properties": {"zone": {"type": "string"}}},
    },
}
# Two replicas behind the router; what has a session goes to the same one.
FLEET = ("--dp-size", "2", "--policy", "consistent_hash", "--revision", "v1")
# As the authors tell for longer texts; and the windows that the published config describes and leaves off.
LONG_TEXTS = {
    "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
    "use_sliding_window": True,
    "sliding_window": 16,
    "max_window_layers": 1,
}
CONTEXT = 1200


@dataclass
class Served:
    """
    Attributes:
        tokenizer: That of transformers.
    """

    name: str
    checkpoint: TinyCheckpoint
    tokenizer: Any
    server: ServedProcess
    hub: FakeHub

    def post(self, path: str, body: Mapping[str, object]) -> httpx.Response:
        return httpx.post(self.server.base_url + path, json=body, timeout=120)

    @property
    def client(self) -> openai.OpenAI:
        return client_of(self.server)

    @cached_property
    def prompt(self) -> list[int]:
        """Tokens of ``SENTENCE``."""
        token_ids: list[int] = self.tokenizer(SENTENCE).input_ids
        return token_ids

    @cached_property
    def ends(self) -> list[int]:
        """Tokens that end an answer."""
        ends: int | list[int] = self.checkpoint.model.generation_config.eos_token_id
        return ends if isinstance(ends, list) else [ends]

    def text(self, token_ids: Sequence[int]) -> str:
        text: str = self.tokenizer.decode(token_ids, skip_special_tokens=True)
        return text

    def greedy(self, prompt: Sequence[int], count: int) -> str:
        return self.text(self.checkpoint.greedy(prompt, count))

    def conversation(self, messages: Sequence[Mapping[str, str]], **options: Any) -> list[int]:
        """Tokens of messages as transformers renders them."""
        text = self.tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=False, **options
        )
        token_ids: list[int] = self.tokenizer(text, add_special_tokens=False).input_ids
        return token_ids


@pytest.fixture(scope="module", params=[LLAMA, QWEN2, QWEN3], ids=["llama", "qwen2", "qwen3"])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model_id = request.param
    folder = tmp_path_factory.mktemp("served")
    repository = text_model(
        folder / "repository", model_id, 0, context=CONTEXT, fields=LONG_TEXTS if model_id == QWEN2 else {}
    )
    flags: Sequence[str] = ()
    if model_id == QWEN3:
        flags = FLEET
    elif model_id == QWEN2:
        # Its own template cannot be compiled.
        change_settings(repository / "tokenizer_config.json", chat_template="{% if %}")
        (folder / "another.jinja").write_text(published_text_models.template("smollm3"))
        flags = ("--chat-template", str(folder / "another.jinja"), "--tool-call-parser", "hermes")
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(repository, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(repository)
    if model_id == QWEN2:
        tokenizer.chat_template = (folder / "another.jinja").read_text()
    with serving(folder, model_id, repository, *flags) as (server, hub):
        yield Served(model_id, TinyCheckpoint(repository, model), tokenizer, server, hub)


def test_every_way_to_ask(served: Served) -> None:
    prompt = served.prompt
    expected = served.checkpoint.greedy(prompt, 12)
    text = served.text(expected)
    # Through the router, which joins the lists of its workers.
    [model] = served.client.models.list()
    assert (model.id, model.model_dump()["max_model_len"]) == (served.name, CONTEXT)

    sampling = {"max_new_tokens": 12, "temperature": 0}
    native = served.post("/generate", {"input_ids": prompt, "sampling_params": sampling})
    assert native.json()["output_ids"] == expected
    asked: dict[str, Any] = {"model": served.name, "max_tokens": 12, "temperature": 0}
    whole = served.client.completions.create(prompt=prompt, **asked)
    assert whole.choices[0].text == text
    assert whole.choices[0].finish_reason == "length"
    stream = served.client.completions.create(prompt=SENTENCE, stream=True, **asked | {"max_tokens": 48})
    pieces = [chunk.choices[0].text for chunk in stream if chunk.choices]
    assert "".join(pieces) == served.greedy(prompt, 48)
    # Tokens are joined to one event where the reader is behind, but not most of so many.
    assert len(pieces) > 4


def test_chats_are_rendered_as_by_transformers(served: Served) -> None:
    messages: Any = [
        {"role": "system", "content": " Be brief. "},
        {"role": "user", "content": SENTENCE},
        {"role": "assistant", "content": "Is it old?"},
        {"role": "user", "content": "Yes <b>é</b>"},
    ]
    for options in ({}, {"tools": [TOOL]}):
        prompt = served.conversation(messages, **options)
        answer = served.client.chat.completions.create(
            model=served.name, messages=messages, max_tokens=12, temperature=0, **options
        )
        assert answer.usage is not None
        assert answer.usage.prompt_tokens == len(prompt)
        assert answer.choices[0].message.content == served.greedy(prompt, 12)


def test_an_answer_ends_at_a_stop_text(served: Served) -> None:
    expected = served.greedy(served.prompt, 48)
    # One behind the first few, of a whole character.
    stop = next(letter for letter in expected[5:] if letter.isprintable() and letter != "\ufffd")
    stopped = served.client.completions.create(
        model=served.name, prompt=served.prompt, stop=[stop], max_tokens=48, temperature=0
    )
    assert stopped.choices[0].finish_reason == "stop"
    assert stopped.choices[0].text == expected.split(stop)[0]


@pytest.mark.parametrize("served", [QWEN3], indirect=True, ids=["qwen3"])
def test_an_answer_ends_with_the_context(served: Served) -> None:
    room = CONTEXT - len(served.prompt)
    full = served.client.completions.create(model=served.name, prompt=served.prompt, temperature=0)
    assert full.usage is not None
    assert full.usage.completion_tokens == room
    assert full.choices[0].text.startswith(served.greedy(served.prompt, 12))


def test_sampling_is_as_published(served: Served) -> None:
    """Of a request that says nothing of it: fields of generation_config.json."""
    published = published_model("text", served.name).config("generation_config.json")
    fields = {
        name: published[name]
        for name in ("temperature", "top_p", "top_k", "repetition_penalty")
        if name in published
    }
    assert len(fields) >= 2

    def drawn(**sampling: Any) -> str:
        body = {"model": served.name, "prompt": served.prompt, "max_tokens": 64, "seed": 5, **sampling}
        text: str = served.post("/v1/completions", body).json()["choices"][0]["text"]
        return text

    assert drawn() == drawn(**fields)
    neutral = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "repetition_penalty": 1.0}
    for name in fields:
        assert drawn() != drawn(**{name: neutral[name]}), name


def test_answers_to_one_prompt_share_its_prefill(served: Served) -> None:
    prompt = [token % 190 for token in range(7, 135)]
    body = {"input_ids": [prompt], "sampling_params": {"n": 3, "max_new_tokens": 6, "temperature": 0}}
    answers = served.post("/generate", body).json()
    expected = served.checkpoint.greedy(prompt, 6)
    assert [answer["output_ids"] for answer in answers] == [expected] * 3
    cached = [answer["meta_info"]["cached_tokens"] for answer in answers]
    assert cached[0] == 0
    assert min(cached[1:]) > len(prompt) // 2

    prompts = (served.prompt, served.prompt[1:])
    several = served.client.completions.create(
        model=served.name, prompt=prompts, n=2, max_tokens=6, echo=True, stream=True, temperature=0
    )
    texts = [""] * 4
    for chunk in several:
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    for index, token_ids in enumerate((prompts[0], prompts[0], prompts[1], prompts[1])):
        assert texts[index] == served.tokenizer.decode(token_ids) + served.greedy(token_ids, 6)


def test_seeds_make_answers_that_differ_and_can_be_asked_for_again(served: Served) -> None:
    def texts(n: int, seed: int) -> list[str]:
        answer = served.client.completions.create(
            model=served.name, prompt=served.prompt, max_tokens=8, temperature=1.5, n=n, seed=seed
        )
        return [choice.text for choice in answer.choices]

    four = texts(4, 3)
    assert len(set(four)) == 4
    assert texts(4, 3) == four
    assert texts(1, 6) == four[3:]


def test_log_probabilities_are_transformers(served: Served) -> None:
    import torch

    asked: dict[str, Any] = {"model": served.name, "prompt": served.prompt, "max_tokens": 6}
    answer = served.client.completions.create(**asked, temperature=0, echo=True, logprobs=2, n=2)
    token_ids = served.prompt + served.checkpoint.greedy(served.prompt, 6)
    with torch.no_grad():
        scores = served.checkpoint.model(torch.tensor([token_ids])).logits[0].log_softmax(-1)
    expected = [scores[index, token].item() for index, token in enumerate(token_ids[1:])]
    for choice in answer.choices:
        given = choice.logprobs
        assert given is not None
        assert given.tokens is not None
        assert len(given.tokens) == len(token_ids)
        assert given.token_logprobs is not None
        assert given.token_logprobs[0] is None
        assert given.token_logprobs[1:] == pytest.approx(expected, abs=1e-4)
        assert given.top_logprobs is not None
        assert len(given.top_logprobs[-1]) == 2

    best = served.client.completions.create(**asked, temperature=1.5, best_of=6, n=2, logprobs=0, seed=1)
    every = served.client.completions.create(**asked, temperature=1.5, n=6, logprobs=0, seed=1)
    likeliest = sorted((mean(choice) for choice in every.choices), reverse=True)
    assert [mean(choice) for choice in best.choices] == pytest.approx(likeliest[:2])


def mean(choice: CompletionChoice) -> float:
    assert choice.logprobs is not None
    values = [value for value in choice.logprobs.token_logprobs or () if value is not None]
    return sum(values) / len(values)


def test_tokens_of_texts_and_texts_of_tokens(served: Served) -> None:
    prompt = served.prompt
    found = served.post("/tokenize", {"prompt": SENTENCE, "return_token_strs": True}).json()
    strings = served.tokenizer.convert_ids_to_tokens(prompt)
    assert found == {
        "count": len(prompt),
        "max_model_len": CONTEXT,
        "tokens": prompt,
        "token_strs": strings,
    }
    messages = [{"role": "user", "content": SENTENCE}]
    chat = served.post("/tokenize", {"messages": messages}).json()
    assert chat["tokens"] == served.conversation(messages)
    assert served.post("/detokenize", {"tokens": prompt}).json() == {
        "prompt": served.tokenizer.decode(prompt)
    }
    # What is longer than the context can still be counted.
    long = " x" * CONTEXT
    assert served.post("/tokenize", {"prompt": long}).json()["count"] == len(served.tokenizer(long).input_ids)
    unknown = served.post("/detokenize", {"tokens": [200_000]})
    assert (unknown.status_code, unknown.json()["error"]["param"]) == (400, "tokens")


async def test_a_conversation_of_responses(served: Served) -> None:
    """Kept responses are in one replica, which their ids lead to."""
    asked: dict[str, Any] = {
        "model": served.name,
        "input": SENTENCE,
        "max_output_tokens": 12,
        "temperature": 0,
    }
    turns = [{"role": "user", "content": SENTENCE}]

    def expected() -> tuple[str, str]:
        """A text and its status. The day is in Llama's template: on some days an answer ends early."""
        token_ids = served.checkpoint.greedy(served.conversation(turns), 12)
        answer = served.text(token_ids)
        turns.extend([{"role": "assistant", "content": answer}, turns[0]])
        return answer, "completed" if token_ids[-1] in served.ends else "incomplete"

    client = served.client
    first = client.responses.create(**asked)
    opening = expected()
    assert (first.output_text, first.status) == opening
    last = first.id
    for _ in range(4):
        ended = list(client.responses.create(**asked, previous_response_id=last, stream=True))[-1]
        text, status = expected()
        assert ended.type == f"response.{status}"
        assert (ended.response.output_text, ended.response.status) == (text, status)
        last = ended.response.id
    assert len(list(client.responses.input_items.list(last, order="asc"))) == 9
    async with openai.AsyncOpenAI(
        base_url=f"{served.server.base_url}/v1", api_key="none", max_retries=0
    ) as asking:
        assert (await asking.responses.retrieve(first.id)).output_text == opening[0]
        await asking.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError, match="send the conversation as input"):
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


@pytest.mark.parametrize("served", [QWEN3], indirect=True, ids=["qwen3"])
def test_a_fleet_asks_the_hub_once(served: Served) -> None:
    # To see which files there are, and to fetch those that are needed.
    assert max(count for path, count in served.hub.requests.items() if "/api/" in path) == 2
    log = served.server.log.read_text()
    assert log.count(f"Looking up {served.name}, revision 'v1',") == 1
    assert Path(log.split(f"{served.name}, revision 'v1', is in ")[1].split()[0]).is_dir()
