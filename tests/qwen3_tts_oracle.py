"""A tiny random Qwen3-TTS checkpoint, and what the authors' package says with it.

The package needs another transformers than ours, so it runs in an environment of its own, as a program
(``qwen3_tts_reference``) that is started once and answers one request after another.
"""

from __future__ import annotations

import atexit
import os
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from multiprocessing import Pipe
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from clients import BUILD
from numpy.typing import NDArray

from sglang_omni.models.qwen3_tts.tiny_checkpoint import make

RATE = 24_000
_PYTHON = BUILD / "qwen-tts" / "bin" / "python"
_PROGRAM = Path(__file__).with_name("qwen3_tts_reference.py")
_START_SECONDS, _ANSWER_SECONDS = 120, 300


class Qwen3TTSSaid(NamedTuple):
    """
    Attributes:
        frames: The codes of each.
        samples: float32 (n,), of all frames.
        ended: True if the speech ended by itself.
    """

    frames: list[list[int]]
    samples: NDArray[np.float32]
    ended: bool


class Recording(NamedTuple):
    """A voice: samples, float32 (n,) at 24 kHz, and what they say; None if only how they sound counts."""

    samples: NDArray[np.float32]
    text: str | None = None


@dataclass(eq=False)
class Qwen3TTSOracle:
    path: Path

    @classmethod
    def make(cls, path: Path, seed: int = 0, **shape: Any) -> Qwen3TTSOracle:
        """Writes the checkpoint to ``path``."""
        make(path, seed, **shape)
        return cls(path)

    def speak(
        self,
        text: str,
        max_frames: int,
        *,
        language: str = "Auto",
        speaker: str | None = None,
        instruct: str | None = None,
        recording: Recording | None = None,
        non_streaming_mode: bool | None = None,
    ) -> Qwen3TTSSaid:
        """The package's speech of one text, alone and greedily.

        Args:
            speaker, instruct, recording: What gives the voice; by it the package's function is chosen:
                ``generate_voice_clone`` with a recording, ``generate_custom_voice`` with a speaker, else
                ``generate_voice_design``.
            non_streaming_mode: True if all of the text goes before the first frame, False if a token of it
                goes with each; None for the function's own default.
        """
        arguments: dict[str, Any] = {"text": text, "language": language}
        if non_streaming_mode is not None:
            arguments["non_streaming_mode"] = non_streaming_mode
        if recording is not None:
            kind = "voice_clone"
            arguments |= {"samples": recording.samples, "ref_text": recording.text}
        elif speaker is not None:
            kind = "custom_voice"
            arguments |= {"speaker": speaker, "instruct": instruct}
        else:
            kind = "voice_design"
            arguments |= {"instruct": instruct}
        frames, samples = self._answer("speak", kind, arguments, max_frames)
        return Qwen3TTSSaid(frames.tolist(), samples, len(frames) < max_frames)

    def decode(self, codes: Any) -> NDArray[np.float32]:
        """Samples (n,) of frames (n, groups)."""
        samples: NDArray[np.float32] = self._answer("decode", np.asarray(codes, np.int64))
        return samples

    def encode(self, samples: NDArray[np.float32]) -> NDArray[np.int64]:
        """Frames (n, groups) of a recording at 24 kHz."""
        codes: NDArray[np.int64] = self._answer("encode", samples)
        return codes

    def speaker(self, samples: NDArray[np.float32]) -> NDArray[np.float32]:
        """The vector (hidden size,) of the voice of a recording at 24 kHz."""
        vector: NDArray[np.float32] = self._answer("speaker", samples)
        return vector

    def token_ids(self, text: str) -> list[int]:
        """A text's, as the package's processor tells them."""
        ids: list[int] = self._answer("token_ids", text)
        return ids

    def unread(self) -> list[str]:
        """Names and shapes of weights that the package's model lacks or has no place for."""
        found: list[str] = self._answer("unread")
        return found

    def _answer(self, name: str, *arguments: Any) -> Any:
        return _program().answer(name, str(self.path), *arguments)


class _Program:
    """The running program, and this end of the pipe to it."""

    def __init__(self) -> None:
        assert _PYTHON.exists(), (
            f"the authors' package is not here: run `make {_PYTHON.parts[-4]}/qwen-tts/.installed`"
        )
        self._requests, theirs = Pipe()
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        # Neither our modules nor the hub is its business.
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        self._process = subprocess.Popen(
            [_PYTHON, "-P", _PROGRAM, str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            pass_fds=[theirs.fileno()],
            env={**environment, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
        )
        theirs.close()
        atexit.register(self._end)
        self._receive(_START_SECONDS)

    def answer(self, name: str, *arguments: Any) -> Any:
        self._requests.send((name, arguments))
        return self._receive(_ANSWER_SECONDS)

    def _receive(self, seconds: float) -> Any:
        try:
            assert self._requests.poll(seconds), f"no answer within {seconds} s"
            is_right, answer = self._requests.recv()
        except (AssertionError, EOFError) as error:
            self._output.seek(0)
            raise RuntimeError(self._output.read()[-5000:].decode(errors="replace")) from error
        assert is_right, answer
        return answer

    def _end(self) -> None:
        self._requests.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()


@cache
def _program() -> _Program:
    return _Program()
