"""What each family's answers are compared with: ``NAME.py`` has ``SHAPES`` and ``subject``, and perhaps
``ENGINES`` and, of shapes that only some compute, ``SHAPE_ENGINES``; see ``text.py`` and ``whisper.py``.
``REFERENCE_NEEDS`` are modules that the reference needs and serving does not: without them, ``all`` leaves
the family out and says so.

``make parity MODEL=NAME SEEDS=0,1 ENGINE=omni`` runs ``sglang_omni.testing.check`` on it.
``python -m parity`` is the same, with more options.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sglang_omni.config import PipelineConfig
from sglang_omni.testing import ALL_WAYS, Case, Reference, Report, Way, check


@dataclass(frozen=True)
class Subject:
    """A pipeline of a random checkpoint, and with what it is compared.

    Attributes:
        options: Of ``check``: ``samples_atol``, ``pool_tokens``, ...
    """

    config: PipelineConfig
    reference: Reference
    cases: Sequence[Case]
    options: dict[str, Any]

    def check(self, ways: Sequence[Way] = ALL_WAYS) -> Report:
        return check(self.config, self.reference, self.cases, ways, **self.options)
