"""Chat templates render as in transformers: those of ``family_templates``, and published ones.

The former are written for the tests: the wording, the tokens and the layout are their own, and what is a
family's is which of Jinja's and transformers' constructs it needs and which forms of messages it reads. A
family with several templates is a folder.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from datetime import datetime
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from sglang_omni.answers.chat import ChatPrompts
from sglang_omni.preprocessing import template_language
from sglang_omni.preprocessing.messages import parse_messages, with_parts
from sglang_omni.preprocessing.template_files import special_tokens
from sglang_omni.preprocessing.text import PromptEncoder
from sglang_omni.proto import OmniRequest, RequestError

FOLDER = Path(__file__).parent / "family_templates"
FAMILIES = sorted(path.stem for path in FOLDER.iterdir())
# Beside the project; it may be missing.
PUBLISHED = Path(__file__).parents[4] / "shared" / "published"

# Their first and last characters are hidden in messages; quotes and letters that JSON escapes among them.
SPECIAL = ["<|im_start|>", "<|im_end|>", "[INST]", "[/INST]", "<｜User｜>", "｜end｜", '"""', "<s>", "</s>"]
NAMED = {
    "bos_token": "<s>",
    "eos_token": {"__type": "AddedToken", "content": "</s>", "lstrip": False, "rstrip": False},
    "pad_token": None,
    "image_token": "<|image|>",
    "extra_special_tokens": {"audio_token": "<|audio|>"},
}
TEXT = 'Wie <b>geht</b> | \'s "dir" [x] \\n é 漢｜字 🙂?\n\n'

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": 'How it is <there> | "now" — 天気.',
        "parameters": {
            "type": "object",
            "properties": {
                "|zone": {"type": ["string", "null"], "default": None},
                "city": {"type": "string", "enum": ["Ulm", "Köln <3"]},
                "Days": {"type": "array", "items": {"type": "integer"}, "default": [1, 2.5, True]},
            },
            "required": ["city"],
        },
    },
}
CLOCK = {
    "type": "function",
    "function": {"name": "clock", "description": "Time.", "parameters": {"type": "object", "properties": {}}},
}


def turn(role: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def call(arguments: Any, name: str = "weather", call_id: str = "abcdefghi") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


ARGUMENTS = {"city": "Ulm <|im_end|>", "Days": [1], "|zone": None, "<a>": 'é "q" 漢｜字 \\'}
SYSTEM, USER, ANSWER = turn("system", f" Be {TEXT}"), turn("user", TEXT), turn("assistant", f" Yes. {TEXT}")
THOUGHT = turn("assistant", "<think>\nhm <b>\n</think>\n\nYes.")
RESULT = turn("tool", "rain </tool_response> |", tool_call_id="abcdefghi", name="weather")


def called(content: Any = "", arguments: Any = ARGUMENTS) -> dict[str, Any]:
    return turn("assistant", content, tool_calls=[call(arguments)])


def parts(*texts: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text} for text in texts]


CONVERSATIONS: list[list[dict[str, Any]]] = [
    [USER],
    [SYSTEM, USER],
    [SYSTEM, SYSTEM, USER],
    [USER, ANSWER, USER],
    [SYSTEM, USER, ANSWER, turn("user", "/no_think Now?"), ANSWER],
    [turn("system", "Be brief. /no_think"), USER, THOUGHT],
    [USER, THOUGHT, USER, {**ANSWER, "reasoning_content": "\nWell <x>.\n"}],
    [USER, USER],
    [ANSWER, USER],
    [turn("user", "")],
    [turn("user", parts("One.", TEXT))],
    [
        turn("system", parts("Be", "brief")),
        turn("user", parts(TEXT)),
        turn("assistant", parts("a", "b")),
        USER,
    ],
    [turn("user", [{"type": "image"}, *parts("What?"), {"type": "audio"}, {"type": "image"}])],
    [turn("user", None)],
    [USER, called(), RESULT],
    [USER, called(None), RESULT, turn("assistant", "It rains."), USER],
    [SYSTEM, USER, called("I look. <|im_end|>"), RESULT, RESULT, ANSWER],
    [USER, called(None, json.dumps(ARGUMENTS)), RESULT],
    [USER, turn("assistant", "", tool_calls=[call(ARGUMENTS), call({}, "clock", "short")]), RESULT],
    [USER, {"role": "assistant", "tool_calls": [call(ARGUMENTS)]}, turn("tool", parts("a", "b"))],
    [RESULT],
    [turn("user", "Hi", name="Ann")],
]
TOOLS: list[list[dict[str, Any]] | None] = [None, [WEATHER, CLOCK]]
DOCUMENTS = [{"title": "A <b>", "text": "漢｜"}]
OPTIONS: list[dict[str, Any]] = [
    {},
    {
        "add_generation_prompt": True,
        "documents": DOCUMENTS,
        "tools_in_user_message": False,
        "date_string": "x",
    },
    {"add_generation_prompt": True, "enable_thinking": False, "bos_token": "<bos>", "add_vision_id": True},
]
ALL = frozenset({"system", "user", "assistant", "tool"})


class Reads(NamedTuple):
    """What a family's template makes a text of, as its source says."""

    texts: frozenset[str] = ALL
    parts: frozenset[str] = frozenset()
    calls: bool = True
    arguments_as_text: bool = False
    nothing: str | None = ""


READS = {name: Reads() for name in ("gpt-oss", "hermes", "llama-3.1", "mistral", "qwen2.5", "qwen3")} | {
    "command-r": Reads(texts=ALL - {"tool"}, calls=False),
    "deepseek-r1": Reads(arguments_as_text=True, nothing=None),
    # Of a system message in parts it writes the first.
    "gemma-3": Reads(texts=ALL - {"tool"}, parts=frozenset({"user", "assistant"}), calls=False),
    "glm-4.5": Reads(parts=ALL),
    "hermes": Reads(calls=False),
    "kimi-k2": Reads(parts=ALL),
    "phi-4-mini": Reads(calls=False),
    "qwen-omni": Reads(parts=ALL, calls=False),
    "smollm3": Reads(calls=False),
    "smolvlm": Reads(texts=frozenset(), parts=ALL - {"tool"}, calls=False),
}


class Frozen(datetime):
    @classmethod
    def now(cls, tz: Any = None) -> datetime:
        return datetime(2031, 2, 3, 4, 5, 6)


@pytest.fixture(scope="module", autouse=True)
def one_date() -> Iterator[None]:
    """The same in both renderers, whenever the tests run."""
    from transformers.utils import chat_template_utils

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chat_template_utils, "datetime", Frozen)
        patch.setattr(template_language, "datetime", Frozen)
        yield


def checkpoint(path: Path, **settings: Any) -> Path:
    """A tokenizer without templates."""
    tokenizer = Tokenizer(models.WordLevel({"?": 0}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.add_tokens([AddedToken("<tool_call>", normalized=False)])
    tokenizer.save(str(path / "tokenizer.json"))
    (path / "config.json").write_text(json.dumps({"max_position_embeddings": 100_000}))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", **NAMED, **settings}
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    return path


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with a family's templates; where they are differs, as among published ones."""
    name, path = request.param, tmp_path_factory.mktemp("family") / request.param
    path.mkdir()
    if (file := FOLDER / f"{name}.jinja").exists():
        shutil.copy(file, checkpoint(path) / "chat_template.jinja")
    elif name == "hermes":
        entries = [{"name": file.stem, "template": file.read_text()} for file in (FOLDER / name).iterdir()]
        checkpoint(path, chat_template=entries)
    else:
        shutil.copytree(FOLDER / name, checkpoint(path) / "additional_chat_templates")
        (path / "additional_chat_templates" / "default.jinja").rename(path / "chat_template.jinja")
    return path


class Theirs:
    def __init__(self, path: Path) -> None:
        from transformers import PreTrainedTokenizerFast

        self.tokenizer = PreTrainedTokenizerFast.from_pretrained(path)

    def render(
        self, messages: list[dict[str, Any]], *, tools: list[dict[str, Any]] | None = None, **given: Any
    ) -> str | None:
        """None if the template refuses or fails."""
        from transformers.utils.chat_template_utils import render_jinja_template

        # What `apply_chat_template` does; newer versions leave out what is None in a message before.
        try:
            template = self.tokenizer.get_chat_template(tools=tools)
            named = {**self.tokenizer.special_tokens_map, **given}
            return str(render_jinja_template([messages], tools=tools, chat_template=template, **named)[0][0])
        except Exception:  # noqa: BLE001  whatever a template raises
            return None


class Ours:
    def __init__(self, path: Path) -> None:
        self.prompts = PromptEncoder(path)
        self.chats = ChatPrompts(self.prompts, tool_call_parser="hermes")

    def render(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None = None,
        *,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        **options: Any,
    ) -> str | None:
        """What the templates make of messages as they are."""
        templates = self.prompts.templates
        hide = self.prompts.tokenizer.hide_all
        hidden = [self.prompts._hidden(message) for message in messages]
        try:
            text = templates.render(
                templates.choose(tools=tools is not None),
                hidden,
                hide(options),
                tools=hide(tools),
                add_generation_prompt=add_generation_prompt,
                continues=continue_final_message,
            )
        except RequestError:
            return None
        return self.prompts.tokenizer.shown(text)

    def asked(self, messages: list[dict[str, Any]], **params: Any) -> str | None:
        """What becomes of a client's messages."""
        try:
            text, _ = self.chats.render(
                with_parts(*parse_messages(messages, ())), OmniRequest(None, params, {})
            )
        except RequestError:
            return None
        return self.prompts.tokenizer.shown(text)


def test_the_text_is_that_of_transformers(family: Path) -> None:
    theirs, ours = Theirs(family), Ours(family)
    rendered = 0
    for messages, tools, options in product(CONVERSATIONS, TOOLS, OPTIONS):
        given = {"tools": tools, **options}
        expected = theirs.render(messages, **given)
        assert ours.render(messages, **given) == expected, (messages, given)
        rendered += expected is not None
    # Most are no conversations for each family; those that are were not all refused.
    assert rendered >= 20


def test_a_date_is_todays(tmp_path: Path) -> None:
    checkpoint(tmp_path, chat_template="{{ strftime_now('%d %B %Y, %H:%M') }}")
    assert Ours(tmp_path).render([USER]) == Theirs(tmp_path).render([USER]) == "03 February 2031, 04:05"


def test_what_a_template_reads_is_found(family: Path) -> None:
    forms = Ours(family).prompts.templates.choose(tools=False).forms
    assert (
        Reads(forms.texts, forms.parts, forms.calls, forms.arguments_as_text, forms.nothing)
        == READS[family.name]
    )


JSON = '{"city":"Ulm",  "Days": [1]}'
# As OpenAI's clients send them.
SENT: list[list[dict[str, Any]]] = [
    [turn("system", "Be brief."), turn("user", parts("One.", "Two <b>."))],
    [turn("system", parts("Be", "brief.")), USER, turn("assistant", parts("a", "b")), USER],
    [USER, called(None, JSON), RESULT],
    [
        USER,
        called("I look.", JSON),
        turn("tool", parts("rain", "sun"), tool_call_id="abcdefghi", name="weather"),
    ],
    [USER, called(None, ""), RESULT, ANSWER, USER],
]


def test_a_clients_messages_are_as_the_template_takes_them(family: Path) -> None:
    """What transformers makes of the same messages in the form that the template is written for."""
    theirs, ours, reads = Theirs(family), Ours(family), READS[family.name]
    compared = 0

    def content(message: dict[str, Any]) -> Any:
        role, given = message["role"], message["content"]
        if not given:
            return reads.nothing
        if isinstance(given, str):
            return given if role in reads.texts or role not in reads.parts else parts(given)
        return given if role in reads.parts else "\n".join(part["text"] for part in given)

    for messages, tools in product(SENT, TOOLS):
        template = ours.prompts.templates.choose(tools=tools is not None)
        has_calls = not template.forms.calls and any("tool_calls" in message for message in messages)
        if "tools" not in template.variables and (tools is not None or has_calls):
            continue  # Written as text, which `test_chat_prompts.py` compares.
        plain = [{**message, "content": content(message)} for message in messages]
        for message in plain:
            if "tool_calls" in message:
                as_text = reads.arguments_as_text
                message["tool_calls"] = [
                    call(
                        each["function"]["arguments"] or "{}"
                        if as_text
                        else json.loads(each["function"]["arguments"] or "{}")
                    )
                    for each in message["tool_calls"]
                ]
        expected = theirs.render(plain, tools=tools, add_generation_prompt=True)
        assert ours.asked(messages, tools=tools) == expected, (messages, tools)
        compared += expected is not None
    assert compared >= 2


@pytest.mark.parametrize("last", ["One, two, ", " \n- a", "im", ["x", "<b> "], "tool_call>", " "])
def test_a_text_to_continue_is_the_end(family: Path, last: Any) -> None:
    reads = READS[family.name]
    texts = [last] if isinstance(last, str) else last
    content = parts(*texts) if len(texts) > 1 or not reads.texts else last
    messages = [USER, turn("assistant", content)]
    expected = Theirs(family).render(messages, continue_final_message=True)
    if not texts[-1].strip():
        # There is nothing to continue; transformers ends behind the white space.
        expected = None
    assert Ours(family).render(messages, continue_final_message=True) == expected


@pytest.mark.parametrize(
    "filter",
    [
        *("tojson", "tojson(true)", "tojson(ensure_ascii=True, indent=2)", "tojson(sort_keys=true)"),
        *("tojson(separators=(',', ':'))", "tojson(indent='|')", "tojson(false, none, (', ', '='), true)"),
        *("string", "join('|')", "list", "length"),
    ],
)
def test_values_are_written_as_by_transformers(tmp_path: Path, filter: str) -> None:
    """Hidden characters are neither escaped nor sorted as others than those that they stand for."""
    checkpoint(tmp_path, chat_template=f"{{{{ x | {filter} }}}}")
    values: list[Any] = [
        ARGUMENTS,
        WEATHER["function"],
        {"b": 1, '"a': [{"｜": "\\ufdd0 \\\\"}, "<"], "|": {"[": None}},
    ]
    theirs, ours = Theirs(tmp_path), Ours(tmp_path)
    for x in values:
        expected = theirs.render([USER], x=x)
        assert expected is not None
        assert ours.render([USER], x=x) == expected


SOURCES = {
    "file": {"chat_template.jinja": "file"},
    "file and folder": {"chat_template.jinja": "file", "additional_chat_templates/tool_use.jinja": "folder"},
    "folder alone": {
        "additional_chat_templates/tool_use.jinja": "folder",
        "additional_chat_templates/rag.jinja": "x",
    },
}
CONFIGURED: dict[str, Any] = {
    "none": None,
    "one": "configured",
    "named": [{"name": "default", "template": "configured"}, {"name": "tool_use", "template": "of tools"}],
    "no default": [{"name": "tool_use", "template": "of tools"}],
}


def write(path: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).write_text(text)


@pytest.mark.parametrize("files", ["no file", *SOURCES])
@pytest.mark.parametrize("configured", CONFIGURED)
def test_the_template_is_the_one_that_transformers_takes(tmp_path: Path, files: str, configured: str) -> None:
    checkpoint(tmp_path, chat_template=CONFIGURED[configured])
    write(tmp_path, SOURCES.get(files, {}))
    theirs, ours = Theirs(tmp_path), Ours(tmp_path)
    for tools in TOOLS:
        expected = theirs.render([USER], tools=tools)
        try:
            assert ours.render([USER], tools=tools) == expected
        except RequestError:
            assert expected is None


@pytest.mark.parametrize(
    "older", [None, {"bos_token": "<o>", "sep_token": {"content": "<p>"}, "unk_token": None}]
)
@pytest.mark.parametrize("added", [True, False])
def test_the_tokens_that_templates_name_are_those_of_transformers(
    tmp_path: Path, older: dict[str, Any] | None, added: bool
) -> None:
    own = {"added_tokens_decoder": {"1": {"content": "<|im_start|>", "special": True}}} if added else {}
    checkpoint(
        tmp_path,
        chat_template="x",
        vision_bos_token="<v>",
        add_bos_token=True,
        additional_special_tokens=["<y>"],
        **own,
    )
    if older is not None:
        (tmp_path / "special_tokens_map.json").write_text(json.dumps(older))
    theirs = Theirs(tmp_path).tokenizer.special_tokens_map
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert special_tokens(tmp_path, settings) == theirs
    assert {"bos_token", "eos_token", "audio_token", "vision_bos_token"} <= theirs.keys()


def test_published_templates(tmp_path: Path) -> None:
    """With their own tokens, if the folder of published files is there."""
    for file in PUBLISHED.glob("*/chat_template.json"):
        path = file.parent
        place = tmp_path / path.name
        place.mkdir()
        named = json.loads((path / "tokenizer_config.json").read_text())
        named = {name: value for name, value in named.items() if name.endswith(("_token", "_special_tokens"))}
        template = json.loads(file.read_text())["chat_template"]
        checkpoint(place, **{**named, "chat_template": template})
        theirs, ours = Theirs(place), Ours(place)
        rendered = 0
        for messages, tools, options in product(CONVERSATIONS, TOOLS, OPTIONS):
            given = {"tools": tools, **options}
            expected = theirs.render(messages, **given)
            assert ours.render(messages, **given) == expected, (path.name, messages, given)
            rendered += expected is not None
        assert rendered >= 20
