"""The languages of Kokoro, each known by the letter that begins the names of its voices."""

from __future__ import annotations

from typing import NamedTuple

from sglang_omni.packages import install_line, missing
from sglang_omni.preprocessing.languages import language_code, language_name
from sglang_omni.proto import RequestError

# A text that is phonemes already.
PHONEMES = "ipa"
_ESPEAK = ("misaki", "espeakng_loader", "phonemizer")


class KokoroLanguage(NamedTuple):
    """
    Attributes:
        letter: The authors' own code of it.
        code: As requests name it.
        names: Other codes of it.
        modules: What turns its texts into phonemes.
    """

    letter: str
    code: str
    names: tuple[str, ...]
    modules: tuple[str, ...] = _ESPEAK

    @property
    def espeak(self) -> str:
        """espeak-ng's name of it."""
        return self.names[0] if self.names else self.code

    def check_installed(self) -> None:
        """
        Raises:
            RequestError: Packages are missing here that it needs; the text has the command to install them.
        """
        for command, modules in missing({install_line("kokoro"): self.modules}).items():
            raise RequestError(
                f"texts in {language_name(self.code[:2])} need {', '.join(modules)}, not installed here: "
                f"{command}; or send phonemes, with language {PHONEMES!r}",
                param="language",
                code="unsupported_value",
            )


_ALL = (
    KokoroLanguage("a", "en", ("en-us",)),
    KokoroLanguage("b", "en-gb", ()),
    KokoroLanguage("e", "es", ()),
    KokoroLanguage("f", "fr", ("fr-fr",)),
    KokoroLanguage("h", "hi", ()),
    KokoroLanguage("i", "it", ()),
    KokoroLanguage("p", "pt", ("pt-br",)),
    KokoroLanguage("j", "ja", (), ("misaki", "pyopenjtalk", "fugashi", "jaconv", "mojimoji", "unidic_lite")),
    KokoroLanguage("z", "zh", (), ("misaki", "jieba", "pypinyin", "pypinyin_dict", "cn2an", "ordered_set")),
)
BY_LETTER = {language.letter: language for language in _ALL}
_BY_NAME = {name: each for each in _ALL for name in (each.letter, each.code, *each.names)}


def language_of(voice: str, named: str | None) -> KokoroLanguage | None:
    """The language of a text; None if it is phonemes already.

    Args:
        voice: Who speaks it.
        named: As the request has it: a code or an English name; None for the voice's own.

    Raises:
        RequestError: There is no such language.
    """
    if named is not None and named.lower() == PHONEMES:
        return None
    own = BY_LETTER.get(voice[:1], BY_LETTER["a"])
    if named is None:
        return own
    found = _BY_NAME.get(language_code(named).lower())
    if found is None:
        raise RequestError(
            f"language: this model does not speak {named!r}; it speaks "
            f"{', '.join(each.code for each in _ALL)}, and phonemes, {PHONEMES!r}",
            param="language",
            code="unsupported_value",
        )
    # English of either kind is what English voices speak.
    return own if (found.letter, own.letter) == ("a", "b") and named.lower() not in found.names else found


def codes_of(voices: tuple[str, ...]) -> tuple[str, ...]:
    """The languages that are the voices' own."""
    letters = {voice[:1] for voice in voices}
    return tuple(sorted({language.code[:2] for letter, language in BY_LETTER.items() if letter in letters}))
