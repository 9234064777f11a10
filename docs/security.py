"""The tables of SECURITY.md, from the zoo of hostile folders that the tests walk; running it writes them anew."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "SECURITY.md"

if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "tests"))
    from hostile_folders import table, table_of_effects

    tables = iter((table(), table_of_effects()))
    lines = re.compile(r"^\|.*\|$(\n\|.*\|$)*", re.MULTILINE)
    PAGE.write_text(lines.sub(lambda _: next(tables), PAGE.read_text(encoding="utf-8"), count=2), encoding="utf-8")
