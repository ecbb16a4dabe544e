"""Smart Turn: tells from a turn's sound whether its speaker has finished, or only pauses.

The model (Daily, BSD 2-Clause) looks at the last eight seconds before a pause, with an encoder made from
Whisper's. Its weights are in pipecat-ai's wheel; nothing else of that package is used.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sglang_omni.packages import install_line
from sglang_omni.serve.realtime.silero import MODEL_RATE

Samples = NDArray[np.float32]

SECONDS = 8
_LENGTH = SECONDS * MODEL_RATE
_FILES = "audio/turn/smart_turn/data/smart-turn-v3*-cpu.onnx"


def smart_turn_file() -> Path:
    """The newest of the model's files in the installed pipecat-ai.

    Raises:
        ImportError: It is not installed, or has none; the text has the install line.
    """
    found = find_spec("pipecat")
    files = [] if found is None or found.origin is None else sorted(Path(found.origin).parent.glob(_FILES))
    if not files:
        raise ImportError(f"semantic_vad needs Smart Turn, from pipecat-ai: {install_line('turns')}")
    return files[-1]


class SmartTurn:
    """The loaded model; threads may share it.

    Raises:
        ImportError: faster-whisper or onnxruntime is not installed; the text has the install line.
    """

    def __init__(self, file: Path) -> None:
        try:
            from faster_whisper.feature_extractor import FeatureExtractor
            from onnxruntime import InferenceSession, SessionOptions
        except ImportError as exc:
            raise ImportError(f"semantic_vad needs faster-whisper: {install_line('realtime')}") from exc
        options = SessionOptions()
        options.inter_op_num_threads = options.intra_op_num_threads = 1
        self._session = InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
        self._features = FeatureExtractor(chunk_length=SECONDS)

    def complete(self, turn: Samples) -> float:
        """Probability that the turn is complete. It takes 40 to 100 ms on one thread.

        Args:
            turn: Its sound from its start to the pause, 16 kHz, shape (n,).
        """
        features = self.features(turn)
        [probability] = self._session.run(None, {"input_features": features[None]})
        return float(probability.reshape(-1)[0])

    def features(self, turn: Samples) -> Samples:
        """Log-mel spectrogram of the last eight seconds, silence before a shorter turn: shape (80, 800)."""
        padded = np.zeros(_LENGTH, np.float32)
        last = turn[-_LENGTH:]
        padded[_LENGTH - len(last) :] = last
        padded = (padded - padded.mean()) / np.sqrt(padded.var() + 1e-7)
        return self._features(padded, padding=0).astype(np.float32)


@cache
def smart_turn() -> SmartTurn:
    """The one of this process.

    Raises:
        ImportError: As ``smart_turn_file`` and ``SmartTurn``.
    """
    return SmartTurn(smart_turn_file())
