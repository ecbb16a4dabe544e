"""CSM by ``sgl-omni serve --model-path``: every stage in its process, and both engines."""

from __future__ import annotations

from pathlib import Path

import httpx
import numpy as np
import pytest
from csm_oracle import CsmOracle
from own_pipelines import ROOT, served


@pytest.mark.long
@pytest.mark.parametrize("engine", ["omni", "sglang"])
def test_a_checkpoint_is_served_by_its_path(csm: CsmOracle, tmp_path: Path, engine: str) -> None:
    speak = {"temperature": 0, "max_new_tokens": 20}
    body = {"input": "Hello.", "response_format": "pcm", "stage_params": {"speak": speak}}
    said = csm.speak("Hello.", 20)
    arguments = ("--model-path", str(csm.path), "--engine", engine, "--dtype", "auto")
    with served(tmp_path, *arguments, import_from=(ROOT / "python",)) as url:
        answer = httpx.post(f"{url}/v1/audio/speech", json=body, timeout=120)
        assert answer.status_code == 200, answer.text
        heard = np.frombuffer(answer.content, "<i2") / 32767
        assert heard.shape == said.samples.shape
        assert np.abs(heard - said.samples.numpy()).max() <= 1.01 / 32767
        voices = httpx.get(f"{url}/v1/audio/voices", timeout=60).json()["voices"]
        assert voices == list("0123456789")
