"""What has been said: the messages of a conversation, and the files that go with the next one."""

from __future__ import annotations

from pathlib import Path
from typing import Any


class ChatHistory:
    """
    Attributes:
        messages: In OpenAI's form.
        attached: Names of the files that go with the next question.
    """

    def __init__(self, system: str | None = None) -> None:
        self._system = system
        self.messages: list[dict[str, Any]] = []
        self.attached: list[str] = []
        self._parts: list[dict[str, Any]] = []
        self.clear()

    def clear(self) -> None:
        """Forgets all but the system prompt."""
        self.messages = [] if self._system is None else [{"role": "system", "content": self._system}]
        self.attached, self._parts = [], []

    def attach(self, name: str, part: dict[str, Any]) -> None:
        self.attached.append(name)
        self._parts.append(part)

    def ask(self, text: str) -> None:
        """Adds a question, with the files that are attached."""
        content: Any = text
        if self._parts:
            content = [*self._parts, *([{"type": "text", "text": text}] if text else [])]
        self.messages.append({"role": "user", "content": content})

    def take_back(self) -> None:
        """Removes the question that got no answer; its files stay attached."""
        self.messages.pop()

    def answer(self, text: str, heard: str | None) -> None:
        """Adds the answer.

        Args:
            heard: What was said in the question's sound, which it replaces: later questions need not send and
                decode it again.
        """
        question = self.messages[-1]
        if heard is not None and isinstance(question["content"], list):
            parts = [part for part in question["content"] if part["type"] != "input_audio"]
            question["content"] = [{"type": "text", "text": heard}, *parts]
        self.messages.append({"role": "assistant", "content": text})
        self.attached, self._parts = [], []

    def save(self, path: Path) -> None:
        """Writes the texts as Markdown."""
        lines = [f"**{message['role']}**\n\n{_text(message['content'])}\n" for message in self.messages]
        path.write_text("\n".join(lines), encoding="utf-8")


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] if part["type"] == "text" else f"({part['type']})" for part in content)
