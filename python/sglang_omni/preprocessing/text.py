"""Encoding of messages and prompts as token ids, with a checkpoint's own tokenizer and chat template.

Uses only ``tokenizers`` and ``jinja2``: importing transformers takes longer than loading the model.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sglang_omni.preprocessing.chat_template import ChatTemplates
from sglang_omni.preprocessing.deadline import Check, go_on
from sglang_omni.preprocessing.tokenizing import TextTokenizer, check_unicode
from sglang_omni.proto import RequestError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

# The words of Qwen2 and its successors.
QWEN_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


class PromptEncoder:
    """The tokenizer and chat template of one checkpoint directory.

    Attributes:
        tokenizer: Reads only the template's control tokens as such.
        templates: The checkpoint's chat templates.
        context_length: Limit of prompt and answer together, in tokens.
    """

    def __init__(
        self,
        checkpoint: str | Path,
        *,
        context_length: int | None = None,
        chat_template: str | Path | None = None,
        of_processor: bool = False,
    ) -> None:
        """
        Args:
            checkpoint: Directory of the checkpoint.
            context_length: A lower limit than the checkpoint's ``max_position_embeddings``.
            chat_template: The file of a template to take instead of the checkpoint's.
            of_processor: True if transformers would make prompts with the model's processor.

        Raises:
            FileNotFoundError: The directory has no tokenizer or no ``config.json``.
            ValueError: There is no limit of the context, or ``chat_template`` is not there or no template.
        """
        directory = Path(checkpoint)
        tokenizer = load_tokenizer(directory)
        self.tokenizer = TextTokenizer(tokenizer)
        self.context_length = context_limit(directory, context_length)
        self.vocab_size = int(_decoder_fields(directory).get("vocab_size") or tokenizer.get_vocab_size())
        settings = read_json(directory / "tokenizer_config.json")
        self.templates = ChatTemplates(
            directory,
            settings,
            stand_ins=self.tokenizer.stand_ins,
            of_processor=of_processor,
            file=None if chat_template is None else Path(chat_template),
        )

    def encode_messages(
        self,
        messages: Sequence[Mapping[str, Any]],
        template_options: Mapping[str, Any] | None = None,
        *,
        check: Check = go_on,
    ) -> list[int]:
        """Token ids of a conversation, ready for the assistant's next turn.

        Args:
            messages: ``{"role", "content"}`` with the content as one text or a list of parts.
            template_options: Further variables of the template, such as ``enable_thinking``.
            check: Called between the pieces of a long text; an exception that it raises ends the work.

        Raises:
            RequestError: The template refuses the conversation, or it is longer than the context.
        """
        return self.encode_text(self.render(messages, template_options), param="messages", check=check)

    def encode_text(
        self, text: str, *, param: str, add_special_tokens: bool = False, check: Check = go_on
    ) -> list[int]:
        """Token ids of a text from ``render``.

        Args:
            param: The request's field, for error messages.
            add_special_tokens: Add the tokenizer's own tokens before and after, such as a start token.
            check: Called between the pieces of a long text; an exception that it raises ends the work.

        Raises:
            RequestError: The text is longer than the context.
        """
        check_unicode(text, param)
        # A longer prompt is refused without reading the rest.
        most = 2 * self.context_length
        token_ids = self.tokenizer.encode(text, most=most, add_special_tokens=add_special_tokens, check=check)
        self.check_length(len(token_ids), param, at_least=len(token_ids) > most)
        return token_ids

    def encode_prompt(
        self, prompt: str, *, parse_special_tokens: bool = False, check: Check = go_on
    ) -> list[int]:
        """Token ids of a plain prompt, with the tokenizer's own start tokens.

        Args:
            parse_special_tokens: True if text that is spelled like a control token is one.
            check: Called between the pieces of a long text; an exception that it raises ends the work.

        Raises:
            RequestError: The prompt is empty or longer than the context.
        """
        if not prompt:
            raise RequestError("prompt is empty", param="prompt", code="invalid_value")
        self.tokenizer.check_characters(prompt, self.context_length, param="prompt")
        text = prompt if parse_special_tokens else self.tokenizer.hide(prompt)
        return self.encode_text(text, param="prompt", add_special_tokens=True, check=check)

    def check_token_ids(self, token_ids: Sequence[int]) -> list[int]:
        """``token_ids``, checked.

        Raises:
            RequestError: An id is not in the vocabulary, or there are more than the context holds.
        """
        param = "prompt_token_ids"
        if not token_ids:
            raise RequestError("prompt_token_ids is empty", param=param, code="invalid_value")
        for index, token_id in enumerate(token_ids):
            if isinstance(token_id, bool) or not isinstance(token_id, int):
                raise RequestError(
                    f"{param}[{index}] must be an integer, got {token_id!r}", param=param, code="invalid_type"
                )
            if not 0 <= token_id < self.vocab_size:
                raise RequestError(
                    f"{param}[{index}] is {token_id}; the vocabulary has the ids 0 to {self.vocab_size - 1}",
                    param=param,
                    code="invalid_value",
                )
        self.check_length(len(token_ids), param)
        return list(token_ids)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        template_options: Mapping[str, Any] | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continues: bool = False,
    ) -> str:
        """The conversation's text for ``encode_text``, with control tokens in messages and options hidden.

        In the assistant's messages only special tokens are hidden: templates look there for ``</think>`` and
        the like.

        Args:
            messages: In the forms that the template reads.
            tools: OpenAI's tool objects, for a template that has a place for them.
            add_generation_prompt: True if the text ends with the beginning of the assistant's next turn.
            continues: True if it ends with the text of the last message instead, for the answer to continue.

        Raises:
            RequestError: The checkpoint has no chat template, its template refuses the conversation, the
                conversation is far too long, or a message has a ``name`` and the template no place for it.
        """
        length = self.context_length
        self.tokenizer.check_characters([messages, template_options, tools], length, param="messages")
        options = self.tokenizer.hide_all(template_options or {})
        hidden = None if tools is None else self.tokenizer.hide_all(tools)
        template = self.templates.choose(tools=tools is not None)

        def rendered(turns: Sequence[Mapping[str, Any]]) -> str:
            return self.templates.render(
                template,
                [self._hidden(turn) for turn in turns],
                options,
                tools=hidden,
                add_generation_prompt=add_generation_prompt,
                continues=continues,
            )

        text = rendered(messages)
        # A tool's turn is known by the call that it answers.
        named = [
            index
            for index, message in enumerate(messages)
            if message.get("name") is not None and message.get("role") != "tool"
        ]
        if named:
            nameless = [{key: message[key] for key in message if key != "name"} for message in messages]
            if text == rendered(nameless):
                where = f"messages[{named[0]}].name"
                raise RequestError(
                    f"{where}: this model's chat template has no place for names; write it into the content",
                    param=where,
                    code="unsupported_parameter",
                )
        return text

    def _hidden(self, message: Mapping[str, Any]) -> dict[str, Any]:
        # A role is one of a few words, which templates compare.
        hidden = {
            key: value if key == "role" else self.tokenizer.hide_all(value) for key, value in message.items()
        }
        content = message.get("content")
        if message.get("role") != "assistant" or not content:
            return hidden
        if isinstance(content, str):
            hidden["content"] = self.tokenizer.hide_special([content])[0]
        else:
            texts = self.tokenizer.hide_special([part.get("text", "") for part in content])
            parts = zip(hidden["content"], texts, strict=True)
            hidden["content"] = [{**part, "text": text} if "text" in part else part for part, text in parts]
        return hidden

    def read_prompt(
        self, prompt: str, *, parse_special_tokens: bool = False, add_special_tokens: bool = True
    ) -> list[int]:
        """Token ids of a prompt, even if they are more than the context holds.

        Raises:
            RequestError: The prompt is far too long.
        """
        self.tokenizer.check_characters(prompt, self.context_length, param="prompt")
        text = prompt if parse_special_tokens else self.tokenizer.hide(prompt)
        return self.tokenizer.encode(text, add_special_tokens=add_special_tokens)

    def check_length(self, length: int, param: str, *, at_least: bool = False) -> None:
        """
        Args:
            length: Of the prompt, in tokens.
            param: The request's field, for error messages.
            at_least: True if the prompt may be longer than ``length``.

        Raises:
            RequestError: The prompt leaves no room for an answer.
        """
        # One position is left for the answer.
        if length >= self.context_length:
            tokens = f"at least {length} tokens" if at_least else f"{length} tokens"
            raise RequestError(
                f"the prompt is {tokens} long, but the model's context holds {self.context_length} tokens, "
                "prompt and answer together",
                param=param,
                code="context_length_exceeded",
            )

    def check_answer(self, prompt_tokens: int, params: Mapping[str, Any]) -> None:
        """Checks the parameters of an answer against the checkpoint.

        Args:
            prompt_tokens: Length of the prompt, or of its known part.
            params: Parameters of the stage that writes the answer.

        Raises:
            RequestError: ``max_new_tokens`` exceeds the context, or a stop token is not in the vocabulary.
        """
        wanted = params.get("max_new_tokens")
        if isinstance(wanted, int) and prompt_tokens + wanted > self.context_length:
            room = self.context_length - prompt_tokens
            raise RequestError(
                f"max_tokens is {wanted} and the prompt {prompt_tokens} tokens long, but the model's context "
                f"holds {self.context_length} tokens, prompt and answer together: ask for at most {room}, or "
                "leave max_tokens out",
                param="max_tokens",
                code="context_length_exceeded",
            )
        for token_id in params.get("stop_token_ids") or ():
            if isinstance(token_id, int) and token_id >= self.vocab_size:
                raise RequestError(
                    f"stop_token_ids: {token_id} is not in the vocabulary, which has the ids 0 to "
                    f"{self.vocab_size - 1}",
                    param="stop_token_ids",
                    code="invalid_value",
                )


def context_limit(directory: Path, given: int | None = None) -> int:
    """The most tokens of a prompt and its answer.

    Args:
        given: A lower limit than the ``max_position_embeddings`` of the checkpoint in ``directory``.

    Raises:
        FileNotFoundError, ValueError: There is no ``config.json``, or no limit.
    """
    limits = [limit for limit in (_decoder_fields(directory).get("max_position_embeddings"), given) if limit]
    if not limits:
        raise ValueError(f"{directory / 'config.json'} has no max_position_embeddings: pass context_length")
    return int(min(limits))


def _decoder_fields(directory: Path) -> dict[str, Any]:
    config = read_json(_required(directory / "config.json"))
    config = config.get("thinker_config", config)
    fields: dict[str, Any] = config.get("text_config", config)
    return fields


def load_tokenizer(checkpoint: str | Path) -> Tokenizer:
    """The tokenizer of a checkpoint directory: ``tokenizer.json``, or for Qwen checkpoints without that file
    ``vocab.json``, ``merges.txt`` and ``tokenizer_config.json``.

    Raises:
        FileNotFoundError: The directory has neither.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    directory = Path(checkpoint)
    vocab, merges = directory / "vocab.json", directory / "merges.txt"
    settings = read_json(directory / "tokenizer_config.json")
    is_qwen = str(settings.get("tokenizer_class", "")).startswith("Qwen2Tokenizer")
    if (directory / "tokenizer.json").is_file() or not (vocab.is_file() and merges.is_file() and is_qwen):
        return Tokenizer.from_file(str(_required(directory / "tokenizer.json")))
    tokenizer = Tokenizer(models.BPE.from_file(str(vocab), str(merges)))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN_WORDS), behavior="isolated", invert=False),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    for _, token in sorted(settings.get("added_tokens_decoder", {}).items(), key=lambda item: int(item[0])):
        added = AddedToken(**token)
        (tokenizer.add_special_tokens if added.special else tokenizer.add_tokens)([added])
    return tokenizer


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; empty if the file does not exist."""
    if not path.exists():
        return {}
    return json.loads(path.read_text(encoding="utf-8"))


def _required(path: Path) -> Path:
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} not found: a checkpoint needs config.json, tokenizer.json and safetensors; download it "
            "again, or take the file of the model that it was made from"
        )
    return path
