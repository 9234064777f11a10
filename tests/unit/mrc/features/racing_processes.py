"""Two processes that get the same features of a cache folder: ``python racing_processes.py both|killed FOLDER``.

The folder has the tokenizer. Each notes there whether it wrote features, and what it got. The exit codes are printed.
"""

import json
import multiprocessing
import os
import pickle
import signal
import sys
from pathlib import Path

import portico.mrc.features.storage as storage
from mrc_data import make_examples
from portico.mrc.features.featurizer import Featurizer

CONTEXT = multiprocessing.get_context("fork")


def fetch(folder, name, before_lock, while_writing):
    write, key = storage._write, storage.content_key

    def keyed(*args):
        made = key(*args)
        before_lock()
        return made

    def recorded(partial, parts):
        (folder / f"{name}.wrote").touch()
        write(partial, while_writing(parts))

    storage.content_key, storage._write = keyed, recorded
    options = {"max_seq_length": 64, "doc_stride": 16, "cache_dir": str(folder / "cache")}
    tokenizer = pickle.loads((folder / "tokenizer").read_bytes())
    features = Featurizer(tokenizer, **options).train_features(make_examples(0))
    (folder / f"{name}.got").write_bytes(pickle.dumps(list(features)))


def race(kind):
    """Return what each process does before it locks the folder, and while it writes."""
    if kind == "both":
        barrier = CONTEXT.Barrier(2, timeout=60)
        return {"a": (barrier.wait, iter), "b": (barrier.wait, iter)}
    writing, waiting = CONTEXT.Event(), CONTEXT.Event()

    def killed(parts):
        yield next(parts)
        writing.set()
        assert waiting.wait(60)
        os.kill(os.getpid(), signal.SIGKILL)

    def wait():
        assert writing.wait(60)
        waiting.set()

    return {"a": (lambda: None, killed), "b": (wait, iter)}


if __name__ == "__main__":
    storage.EXAMPLES_AT_ONCE = 4
    processes = [
        CONTEXT.Process(target=fetch, args=(Path(sys.argv[2]), name, *acts))
        for name, acts in race(sys.argv[1]).items()
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    print(json.dumps([process.exitcode for process in processes]))
