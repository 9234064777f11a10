"""CPU time until portico can be used, beside transformers, and until a typo on the command line has its message.

Run ``python benchmarks/start_up.py``. Each measurement is a process of its own, by turns; times are CPU seconds of the
process and its children.
"""

import argparse
import resource
import statistics
import subprocess
import sys
from pathlib import Path

from record import record

TRAIN = str(Path(__file__).parent.parent / "train.py")
IMPORTS = {library: ["-c", f"from {library} import Trainer"] for library in ("transformers", "portico")}
TYPO = [TRAIN, "+experiment=mrc", "args.learning_rat=1e-3"]


def seconds(arguments: list[str]) -> float:
    """Return the CPU seconds of a process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], capture_output=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    rounds = []
    for _ in range(options.rounds):
        rounds.append([seconds(arguments) for arguments in (*IMPORTS.values(), TYPO)])
    theirs, ours, typo = map(list, zip(*rounds, strict=True))
    names = ("import of transformers.Trainer", "import of portico.Trainer", "typo on the command line")
    for name, measured in zip(names, (theirs, ours, typo), strict=True):
        print(f"{name:34}{statistics.median(measured):6.2f} s")
    record("import of Trainer", [own / peer for own, peer in zip(ours, theirs, strict=True)])
    record("typo on the command line, of an import of Trainer", [a / b for a, b in zip(typo, theirs, strict=True)])


if __name__ == "__main__":
    main()
