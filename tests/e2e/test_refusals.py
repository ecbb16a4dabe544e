"""OpenAI's client, the router, real processes and models: a parameter without effect is a 400 with a code."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest
from served_process import ServedProcess

HELLO: Any = [{"role": "user", "content": "Hello, who are you?"}]


@pytest.fixture(scope="module")
def client(fleet: ServedProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{fleet.base_url}/v1", api_key="none", max_retries=0) as client:
        yield client


def chat(client: openai.OpenAI, messages: Any = HELLO, **extra: Any) -> Any:
    return client.chat.completions.create(model="speech-chat", messages=messages, extra_body=extra)


def say(client: openai.OpenAI, **extra: Any) -> bytes:
    given: dict[str, Any] = {"model": "speech-chat", "voice": "default", "response_format": "wav"}
    return client.audio.speech.create(input="Hello there.", extra_body=extra, **given).content


def refused(call: Callable[[], Any]) -> tuple[str | None, str | None]:
    with pytest.raises(openai.BadRequestError) as caught:
        call()
    assert caught.value.type == "invalid_request_error"
    return caught.value.param, caught.value.code


@pytest.mark.parametrize(
    ("extra", "param", "code"),
    [
        ({"stage_params": {"thinker": {"temprature": 1}}}, "stage_params.thinker.temprature", "unknown"),
        ({"stage_params": {"decode": {"temperature": 1}}}, "stage_params.decode.temperature", "unknown"),
        ({"talker_top_k": 5}, "talker_top_k", "unsupported"),
        ({"min_tokens": 5}, "min_tokens", "unsupported"),
    ],
)
def test_a_chat_with_a_parameter_without_effect(
    client: openai.OpenAI, extra: dict[str, Any], param: str, code: str
) -> None:
    assert refused(lambda: chat(client, **extra)) == (param, f"{code}_parameter")


def test_a_stop_token_of_another_vocabulary(client: openai.OpenAI) -> None:
    refusal = refused(lambda: chat(client, stop_token_ids=[10**6]))
    assert refusal == ("stop_token_ids", "invalid_value")


def test_a_prompt_and_an_answer_longer_than_the_context(client: openai.OpenAI) -> None:
    long = [{"role": "user", "content": "hello " * 9000}]
    assert refused(lambda: chat(client, long)) == ("messages", "context_length_exceeded")
    with pytest.raises(openai.BadRequestError, match=r"9\d\d\d tokens.*8192 tokens"):
        chat(client, long)
    assert refused(lambda: chat(client, max_tokens=100_000)) == ("max_tokens", "context_length_exceeded")
    with pytest.raises(openai.BadRequestError) as caught:
        chat(client, max_tokens=8192)
    used = chat(client, max_tokens=1).usage.prompt_tokens
    room = int(caught.value.message.partition("ask for at most ")[2].partition(",")[0])
    assert f"the prompt {used} tokens long" in caught.value.message
    assert f"context holds {used + room} tokens" in caught.value.message


def test_a_name_that_the_template_has_no_place_for(client: openai.OpenAI) -> None:
    named = [{**HELLO[0], "name": "Ann"}]
    assert refused(lambda: chat(client, named)) == ("messages[0].name", "unsupported_parameter")


def test_a_voice_speaks_english_and_has_a_seed(client: openai.OpenAI) -> None:
    assert refused(lambda: say(client, language="fr")) == ("language", "unsupported_value")
    first, again, other = say(client, seed=1, language="en"), say(client, seed=1), say(client, seed=2)
    assert first == again != other


def test_a_transcription(client: openai.OpenAI) -> None:
    recording = ("a.wav", io.BytesIO(say(client)), "audio/wav")

    def transcribe(**extra: Any) -> Any:
        recording[1].seek(0)
        return client.audio.transcriptions.create(model="speech-chat", file=recording, extra_body=extra)

    assert "hello" in transcribe(temperature=0).text.lower()
    recording[1].seek(0)
    translation = client.audio.translations.create(model="speech-chat", file=recording)
    assert "hello" in translation.text.lower()
    assert refused(lambda: transcribe(language="fr")) == ("language", "unsupported_value")
    assert refused(lambda: transcribe(temperature=2)) == ("temperature", "invalid_value")


def test_streamed_token_ids_are_the_answers(client: openai.OpenAI) -> None:
    extra = {"return_token_ids": True, "temperature": 0, "max_tokens": 20}
    whole = chat(client, **extra).choices[0]
    stream = client.chat.completions.create(
        model="speech-chat", messages=HELLO, stream=True, extra_body=extra
    )
    choices = [chunk.choices[0].model_dump() for chunk in stream]
    reported = [choice.get("token_ids") or [] for choice in choices]
    assert [token for ids in reported for token in ids] == whole.model_dump()["token_ids"]
    assert sum(map(bool, reported)) > 1
