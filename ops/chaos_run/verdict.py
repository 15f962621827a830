"""The figures of a run, and a sentence for each thing that is wrong.

What belongs here: counting. What must not be known here: what is right.
"""

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(slots=True)
class Verdict:
    """The figures of a run. `findings`: a sentence for each thing that is wrong, with the number of its message.

    `takeovers`: requests of a turn that came from another process than the one before them, be it after a death, a
    freeze or a drain; who took a turn over and had nothing to ask is not counted. `unexplained_...`: what only a strike
    explains, and none does.
    """

    turns: int
    completed: int = 0
    failed: int = 0
    dead: int = 0
    lost: int = 0
    partial: int = 0
    wrong_text: int = 0
    wrong_history: int = 0
    wrong_readings: int = 0
    duplicate_deliveries: int = 0
    unexplained_duplicates: int = 0
    duplicate_ids: int = 0
    contradictions: int = 0
    bad_signatures: int = 0
    tool_calls_twice: int = 0
    wrong_results: int = 0
    unasked_tool_runs: int = 0
    unknown_outcomes: int = 0
    unexplained_unknowns: int = 0
    tool_runs: int = 0
    unexplained_tool_runs: int = 0
    requests: int = 0
    unexplained_requests: int = 0
    takeovers: int = 0
    unexplained_takeovers: int = 0
    findings: list[str] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        """Nothing was found, and every turn was completed."""
        return not self.findings and self.completed == self.turns

    def figures(self) -> dict[str, Any]:
        """All but the findings."""
        return {name: value for name, value in asdict(self).items() if name != "findings"}

    def find(self, figure: str, sentence: str) -> None:
        """Something is wrong."""
        setattr(self, figure, getattr(self, figure) + 1)
        self.findings.append(f"{figure}: {sentence}")
