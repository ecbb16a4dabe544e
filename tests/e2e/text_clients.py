"""What clients of chats do, each as its users call it. Runs in one of the environments of `make clients`.

Prints, for each of the clients that are named, what came of each call, as JSON.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any

from pydantic import BaseModel

QUESTION = "What is the capital of France?"


class City(BaseModel):
    """A city."""

    name: str
    country: str


def capital(country: str) -> str:
    """The capital of a country."""
    return f"The capital of {country} is Paris."


def langchain(base_url: str, model: str) -> dict[str, Any]:
    from langchain_openai import ChatOpenAI

    chat = ChatOpenAI(base_url=base_url, api_key="none", model=model, max_tokens=64, reasoning_effort="low")
    answer = chat.invoke(QUESTION)
    call = chat.bind_tools([capital], tool_choice="any").invoke(QUESTION)
    return {
        "text": answer.content,
        "tokens": answer.usage_metadata["total_tokens"],
        "pieces": sum(bool(chunk.content) for chunk in chat.stream(QUESTION)),
        "called": [each["name"] for each in call.tool_calls],
        "city": chat.with_structured_output(City).invoke(QUESTION).model_dump(),
        "responses": ChatOpenAI(
            base_url=base_url, api_key="none", model=model, max_tokens=64, use_responses_api=True
        )
        .invoke(QUESTION)
        .text,
    }


def litellm(base_url: str, model: str) -> dict[str, Any]:
    import litellm

    sent: dict[str, Any] = {
        "model": f"openai/{model}",
        "api_base": base_url,
        "api_key": "none",
        "max_tokens": 64,
        "messages": [{"role": "user", "content": QUESTION}],
    }
    answer = litellm.completion(**sent)
    city = litellm.completion(**sent, response_format=City).choices[0].message.content
    chunks = litellm.completion(**sent, stream=True)
    return {
        "text": answer.choices[0].message.content,
        "tokens": answer.usage.total_tokens,
        "pieces": sum(bool(chunk.choices and chunk.choices[0].delta.content) for chunk in chunks),
        "city": City.model_validate_json(city).model_dump(),
        "sound": len(
            litellm.speech(
                model=f"openai/{model}", voice="alloy", input="Hi.", api_base=base_url, api_key="none"
            ).content
        ),
    }


def instructor(base_url: str, model: str) -> dict[str, Any]:
    import instructor
    import openai

    client = openai.OpenAI(base_url=base_url, api_key="none")
    asked: dict[str, Any] = {
        "model": model,
        "max_tokens": 64,
        "response_model": City,
        "messages": [{"role": "user", "content": QUESTION}],
    }
    modes = (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA)
    cities = [instructor.from_openai(client, mode=mode).chat.completions.create(**asked) for mode in modes]
    return {"cities": [city.model_dump() for city in cities]}


def llama_index(base_url: str, model: str) -> dict[str, Any]:
    from llama_index.core.llms import ChatMessage
    from llama_index.core.tools import FunctionTool
    from llama_index.llms.openai_like import OpenAILike

    llm = OpenAILike(
        model=model,
        api_base=base_url,
        api_key="none",
        is_chat_model=True,
        is_function_calling_model=True,
        max_tokens=64,
    )
    asked = [ChatMessage(role="user", content=QUESTION)]
    tool = FunctionTool.from_defaults(capital)
    call = llm.chat_with_tools([tool], user_msg=QUESTION, tool_required=True)
    return {
        "text": llm.chat(asked).message.content,
        "pieces": sum(bool(chunk.delta) for chunk in llm.stream_chat(asked)),
        "called": [each.tool_name for each in llm.get_tool_calls_from_response(call)],
        "city": llm.as_structured_llm(City).chat(asked).raw.model_dump(),
    }


CLIENTS: dict[str, Callable[[str, str], dict[str, Any]]] = {
    each.__name__: each for each in (langchain, litellm, instructor, llama_index)
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--base-url", required=True, help="http://HOST/v1")
    parser.add_argument("--model", required=True)
    parser.add_argument("clients", nargs="+", choices=CLIENTS)
    options = parser.parse_args()
    print(json.dumps({name: CLIENTS[name](options.base_url, options.model) for name in options.clients}))


if __name__ == "__main__":
    main()
