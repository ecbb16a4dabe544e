"""For ``sgl-omni doctor``: what the installed packages suffice for, and the line that adds the rest."""

from __future__ import annotations

import importlib.metadata
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from sglang_omni.diagnosis import Finding, version_of
from sglang_omni.packages import DISTRIBUTION, install_line

# Extra -> what it is for.
USES = {
    "serve": "serve Qwen3-Omni, a language model or a voice",
    "kokoro": "speak texts with Kokoro, and not phonemes alone",
    "demo": "serve speech-chat, the demo",
    "realtime": "take realtime calls over WebRTC",
    "turns": "hear in realtime sessions when a sentence is over",
    "audio": "hear and record in the terminal",
    "bench": "measure a server with sgl-omni bench",
    "otel": "send traces to OpenTelemetry",
    "ray": "run stages on a Ray cluster",
    "nixl": "send tensors between hosts with NIXL",
    "mooncake": "send tensors between hosts with Mooncake",
}
# The packages of an extra itself come first, before those of the extras in it.
_MOST_NAMED = 3
_SOUND_CARDS = Path("/proc/asound/cards")


def use_findings() -> list[Finding]:
    """A finding for each use that this version has an extra for, and one for the machine's sound."""
    required = list(importlib.metadata.requires(DISTRIBUTION) or ()) if version_of(DISTRIBUTION) else []
    found = []
    for extra, use in USES.items():
        packages = list(dict.fromkeys(packages_of(extra, required)))
        if not packages:
            continue
        missing = [name for name in packages if version_of(name) is None]
        if missing:
            named = ", ".join(missing[:_MOST_NAMED])
            more = f" and {len(missing) - _MOST_NAMED} more" if len(missing) > _MOST_NAMED else ""
            found.append(
                Finding("missing", f"to {use}", f"not installed: {named}{more}", install_line(extra))
            )
        else:
            found.append(Finding("ok", f"to {use}", "installed"))
    return found + _sound()


def packages_of(extra: str, required: list[str]) -> Iterator[str]:
    """The packages of an extra, and then of the extras in it, as the distribution's metadata lists them.

    Args:
        extra: Its name.
        required: Lines such as ``ray[default]<3,>=2.60 ; extra == 'ray'``.
    """
    inner: list[str] = []
    for line in required:
        name, _, marker = line.partition(";")
        if not re.search(rf"""extra\s*==\s*['"]{re.escape(extra)}['"]""", marker):
            continue
        match = re.match(r"\s*([\w.-]+)\s*(?:\[([\w,-]+)\])?", name)
        assert match is not None
        if match[1] == DISTRIBUTION:
            inner += (match[2] or "").split(",")
        else:
            yield match[1]
    for other in inner:
        yield from packages_of(other, required)


def _sound() -> list[Finding]:
    """Loudspeaker and microphone, which Linux lists in a file."""
    if sys.platform != "linux":
        return []
    try:
        cards = _SOUND_CARDS.read_text()
    except OSError:
        cards = ""
    named = [line.strip() for line in cards.splitlines() if re.match(r"\s*\d+ \[", line)]
    if named:
        return [Finding("ok", "sound device", "; ".join(named))]
    return [Finding("missing", "sound device", "none: sound can be saved here, and not heard or recorded")]
