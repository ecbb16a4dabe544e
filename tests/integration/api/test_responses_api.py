"""/v1/responses by OpenAI's own clients."""

from __future__ import annotations

import threading

import openai
import pydantic
import pytest
from owned_server import served

from sglang_omni.serve.front.access import Access

TOOL = {
    "type": "function",
    "name": "weather",
    "description": "Of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": False,
}
CALLS = [{"index": 0, "id": "call_1", "name": "weather", "arguments": '{"city": "Rome"}'}]


def test_a_conversation_goes_on(api, pipeline):
    first = api.responses.create(
        model="scripted", input="Hi", instructions="Be brief.", max_output_tokens=3, metadata={"a": "b"}
    )
    assert (first.output_text, first.status) == ("Hello.", "incomplete")
    assert first.incomplete_details.reason == "max_output_tokens"
    assert (first.usage.input_tokens, first.usage.output_tokens, first.usage.total_tokens) == (7, 3, 10)
    assert first.usage.input_tokens_details.cached_tokens == 4
    assert (first.metadata, first.instructions) == ({"a": "b"}, "Be brief.")
    assert pipeline.last.params == {"max_new_tokens": 3, "stream": False}

    pipeline.more = {"finish_reason": "stop"}
    second = api.responses.create(model="scripted", input="And now?", previous_response_id=first.id)
    assert (second.status, second.previous_response_id) == ("completed", first.id)
    assert pipeline.last.inputs["messages"] == [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello."},
        {"role": "user", "content": "And now?"},
    ]
    assert api.responses.retrieve(second.id) == second
    items = list(api.responses.input_items.list(second.id, order="asc", limit=1))
    assert [item.role for item in items] == ["user", "assistant", "user"]
    assert items[1] == first.output[0]

    api.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        api.responses.retrieve(first.id)
    third = api.responses.create(model="scripted", input="Yes", previous_response_id=second.id)
    assert len(pipeline.last.inputs["messages"]) == 5
    assert third.store is True


def test_what_is_not_stored_is_not_found(api, pipeline):
    answer = api.responses.create(model="scripted", input="Hi", store=False)
    assert answer.store is False
    with pytest.raises(openai.NotFoundError):
        api.responses.retrieve(answer.id)
    with pytest.raises(openai.NotFoundError) as refused:
        api.responses.create(model="scripted", input="Hi", previous_response_id=answer.id)
    assert (refused.value.code, refused.value.param) == (
        "previous_response_not_found",
        "previous_response_id",
    )


def test_tools_are_called_and_answered(api, pipeline):
    pipeline.words = []
    usage = {"prompt_tokens": 7, "completion_tokens": 9, "completion_tokens_details": {"reasoning_tokens": 4}}
    reported = {"tool_calls": CALLS, "reasoning": "Hm", "finish_reason": "tool_calls"}
    pipeline.more = reported | {"usage": usage}
    answer = api.responses.create(model="scripted", input="Weather?", tools=[TOOL], tool_choice="required")
    reasoning, call = answer.output
    assert answer.usage.output_tokens_details.reasoning_tokens == 4
    assert reasoning.content[0].text == "Hm"
    assert (call.call_id, call.name, call.arguments) == ("call_1", "weather", '{"city": "Rome"}')
    assert answer.status == "completed"
    function = {name: TOOL[name] for name in ("name", "description", "parameters", "strict")}
    assert pipeline.last.params["tools"] == [{"type": "function", "function": function}]
    assert pipeline.last.params["tool_choice"] == "required"

    given = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    for asked in (
        {"input": [given], "previous_response_id": answer.id},
        {"input": [{"role": "user", "content": "Weather?"}, *answer.output, given]},
    ):
        pipeline.more = {}
        api.responses.create(model="scripted", tools=[TOOL], **asked)
        messages = pipeline.last.inputs["messages"]
        assert [message["role"] for message in messages] == ["user", "assistant", "tool"]
        assert messages[1]["tool_calls"][0]["function"]["arguments"] == '{"city": "Rome"}'
        assert messages[1]["reasoning_content"] == "Hm"
        assert messages[2] == {"role": "tool", "tool_call_id": "call_1", "content": "sunny"}


def test_events(api, pipeline):
    pipeline.more = {"tool_calls": CALLS, "finish_reason": "tool_calls"}
    events = list(api.responses.create(model="scripted", input="Hi", tools=[TOOL], stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type.removeprefix("response.") for event in events]
    assert kinds[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
    assert kinds[-3:] == ["function_call_arguments.done", "output_item.done", "completed"]
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == "Hello."
    assert events[0].response.status == "in_progress"
    whole = events[-1].response
    assert [item.type for item in whole.output] == ["message", "function_call"]
    assert api.responses.retrieve(whole.id) == whole
    with api.responses.stream(model="scripted", input="Hi", tools=[TOOL]) as stream:
        final = stream.get_final_response()
    assert [item.type for item in final.output] == ["message", "function_call"]


class City(pydantic.BaseModel):
    name: str


def test_a_schema_is_parsed(api, pipeline):
    pipeline.words = ['{"name": ', '"Rome"}']
    answer = api.responses.parse(model="scripted", input="Which?", text_format=City)
    assert answer.output_parsed == City(name="Rome")
    assert '"name"' in pipeline.last.params["json_schema"]


async def test_the_async_client(base_url, pipeline):
    async with openai.AsyncOpenAI(base_url=f"{base_url}/v1", api_key="none", max_retries=0) as client:
        first = await client.responses.create(model="scripted", input="Hi")
        stream = await client.responses.create(
            model="scripted", input="Go on", previous_response_id=first.id, stream=True
        )
        kinds = [event.type async for event in stream]
        assert kinds[-1] == "response.incomplete"
        assert len(pipeline.last.inputs["messages"]) == 3
        await client.responses.delete(first.id)


def test_logprobs(api, pipeline):
    entry = {"token": "Hi", "token_id": 5, "logprob": -1.0, "bytes": [72, 105], "top": []}
    pipeline.more = {"logprobs": [entry]}
    for stream in (False, True):
        answer = api.responses.create(
            model="scripted", input="Hi", include=["message.output_text.logprobs"], stream=stream
        )
        if stream:
            answer = list(answer)[-1].response
        reported = answer.output[0].content[0].logprobs
        assert [(token.token, token.logprob, token.bytes) for token in reported] == [("Hi", -1.0, [72, 105])]
        assert pipeline.last.params["logprobs"] == 0


def test_a_failure_after_the_first_event_is_the_last_event(api, pipeline):
    pipeline.error, pipeline.error_after = RuntimeError("a stage broke"), 2
    events = list(api.responses.create(model="scripted", input="Hi", stream=True))
    assert events[-1].type == "response.failed"
    assert events[-1].response.error.message == "a stage broke"
    assert events[-1].response.output[0].content[0].text == "Hello"
    pipeline.error_after = 0
    with pytest.raises(openai.InternalServerError, match="a stage broke"):
        api.responses.create(model="scripted", input="Hi", stream=True)


def test_cancelling(api, pipeline):
    pipeline.hangs_after = 2
    events = []
    begun = threading.Event()

    def read():
        for event in api.responses.create(model="scripted", input="Hi", stream=True):
            events.append(event)
            if event.type == "response.output_text.delta":
                begun.set()

    reading = threading.Thread(target=read)
    reading.start()
    assert begun.wait(60)
    response_id = events[0].response.id
    assert api.responses.retrieve(response_id).status == "in_progress"
    while not any(running.waiter for running in list(pipeline.running.values())):
        pass
    assert api.responses.cancel(response_id).status == "cancelled"
    reading.join()
    assert (events[-1].type, events[-1].response.status) == ("response.incomplete", "cancelled")
    assert api.responses.retrieve(response_id).output_text == "Hello"
    with pytest.raises(openai.BadRequestError, match="nothing to cancel"):
        api.responses.cancel(response_id)
    with pytest.raises(openai.NotFoundError):
        api.responses.cancel("resp_none")


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({"background": True}, "background", "unsupported_value"),
        ({"conversation": "x"}, "conversation", "unsupported_value"),
        ({"truncation": "auto"}, "truncation", "invalid_value"),
        ({"tools": [{"type": "web_search"}]}, "tools[0]", "invalid_type"),
        ({"tool_choice": {"type": "function", "name": "f"}}, "tool_choice", "invalid_value"),
        ({"tool_choice": "required"}, "tool_choice", "invalid_value"),
        ({"reasoning": {"summary": "auto"}}, "reasoning.summary", "unsupported_value"),
        ({"text": {"format": {"type": "grammar"}}}, "text.format", "invalid_type"),
        ({"include": ["file_search_call.results"]}, "include[0]", "invalid_value"),
        ({"input": [{"type": "computer_call"}]}, "input[0]", "invalid_type"),
        ({"input": []}, "input", "invalid_value"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "x"}]}]},
            "input[0].content[0]",
            "unsupported_value",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            "input[0].content[0]",
            "unsupported_value",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "x"}]}]},
            "input[0].content[0].image_url",
            "missing_required_parameter",
        ),
        ({"inputs": "x"}, "inputs", "unknown_parameter"),
    ],
)
def test_what_cannot_be_honoured_is_refused(http, pipeline, body, param, code):
    answer = http.post("/v1/responses", json={"input": "Hi", **body})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (400, param, code), error
    assert pipeline.requests == []


async def test_owners_do_not_see_each_others_responses():
    keys = [{"authorization": f"Bearer {key}"} for key in ("one", "two")]
    async with served(access=Access(api_keys=("one", "two"))) as server:

        async def ask(method, path, key, **body):
            answer = await server.http.request(method, path, headers=keys[key], **body)
            return answer.status_code, answer.json()

        status, response = await ask("POST", "/v1/responses", 0, json={"input": "hi"})
        assert status == 200
        path = f"/v1/responses/{response['id']}"
        for method, url in (
            ("GET", path),
            ("DELETE", path),
            ("POST", f"{path}/cancel"),
            ("GET", f"{path}/input_items"),
        ):
            status, body = await ask(method, url, 1)
            assert (status, body["error"]["code"]) == (404, "response_not_found")
        follows = {"input": "hi", "previous_response_id": response["id"]}
        assert (await ask("POST", "/v1/responses", 1, json=follows))[0] == 404
        assert (await ask("POST", "/v1/responses", 0, json=follows))[0] == 200
        assert (await ask("GET", path, 0))[1] == response
