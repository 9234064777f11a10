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
# Hydra itself refuses the second, the class of the experiment the others.
TYPOS = ("args.learning_rat=1e-3", "argss.learning_rate=1e-3", "mode=trian")


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
    commands = {typo: [TRAIN, "+experiment=mrc", typo] for typo in TYPOS}
    rounds = []
    for _ in range(options.rounds):
        imports = {f"import of {name}.Trainer": seconds(code) for name, code in IMPORTS.items()}
        rounds.append(imports | {name: seconds(command) for name, command in commands.items()})
    measured = {name: [one[name] for one in rounds] for name in rounds[0]}
    theirs, ours = (measured[f"import of {name}.Trainer"] for name in IMPORTS)
    for name, taken in measured.items():
        print(f"{name:34}{statistics.median(taken):6.2f} s")
    record("import of Trainer", [own / peer for own, peer in zip(ours, theirs, strict=True)])
    for name in TYPOS:
        ratios = [own / peer for own, peer in zip(measured[name], theirs, strict=True)]
        record(f"{name} on the command line, of an import of Trainer", ratios)


if __name__ == "__main__":
    main()
