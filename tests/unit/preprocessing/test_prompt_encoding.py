"""Prompts from a checkpoint's tokenizer and chat template."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from sglang_omni.preprocessing.text import PromptEncoder
from sglang_omni.proto import RequestError

WORDS = ["<s>", "hello", "world", "user", "assistant", ":", "system"]
TEMPLATE = (
    "{% for message in messages %}{{ message.role }} : {{ message.content }} {% endfor %}"
    "{% if add_generation_prompt %}assistant :{% endif %}"
)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    tokenizer = Tokenizer(
        models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="<s>")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text(json.dumps({"max_position_embeddings": 16, "vocab_size": 8}))
    configure(tmp_path, chat_template=TEMPLATE)
    return tmp_path


def configure(checkpoint: Path, **settings: object) -> None:
    (checkpoint / "tokenizer_config.json").write_text(json.dumps(settings))


def user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def test_messages_go_through_the_template(checkpoint: Path) -> None:
    # No second start token: the template writes what the model is to see.
    assert PromptEncoder(checkpoint).encode_messages(user("hello world")) == [3, 5, 1, 2, 4, 5]


def test_a_plain_prompt_gets_the_tokenizers_start_token(checkpoint: Path) -> None:
    assert PromptEncoder(checkpoint).encode_prompt("hello world") == [0, 1, 2]


@pytest.mark.parametrize("place", ["jinja", "json", "named"])
def test_other_places_of_the_template(checkpoint: Path, place: str) -> None:
    source = "system : {{ messages[0].content }}"
    configure(checkpoint)
    if place == "jinja":
        (checkpoint / "chat_template.jinja").write_text(source)
    elif place == "json":
        (checkpoint / "chat_template.json").write_text(json.dumps({"chat_template": source}))
    else:
        entries = [{"name": "tool_use", "template": "x"}, {"name": "default", "template": source}]
        configure(checkpoint, chat_template=entries)

    assert PromptEncoder(checkpoint).render(user("hello")) == "system : hello"


def test_what_templates_rely_on(checkpoint: Path) -> None:
    source = """
{% for message in messages %}
    {% if loop.index0 == 1 %}{% break %}{% endif %}
{{ bos_token }} {{ eos_token }} {{ message | tojson }} {{ strftime_now('%Y') | length }}
{% endfor %}
"""
    configure(checkpoint, chat_template=source, bos_token="<s>", eos_token={"content": "</s>"})

    text = PromptEncoder(checkpoint).render([*user("é<b>"), *user("two")])

    assert text.strip() == '<s> </s> {"role": "user", "content": "é<b>"} 4'


def test_template_options_reach_the_template_but_replace_nothing(checkpoint: Path) -> None:
    configure(checkpoint, chat_template="{{ enable_thinking }} {{ messages | length }}")

    options = {"enable_thinking": False, "messages": []}

    assert PromptEncoder(checkpoint).render(user("hello"), options) == "False 1"


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('Roles must alternate') }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ undefined.field }}",
    ],
)
def test_a_template_that_refuses_is_the_requests_error(checkpoint: Path, source: str) -> None:
    configure(checkpoint, chat_template=source)

    with pytest.raises(RequestError, match="chat template refuses") as refused:
        PromptEncoder(checkpoint).encode_messages(user("hello"))
    assert refused.value.param == "messages"


def test_without_a_template_chats_are_refused(checkpoint: Path) -> None:
    configure(checkpoint)

    with pytest.raises(RequestError, match="no chat template"):
        PromptEncoder(checkpoint).encode_messages(user("hello"))


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        ("", "prompt is empty"),
        ("hello \ud800", "no valid Unicode"),
        ("hello " * 15, "16 tokens long"),  # which leaves no room for an answer
    ],
)
def test_a_prompt_that_cannot_be_answered_is_refused(checkpoint: Path, prompt: str, said: str) -> None:
    with pytest.raises(RequestError, match=said):
        PromptEncoder(checkpoint).encode_prompt(prompt)


def test_a_prompt_over_the_context_is_refused_with_both_lengths(checkpoint: Path) -> None:
    prompts = PromptEncoder(checkpoint)

    with pytest.raises(RequestError, match=r"20 tokens long.* holds 16 tokens") as refused:
        prompts.encode_messages(user("hello " * 16))
    assert refused.value.code == "context_length_exceeded"
    assert refused.value.param == "messages"
    assert len(prompts.encode_prompt("hello " * 14)) == 15


def test_the_context_can_be_made_shorter_only(checkpoint: Path) -> None:
    assert PromptEncoder(checkpoint, context_length=4).context_length == 4
    assert PromptEncoder(checkpoint, context_length=64).context_length == 16


@pytest.mark.parametrize(
    ("token_ids", "text"),
    [
        ([], "is empty"),
        ([1, 8], r"\[1\] is 8; the vocabulary has the ids 0 to 7"),
        ([-1], r"\[0\] is -1"),
        ([1, "2"], r"\[1\] must be an integer"),
        ([True], r"\[0\] must be an integer"),
        ([1] * 16, "16 tokens long"),
    ],
)
def test_unacceptable_token_ids_are_refused(checkpoint: Path, token_ids: list, text: str) -> None:
    with pytest.raises(RequestError, match=text) as refused:
        PromptEncoder(checkpoint).check_token_ids(token_ids)
    assert refused.value.param == "prompt_token_ids"


def test_acceptable_token_ids_pass(checkpoint: Path) -> None:
    assert PromptEncoder(checkpoint).check_token_ids((7, 0)) == [7, 0]


def test_a_directory_without_a_tokenizer_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"tokenizer\.json not found"):
        PromptEncoder(tmp_path)


@pytest.mark.parametrize("named", [{"name": "hello"}, {"name": None}, {}])
def test_a_name_that_the_template_has_a_place_for(checkpoint: Path, named: dict[str, str]) -> None:
    configure(checkpoint, chat_template="{% for m in messages %}{{ m.name or 'user' }} : {% endfor %}")
    messages = [{"role": "user", "content": "world", **named}]

    assert PromptEncoder(checkpoint).render(messages) == f"{named.get('name') or 'user'} : "


def test_a_name_that_the_template_leaves_out_is_refused(checkpoint: Path) -> None:
    messages = [*user("hello"), {"role": "user", "content": "world", "name": "Ann"}]

    with pytest.raises(RequestError, match="no place for names") as refused:
        PromptEncoder(checkpoint).encode_messages(messages)
    assert (refused.value.param, refused.value.code) == ("messages[1].name", "unsupported_parameter")


def test_an_answer_longer_than_the_context_is_refused_with_all_lengths(checkpoint: Path) -> None:
    prompts = PromptEncoder(checkpoint)

    prompts.check_answer(6, {"max_new_tokens": 10})
    prompts.check_answer(6, {})
    with pytest.raises(RequestError, match=r"is 11 .* 6 tokens long.* 16 tokens.* at most 10") as refused:
        prompts.check_answer(6, {"max_new_tokens": 11})
    assert (refused.value.param, refused.value.code) == ("max_tokens", "context_length_exceeded")


def test_a_stop_token_outside_the_vocabulary_is_refused(checkpoint: Path) -> None:
    prompts = PromptEncoder(checkpoint)

    prompts.check_answer(1, {"stop_token_ids": [7]})
    with pytest.raises(RequestError, match="8 is not in the vocabulary, which has the ids 0 to 7"):
        prompts.check_answer(1, {"stop_token_ids": [7, 8]})


BROKEN = "{% for message in messages %}\n{{ message.content | shout }}\n{% endfor %}"


@pytest.mark.parametrize(
    ("place", "source", "said"),
    [
        ("chat_template.jinja", BROKEN, r"chat_template\.jinja, line 2: No filter named 'shout'"),
        ("chat_template.jinja", "\n\n{% for %}", r"chat_template\.jinja, line 3: Expected an expression"),
        (
            "tokenizer_config.json",
            "{{ messages",
            r"tokenizer_config\.json, line 1: unexpected end of template",
        ),
        ("chat_template.jinja", "{% for x in y %}" * 30 + "{% endfor %}" * 30, "too many statically nested"),
    ],
)
def test_a_template_that_cannot_be_compiled_costs_chats_alone(
    checkpoint: Path, place: str, source: str, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    configure(checkpoint, chat_template=source if place == "tokenizer_config.json" else None)
    if place == "chat_template.jinja":
        (checkpoint / place).write_text(source)

    prompts = PromptEncoder(checkpoint)

    (warning,) = caplog.messages
    assert str(checkpoint / place) in warning
    assert re.search(said.split(", ")[-1], warning)
    assert prompts.encode_prompt("hello world") == [0, 1, 2]
    for _ in range(2):
        with pytest.raises(
            RequestError, match=f"cannot be compiled: .*{said}.*--chat-template FILE"
        ) as refused:
            prompts.encode_messages(user("hello"))
        assert (refused.value.status, refused.value.code) == (400, "unsupported_task")
        assert str(checkpoint) not in refused.value.message
    assert len(caplog.messages) == 1


def test_a_broken_template_for_tools_leaves_the_others(checkpoint: Path) -> None:
    (checkpoint / "chat_template.jinja").write_text("hello")
    (checkpoint / "additional_chat_templates").mkdir()
    (checkpoint / "additional_chat_templates" / "tool_use.jinja").write_text("{% if %}")
    prompts = PromptEncoder(checkpoint)

    assert prompts.render(user("x")) == "hello"
    with pytest.raises(RequestError, match=r"tool_use\.jinja, line 1"):
        prompts.render(user("x"), tools=[{"type": "function"}])


def test_several_templates_without_a_default(checkpoint: Path) -> None:
    configure(
        checkpoint, chat_template=[{"name": "rag", "template": "x"}, {"name": "tool_use", "template": "y"}]
    )
    prompts = PromptEncoder(checkpoint)

    with pytest.raises(RequestError, match=r"several chat templates \(rag, tool_use\), but no default"):
        prompts.render(user("hello"))
    assert prompts.render(user("hello"), tools=[{}]) == "y"


def test_another_template_than_the_checkpoints(checkpoint: Path, tmp_path: Path) -> None:
    (checkpoint / "chat_template.jinja").write_text("{% if %}")
    other = tmp_path / "other.jinja"
    other.write_text("{{ messages[0].content }} hello")

    assert PromptEncoder(checkpoint, chat_template=other).render(user("world")) == "world hello"
    # It was asked for by its name, so that the server does not start with less.
    other.write_text("{% if %}")
    with pytest.raises(ValueError, match=r"--chat-template .*other\.jinja: line 1: Expected an expression"):
        PromptEncoder(checkpoint, chat_template=other)
    with pytest.raises(ValueError, match=r"cannot be read: .*No such file"):
        PromptEncoder(checkpoint, chat_template=tmp_path / "none.jinja")


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("\n{{ 'a' + 1 }}", "fails in line 2 at the messages: TypeError: can only concatenate str"),
        ("{{ messages[0].content + 1 }}", "fails in line 1 at the messages: TypeError"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{{ messages[0] | tojson(indent=1, colour='red') }}", "TypeError"),
        ("{{ '%d' % messages[0].content }}", "TypeError"),
        ("{% for i in range(10 ** 9) %}{% endfor %}", "OverflowError: Range too big"),
    ],
)
def test_a_template_that_fails_is_the_requests_error(checkpoint: Path, source: str, said: str) -> None:
    (checkpoint / "chat_template.jinja").write_text(source)

    with pytest.raises(RequestError, match=re.escape(said)) as refused:
        PromptEncoder(checkpoint).encode_messages(user("hello"))
    assert (refused.value.status, refused.value.param) == (400, "messages")


PROCESSOR = {
    "processor_config.json": '{"chat_template": "own"}',
    "chat_template.json": '{"chat_template": "old"}',
}


@pytest.mark.parametrize(
    ("files", "of_tokenizer", "of_processor"),
    [
        ({}, "configured", "configured"),
        (PROCESSOR, "configured", "own"),
        (
            {"processor_config.json": "{}", "chat_template.json": PROCESSOR["chat_template.json"]},
            "configured",
            "old",
        ),
        (
            {"chat_template.jinja": "file", "chat_template.json": PROCESSOR["chat_template.json"]},
            "file",
            "old",
        ),
        ({"chat_template.jinja": "file"}, "file", "file"),
    ],
)
def test_a_tokenizers_template_and_a_processors(
    checkpoint: Path, files: dict[str, str], of_tokenizer: str, of_processor: str
) -> None:
    configure(checkpoint, chat_template="configured")
    for name, text in files.items():
        (checkpoint / name).write_text(text)

    assert PromptEncoder(checkpoint).render(user("x")) == of_tokenizer
    assert PromptEncoder(checkpoint, of_processor=True).render(user("x")) == of_processor
