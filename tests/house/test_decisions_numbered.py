"""Each decision record has a number of its own, and says it in its heading."""

import re
from pathlib import Path

RECORDS = sorted((Path(__file__).parents[2] / "ops" / "decisions").glob("[0-9]*.md"))


def test_each_decision_has_a_number_of_its_own_and_says_it_first() -> None:
    numbers = [record.name[:4] for record in RECORDS]
    assert len(numbers) == len(set(numbers)) > 40
    for record in RECORDS:
        assert re.fullmatch(r"\d{4}-[a-z0-9-]+\.md", record.name)
        assert record.read_text(encoding="utf-8").startswith(f"# {record.name[:4]} "), record.name
