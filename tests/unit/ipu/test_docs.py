"""docs/ipu.md agrees with the tests."""

import re
from pathlib import Path

HERE = Path(__file__).parent
DOCS = HERE.parents[2] / "docs" / "ipu.md"


def test_every_correction_names_an_existing_test():
    rows = [line for line in DOCS.read_text().splitlines() if re.search(r"\| (`test_|the same)", line)]
    named = {name for row in rows for name in re.findall(r"`(test_\w+)`", row)}
    sources = "".join(file.read_text() for file in HERE.rglob("test_*.py"))
    assert len(rows) >= 14
    assert {name for name in named if f"def {name}(" not in sources} == set()
