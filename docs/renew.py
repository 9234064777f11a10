"""Write all generated pages and records again, after a change of messages, arguments, settings or public names.

Run ``python docs/renew.py`` and commit what it changes; the tests compare each file with its source.
"""

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[1]
GENERATORS = (
    "docs/errors.py",
    "docs/training_arguments.py",
    "docs/reference_pages.py",
    "docs/security.py",
    "tests/frozen/surface.py",
)

if __name__ == "__main__":
    for generator in GENERATORS:
        runpy.run_path(str(ROOT / generator), run_name="__main__")
