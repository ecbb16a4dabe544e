"""``tekken.json``: the tokens of Mistral's models, and how a model of sound counts time.

Only its tokens' bytes are needed here, since no text is ever encoded: ``mistral_common``, Mistral's own
reader, is what the tests compare with.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import ByteLevel
from tokenizers.models import BPE

from sglang_omni.models.recordings.recording import SAMPLE_RATE
from sglang_omni.preprocessing.byte_letters import byte_letters

FILE = "tekken.json"
# Words may end so long after their sound (OFFLINE_STREAMING_BUFFER_TOKENS of mistral_common), beside one
# token for the start token.
_LATE_TOKENS = 10


@dataclass(frozen=True)
class Tekken:
    """
    Attributes:
        tokenizer: Decodes only. Control tokens are special.
        num_control: They are the ids below.
        start, pad: The ids of the start token, and of a moment without a new word.
        samples: Samples of a token.
        left: Tokens of silence before the sound.
        delay: Tokens by which text follows sound.
    """

    tokenizer: Tokenizer
    num_control: int
    start: int
    pad: int
    samples: int
    left: int
    delay: int

    @classmethod
    def from_dir(cls, path: Path, delay_ms: float | None = None) -> Self:
        """
        Args:
            delay_ms: Instead of the file's own.

        Raises:
            FileNotFoundError: There is no such file.
            ValueError: It is not that of a model that transcribes as it hears, or ``delay_ms`` is no whole
                number of tokens.
        """
        file = path / FILE
        if not file.exists():
            raise FileNotFoundError(f"{file} is missing: it holds the tokens; download the checkpoint again")
        fields = json.loads(file.read_text(encoding="utf-8"))
        audio = fields.get("audio") or {}
        if audio.get("transcription_format") != "streaming" or audio.get("sampling_rate") != SAMPLE_RATE:
            raise ValueError(f"{file} has no audio with transcription_format 'streaming' at {SAMPLE_RATE} Hz")
        try:
            config, control = fields["config"], {t["token_str"]: t["rank"] for t in fields["special_tokens"]}
            token_ms = 1000 / audio["frame_rate"]
            own_delay_ms = audio["transcription_delay_ms"]
            delay = (own_delay_ms if delay_ms is None else delay_ms) / token_ms
            if delay < 1 or delay != int(delay):
                raise ValueError(f"the delay must be a multiple of {token_ms:g} ms, got {delay_ms:g}")
            num_control = int(config["default_num_special_tokens"])
            return cls(
                _decoder(fields["vocab"][: config["default_vocab_size"] - num_control], num_control),
                num_control,
                control["<s>"],
                control["[STREAMING_PAD]"],
                int(SAMPLE_RATE // audio["frame_rate"]),
                int(audio["streaming_n_left_pad_tokens"]),
                int(delay),
            )
        except KeyError as exc:
            raise ValueError(f"{file} has no {exc.args[0]!r}") from None

    @property
    def prompt(self) -> list[int]:
        """The tokens of the silence before the sound, and of the delay."""
        return [self.start] + [self.pad] * (self.left + self.delay)

    @property
    def right(self) -> int:
        """Tokens of silence after the sound, in which its last words are written."""
        return self.delay + 1 + _LATE_TOKENS


def _decoder(vocabulary: list[dict[str, Any]], num_control: int) -> Tokenizer:
    letters = byte_letters()
    # Names that are spelt by no bytes.
    control = [f"\0{number}" for number in range(num_control)]
    texts = (
        "".join(letters[byte] for byte in base64.b64decode(token["token_bytes"])) for token in vocabulary
    )
    tokenizer = Tokenizer(BPE({text: number for number, text in enumerate([*control, *texts])}, []))
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in control])
    tokenizer.decoder = ByteLevel()
    return tokenizer
