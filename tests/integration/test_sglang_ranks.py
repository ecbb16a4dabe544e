"""Two ranks of an engine on SGLang, a process each, choose the tokens of one."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from qwen3_omni_oracle import Oracle
from sample_media import audio_part, image_part, picture, sound, user
from thinker_requests import ThinkerPrompt

from sglang_omni.models.qwen3_omni.components.checkpoint import Qwen3OmniCheckpoint
from sglang_omni.models.qwen3_omni.components.decoders import thinker_decoder
from sglang_omni.supervision.ports import bind

pytestmark = pytest.mark.long

SCRIPT = Path(__file__).with_name("sglang_rank.py")


def test_two_ranks_choose_the_tokens_of_one(tmp_path: Path, qwen3_omni: Callable[..., Oracle]) -> None:
    oracle = qwen3_omni(seed=1)
    spec = thinker_decoder(Qwen3OmniCheckpoint.from_dir(oracle.path), for_speech=True)
    prompts = [
        ThinkerPrompt.of(oracle, [user("Hello.")]),
        ThinkerPrompt.of(oracle, [user(image_part(picture(1)), audio_part(sound(1)), "What is it?")]),
    ]
    requests = [prompt.request(str(index)) for index, prompt in enumerate([prompts[1], *prompts])]
    job = tmp_path / "job"
    job.write_bytes(pickle.dumps((spec, requests)))
    # Held until they are done: they take a while to come, and nobody else is given the port meanwhile.
    with bind("127.0.0.1", 0) as held:
        port = held.getsockname()[1]
        ranks = subprocess.Popen(
            [sys.executable, SCRIPT, str(job), "2", str(port)],
            stdout=subprocess.PIPE,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
            start_new_session=True,
        )
        try:
            answers = json.loads(ranks.communicate(timeout=240)[0])
        finally:
            # Before it is waited for, its group is its own. A rank waits for another one that has failed.
            with suppress(ProcessLookupError):
                os.killpg(ranks.pid, signal.SIGKILL)
            ranks.wait()
    assert answers == [[prompt.token_ids for prompt in prompts]] * 2
