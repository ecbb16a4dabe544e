"""The voices of a checkpoint, in its ``spk_dict.pt``: a start token, a vector, and a short recording.

The file is torch's: a zip archive with a pickle of dictionaries and tensors. Names are read without torch, by
an unpickler that makes nothing of a class and calls nothing.
"""

from __future__ import annotations

import pickle
import zipfile
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

FILE = "spk_dict.pt"
_BROKEN = (
    ValueError,
    TypeError,
    AttributeError,
    EOFError,
    RuntimeError,
    zipfile.BadZipFile,
    pickle.UnpicklingError,
)


class SpeakerVoice(NamedTuple):
    """
    Attributes:
        bos: The thinker's token that begins the text.
        vector: (1, d) float32, who speaks.
        mel: (1, frames, mel bins) float32, how it sounds.
    """

    bos: int
    vector: Tensor
    mel: Tensor


def voice_names(path: Path) -> list[str]:
    """The names of the voices in the file, in its order.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It does not hold voices.
    """
    return list(_entries(path))


def load_voices(path: Path) -> dict[str, SpeakerVoice]:
    """All voices of the file, on the CPU.

    Raises:
        FileNotFoundError, ValueError: As of ``voice_names``.
    """
    import torch

    _entries(path)
    voices = {}
    for name, entry in torch.load(path, weights_only=True, map_location="cpu").items():
        vector, mel = entry["cond"].float(), entry["ref_mel"].float()
        voices[name] = SpeakerVoice(
            int(entry["bos_token"]), vector.reshape(1, -1), mel.reshape(1, -1, mel.shape[-1])
        )
    return voices


def _entries(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} is missing: it holds the voices; download the checkpoint again, or answer in text only"
        )
    try:
        found = _read(path)
        names = ("bos_token", "cond", "ref_mel")
        if not found or not all(key in entry for entry in found.values() for key in names):
            raise ValueError(f"each voice needs {', '.join(names)}")
    except _BROKEN as error:
        raise ValueError(f"{path} does not hold voices ({error}): download it again") from None
    return found


def _read(path: Path) -> Any:
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            (member,) = (name for name in archive.namelist() if name.endswith("data.pkl"))
            return _Inert(BytesIO(archive.read(member))).load()
    # torch's older format.
    import torch

    try:
        return torch.load(path, weights_only=True, map_location="cpu")
    except pickle.UnpicklingError:
        # torch's own text says to read it in a way that runs what is in it.
        raise ValueError("it is no file of tensors") from None


class _Inert(pickle.Unpickler):
    """Reads dictionaries, texts and numbers. Whatever else is in the file becomes None, and nothing runs."""

    def find_class(self, module: str, name: str) -> Any:
        return dict if (module, name) == ("collections", "OrderedDict") else _nothing

    def persistent_load(self, pid: Any) -> None:
        return None


def _nothing(*_: object) -> None:
    return None
