"""A kit that proves a pipeline: however its requests come, it must say what a reference says.

In a test of a family::

    from sglang_omni.testing import Answer, Case, check

    class Whisper:
        def answers(self, case):                    # alone, greedy, from scratch
            return Answer(tokens=model.generate(...))

    def test_parity(checkpoint):
        cases = [Case({"audio": sound}, {"temperature": 0.0}, {"task": "transcription"}) for sound in sounds]
        report = check(WhisperPipelineConfig(model_path=checkpoint), Whisper(), cases)
        assert report.ok, report

``check`` runs the whole pipeline and asks it in ``ALL_WAYS``: alone, several at once, with prompts cut into
steps, with prefixes that are cached, beside requests that are aborted, from a KV pool that is too small, and
streamed. ``print(report)`` shows a table, and each difference in a line. pytest is not needed.
"""

from sglang_omni.testing.answers import Answer, Case, Reference, difference, read_answer
from sglang_omni.testing.parity import check
from sglang_omni.testing.report import Difference, Report, Row, Timing
from sglang_omni.testing.ways import ALL_WAYS, Way

__all__ = [
    "ALL_WAYS",
    "Answer",
    "Case",
    "Difference",
    "Reference",
    "Report",
    "Row",
    "Timing",
    "Way",
    "check",
    "difference",
    "read_answer",
]
