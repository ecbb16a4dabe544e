"""Higgs Audio v2 by ``sgl-omni serve --model-path``: every stage in its process."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from higgs_oracle import HiggsOracle
from own_pipelines import ROOT, served
from speech_server import body, equals, samples


@pytest.mark.long
def test_a_checkpoint_of_higgs_audio_is_served_by_its_path(higgs: HiggsOracle, tmp_path: Path) -> None:
    arguments = ("--model-path", str(higgs.path), "--dtype", "auto")
    with served(tmp_path, *arguments, import_from=(ROOT / "python",)) as url:
        answer = httpx.post(f"{url}/v1/audio/speech", json=body("Hello.", 40), timeout=120)
        assert answer.status_code == 200, answer.text
        assert equals(samples(answer.content), higgs.speak("Hello.", 40).samples)
        assert httpx.get(f"{url}/v1/audio/voices", timeout=60).json()["voices"] == ["default"]
