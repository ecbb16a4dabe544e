"""Conversations with tools and reasoning as prompts, and how their answers are to be read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from sglang_omni.answers.chat import ChatPrompts
from sglang_omni.preprocessing.messages import parse_messages
from sglang_omni.preprocessing.text import PromptEncoder
from sglang_omni.proto import OmniRequest, RequestError

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "<|end|> of <b>",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
CLOCK = {"type": "function", "function": {"name": "clock"}}
USER = {"role": "user", "content": "Hi"}
CALLED = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {
            "id": "call_12345678",
            "type": "function",
            "function": {"name": "weather", "arguments": '{"city": "Ulm"}'},
        }
    ],
}
RESULT = {"role": "tool", "tool_call_id": "call_12345678", "name": "weather", "content": "rain"}

# The parts of published templates that matter: where tools go, and the marks of calls and reasoning.
QWEN = """\
{%- if tools %}{{ '<tools>' }}{%- for tool in tools %}{{ tool | tojson }}{%- endfor %}
{{- '</tools>' }}{%- endif %}
{%- for m in messages %}{{ '<|start|>' + m.role + ':' }}
{%- if m.reasoning_content %}{{ '<think>' + m.reasoning_content + '</think>' }}{%- endif %}{{ m.content }}
{%- for call in m.tool_calls or [] %}{{ '<tool_call>' + call.function.name + call.function.arguments.city }}
{%- endfor %}{{ '<|end|>' }}{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start|>assistant:' }}
{%- if enable_thinking is defined and not enable_thinking %}{{ '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}"""
R1 = "{% for m in messages %}{{ m.role + m.content.split('</think>')[-1] }}{% endfor %}{{ '<think>\\n' }}"
MISTRAL = """\
{%- if tools %}{{ '[AVAILABLE_TOOLS]' + (tools | tojson) }}{%- endif %}
{%- for m in messages %}{{ m.role + m.content }}
{%- for call in m.tool_calls or [] %}{%- if call.id|length != 9 %}{{ raise_exception('ids!') }}{%- endif %}
{{- '[TOOL_CALLS]' + call.id }}{%- endfor %}
{%- if m.role == 'tool' %}{{ m.tool_call_id }}{%- endif %}{%- endfor %}"""
PLAIN = (
    "{% for m in messages %}{{ '<|start|>' + m.role + ':' + m.content + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start|>assistant:' }}{% endif %}"
)
STRANGE = "{{ tools }}{% for m in messages %}{{ m.content }}{% endfor %}{{ reasoning_effort }}"

Make = Callable[..., ChatPrompts]


@pytest.fixture
def chats(tmp_path: Path) -> Make:
    def make(template: str | list[dict[str, str]], **parsers: str) -> ChatPrompts:
        tokenizer = Tokenizer(models.WordLevel({"?": 0}, unk_token="?"))
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        tokenizer.add_special_tokens(["<|start|>", "<|end|>"])
        tokenizer.add_tokens(
            [AddedToken("<think>", normalized=False), AddedToken("</think>", normalized=False)]
        )
        tokenizer.save(str(tmp_path / "tokenizer.json"))
        (tmp_path / "config.json").write_text(json.dumps({"max_position_embeddings": 4096}))
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
        return ChatPrompts(PromptEncoder(tmp_path), **parsers)

    return make


def rendered(chats: ChatPrompts, *messages: dict[str, Any], **params: Any) -> tuple[str, Any]:
    """The prompt's text as its tokens would be decoded, and the reading of the answer."""
    parsed, _ = parse_messages(messages, ())
    plain = [{**message, "content": "\n".join(message["content"])} for message in parsed]
    text, reading = chats.render(plain, OmniRequest(None, params, {"task": "chat"}))
    return chats.prompts.tokenizer.shown(text), reading


def test_tools_calls_and_results_reach_the_template(chats: Make) -> None:
    text, reading = rendered(chats(QWEN), USER, CALLED, RESULT, tools=[WEATHER, CLOCK])
    tools = json.dumps(WEATHER) + json.dumps(CLOCK)
    assert text == (
        f"<tools>{tools}</tools><|start|>user:Hi<|end|><|start|>assistant:<tool_call>weatherUlm<|end|>"
        "<|start|>tool:rain<|end|><|start|>assistant:"
    )
    assert reading == {"calls": "hermes", "thinking": "qwen3", "inside": False, "sampling": {}}


def test_what_tools_say_writes_no_control_tokens(chats: Make) -> None:
    made = chats(QWEN)
    parsed = [{"role": "user", "content": "Hi"}]
    text, _ = made.render(parsed, OmniRequest(None, {"tools": [WEATHER]}, {}))
    assert "<|end|> of" not in text
    assert text.count("<|end|>") == 1


def test_a_template_for_tools_of_its_own(chats: Make) -> None:
    made = chats([{"name": "default", "template": PLAIN}, {"name": "tool_use", "template": QWEN}])
    assert "<tools>" in rendered(made, USER, tools=[CLOCK])[0]
    assert rendered(made, USER)[0] == "<|start|>user:Hi<|end|><|start|>assistant:"


def test_a_template_without_tools_gets_them_as_text(chats: Make) -> None:
    made = chats(PLAIN)
    system = {"role": "system", "content": "Be brief."}
    again = {**CALLED, "content": "I look."}
    text, reading = rendered(made, system, USER, again, RESULT, RESULT, tools=[CLOCK])
    first, rest = text.split("<|end|>", 1)
    assert first.startswith("<|start|>system:Be brief.\n\nYou can call functions")
    assert json.dumps(CLOCK) in first
    assert rest == (
        '<|start|>user:Hi<|end|><|start|>assistant:I look.\n<tool_call>\n{"name": "weather", "arguments": '
        '{"city": "Ulm"}}\n</tool_call><|end|><|start|>user:<tool_response>\nrain\n</tool_response>\n'
        "<tool_response>\nrain\n</tool_response><|end|><|start|>assistant:"
    )
    assert reading["calls"] == "hermes"
    # The calls of earlier turns are told even if no tools are left.
    text, reading = rendered(made, USER, CALLED, RESULT)
    assert text.startswith("<|start|>user:Hi<|end|><|start|>assistant:<tool_call>")
    assert reading is None
    assert rendered(made, USER, tools=[CLOCK])[0].startswith("<|start|>system:You can call functions")


def test_ids_of_calls_as_mistrals_templates_want_them(chats: Make) -> None:
    text, reading = rendered(chats(MISTRAL), USER, CALLED, RESULT, tools=[CLOCK])
    assert text.endswith("userHiassistant[TOOL_CALLS]l12345678toolrainl12345678")
    assert reading["calls"] == "mistral"


def test_broken_arguments_of_an_earlier_call_stay_as_they_are(chats: Make) -> None:
    call = {"function": {"name": "f", "arguments": "{oops"}}
    text, _ = rendered(chats(PLAIN), USER, {"role": "assistant", "tool_calls": [call]}, RESULT)
    assert '{"name": "f", "arguments": "{oops"}' in text


@pytest.mark.parametrize("choice", ["none", None])
def test_no_tools_no_reading(chats: Make, choice: str | None) -> None:
    made = chats(PLAIN)
    assert rendered(made, USER) == ("<|start|>user:Hi<|end|><|start|>assistant:", None)
    if choice == "none":
        assert rendered(made, USER, tools=[CLOCK], tool_choice=choice) == rendered(made, USER)


@pytest.mark.parametrize(
    ("choice", "names"),
    [("required", ["weather", "clock"]), ({"type": "function", "function": {"name": "clock"}}, ["clock"])],
)
def test_a_forced_call_has_a_grammar(chats: Make, choice: Any, names: list[str]) -> None:
    params = {"tools": [WEATHER, CLOCK], "tool_choice": choice}
    _, reading = rendered(chats(PLAIN), USER, **params)
    tag = json.loads(reading["sampling"]["structural_tag"])["format"]
    assert [each["begin"] for each in tag["tags"]] == [
        f'<tool_call>\n{{"name": "{name}", "arguments": ' for name in names
    ]
    assert tag["stop_after_first"] is (choice != "required")
    assert reading["sampling"]["json_schema"] is None
    # How the model writes calls is not known: a list of calls in JSON is.
    _, reading = rendered(chats(STRANGE), USER, **params)
    assert reading["calls"] == "plain"


def test_strict_tools_and_formats_of_the_content(chats: Make) -> None:
    made = chats(PLAIN)
    strict = {"type": "function", "function": {"name": "f", "strict": True}}
    (_, free), (_, held) = (rendered(made, USER, tools=[tool]) for tool in (CLOCK, strict))
    assert free["sampling"] == {}
    assert json.loads(held["sampling"]["structural_tag"])["format"]["type"] == "triggered_tags"
    _, either = rendered(made, USER, tools=[CLOCK], json_schema='{"type": "object"}')
    kinds = [each["type"] for each in json.loads(either["sampling"]["structural_tag"])["format"]["elements"]]
    assert kinds == ["json_schema", "tags_with_separator"]
    assert either["sampling"]["json_schema"] is None


def test_reasoning_is_reported_by_the_template_and_the_prompt(chats: Make) -> None:
    made = chats(QWEN)
    assert rendered(made, USER)[1] == {"calls": None, "thinking": "qwen3", "inside": False, "sampling": {}}
    off = {"chat_template_kwargs": {"enable_thinking": False}}
    assert rendered(made, USER, **off)[1] is None
    _, reading = rendered(made, USER, json_schema='{"type": "object"}')
    assert json.loads(reading["sampling"]["structural_tag"])["format"]["type"] == "or"
    _, reading = rendered(chats(R1), USER)
    assert reading["inside"] is True
    assert rendered(chats(R1, reasoning_parser="none"), USER)[1] is None


def test_reasoning_of_earlier_answers_reaches_the_template(chats: Make) -> None:
    for name in ("reasoning", "reasoning_content"):
        answer = {"role": "assistant", "content": "Yo", name: "Hm."}
        assert "<think>Hm.</think>Yo" in rendered(chats(QWEN), USER, answer, USER)[0]
        other = "{% for m in messages %}{{ m.thinking }}{% endfor %}"
        assert rendered(chats(other), USER, answer, USER)[0] == "Hm."


def test_an_answer_that_goes_on(chats: Make) -> None:
    made, begun = chats(PLAIN), {"role": "assistant", "content": "One, two, "}
    text, _ = rendered(made, USER, begun, continue_final_message=True)
    assert text == "<|start|>user:Hi<|end|><|start|>assistant:One, two, "
    assert rendered(made, USER, begun, add_generation_prompt=False)[0].endswith("One, two, <|end|>")
    # The template's own text holds it, too.
    text, _ = rendered(made, USER, {"role": "assistant", "content": "end"}, continue_final_message=True)
    assert text == "<|start|>user:Hi<|end|><|start|>assistant:end"


def test_calls_of_a_template_that_writes_them_and_has_no_place_for_tools(chats: Make) -> None:
    call = "{% for c in m.tool_calls %}[{{ c.function.name }} {{ c.function.arguments }}]{% endfor %}"
    made = chats("{% for m in messages %}{{ m.content }}" + call + ";{% endfor %}")
    # Their text is as the client has sent it: this template prints it as it is.
    assert rendered(made, USER, CALLED, RESULT)[0] == 'Hi;[weather {"city": "Ulm"}];rain;'
    assert "<tool_call>" in rendered(made, USER, CALLED, RESULT, tools=[CLOCK])[0]


def test_parsers_by_name(chats: Make) -> None:
    made = chats(STRANGE, tool_call_parser="pythonic", reasoning_parser="glm45")
    _, reading = rendered(made, USER, tools=[CLOCK])
    assert (reading["calls"], reading["thinking"]) == ("pythonic", "glm45")
    with pytest.raises(
        ValueError, match=r"tool_call_parser: no parser 'herms'; there are hermes, .*pythonic"
    ):
        chats(PLAIN, tool_call_parser="herms")
    with pytest.raises(ValueError, match="reasoning_parser: no parser 'x'; there are qwen3"):
        chats(PLAIN, reasoning_parser="x")


def test_an_effort_for_a_template_that_has_a_place(chats: Make) -> None:
    assert rendered(chats(STRANGE), USER, reasoning_effort="low")[0].endswith("low")


@pytest.mark.parametrize(
    ("template", "messages", "params", "param", "said"),
    [
        (STRANGE, [USER], {"tools": [CLOCK]}, "tools", "--tool-call-parser"),
        (PLAIN, [USER], {"reasoning_effort": "low"}, "reasoning_effort", "no place for it"),
        (QWEN, [USER], {"reasoning_effort": "low"}, "reasoning_effort", "it has: enable_thinking"),
        (
            PLAIN,
            [USER],
            {"continue_final_message": True},
            "continue_final_message",
            "must be the assistant's",
        ),
        (
            PLAIN,
            [USER, {"role": "assistant", "content": "x"}],
            {"continue_final_message": True, "add_generation_prompt": True},
            "continue_final_message",
            "not together",
        ),
        (
            QWEN,
            [USER],
            {"chat_template_kwargs": {"tools": [CLOCK]}},
            "chat_template_kwargs.tools",
            "own field 'tools'",
        ),
        (
            QWEN,
            [USER],
            {"chat_template_kwargs": {"documents": ["a"]}},
            "chat_template_kwargs.documents",
            "list of objects",
        ),
        (PLAIN, [USER], {"tools": "f"}, "tools", "must be a list"),
        (PLAIN, [USER], {"tools": [{"name": "f"}]}, "tools[0]", "must be {'type'"),
        (PLAIN, [USER], {"tools": [CLOCK], "tool_choice": "any"}, "tool_choice", "must be 'none'"),
        (
            PLAIN,
            [USER, {"role": "assistant", "tool_calls": [{}]}],
            {},
            "messages[1].tool_calls[0]",
            "must be",
        ),
    ],
)
def test_refusals(
    chats: Make, template: str, messages: list[Any], params: dict[str, Any], param: str, said: str
) -> None:
    with pytest.raises(RequestError, match=said) as refused:
        rendered(chats(template), *messages, **params)
    assert refused.value.param == param
