"""The pipeline says what the reference says, however it is asked."""

import sys
from pathlib import Path

import pytest
import torch

# The package is tested as it lies here, installed or not.
sys.path.insert(0, str(Path(__file__).parents[1]))

from my_family.config import MyFamilyPipelineConfig
from my_family.tiny_checkpoint import make
from reference import PlainLoop

from sglang_omni.proto import OmniRequest, RequestError, StagePayload
from sglang_omni.testing import Case, Way, check

TEXTS = ("Hello", "a", "Hello, world", "What is the capital of France, and of Norway?", "Say it twice. " * 3)
SPEECH = {"task": "speech"}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    torch.set_num_threads(1)
    return str(make(tmp_path_factory.mktemp("checkpoint"), seed=1))


def test_codes_and_samples_are_the_references(checkpoint: str) -> None:
    cases = [Case({"text": text}, {"temperature": 0.0, "max_new_tokens": 30}, SPEECH) for text in TEXTS]
    report = check(MyFamilyPipelineConfig(model_path=checkpoint), PlainLoop(checkpoint), cases)
    print(report)
    assert report.ok, report
    assert Way.RETRACTED in {row.way for row in report.rows if not row.note}


def test_a_seed_means_the_same_in_any_company(checkpoint: str) -> None:
    class Unknown:
        def answers(self, case: Case) -> None:
            """The answer to a case alone is right."""

    cases = [Case({"text": text}, {"seed": 7, "max_new_tokens": 20}, SPEECH) for text in TEXTS]
    ways = [Way.TOGETHER, Way.STREAMED]
    report = check(MyFamilyPipelineConfig(model_path=checkpoint), Unknown(), cases, ways)
    assert report.ok, report


def test_what_it_refuses() -> None:
    from my_family.stages import create_preprocess

    request = OmniRequest({"text": "x" * 11}, {}, SPEECH)
    with pytest.raises(RequestError, match="11 bytes to speak; 1 to 10 are accepted"):
        create_preprocess(max_letters=10)(StagePayload("1", request, None))
