"""Whatever a client sends, nothing breaks, and nothing goes upstream that a second reading would not send.

The same for hundreds of thousands of bodies, for people to run: `python tests/benchmarks/fuzz_bodies.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fuzzing import KINDS
from judging import Findings, fire

if TYPE_CHECKING:
    from pathlib import Path

BODIES = 1500


def test_broken_bodies_are_refused_and_never_go_upstream_as_something_else(tmp_path: Path) -> None:
    findings = Findings()
    fire(tmp_path, 1, BODIES, findings)
    assert not findings.complaints, str(findings)
    assert not findings.faults, str(findings)
    assert findings.asked >= BODIES
    assert {each.partition(":")[0] for each in findings.classes} >= KINDS.keys() - {"bomb"}, "all kinds were sent"
