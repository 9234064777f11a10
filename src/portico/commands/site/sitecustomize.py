"""Python imports this when it starts, in every process below `portico run`: there too the trainer is replaced."""

import contextlib
import importlib.util
import json
import os
import sys
from importlib.machinery import PathFinder
from pathlib import Path

if "PORTICO_RUN" in os.environ:
    # Another Python, without portico, may be below as well.
    with contextlib.suppress(ImportError):
        from portico.inspection.install import install_on_demand

        install_on_demand(**json.loads(os.environ["PORTICO_RUN"]))
with contextlib.suppress(ImportError):
    if "PORTICO_RECORD" in os.environ:
        from portico.inspection import recorder

        recorder.join()
    if "PORTICO_REPLAY" in os.environ:
        from portico.commands import replay

        replay.join()
    if "PORTICO_PREFLIGHT" in os.environ:
        from portico.inspection import script_rehearsal

        script_rehearsal.join()
# Then the module of that name that this one stands in front of.
_others = [folder for folder in sys.path if Path(folder).resolve() != Path(__file__).resolve().parent]
_spec = PathFinder.find_spec("sitecustomize", _others)
if _spec is not None and _spec.loader is not None:
    _spec.loader.exec_module(importlib.util.module_from_spec(_spec))
