"""``python -m portico.mrc.report`` is ``portico report``."""

import runpy

if __name__ == "__main__":
    runpy.run_module("portico.commands.report", run_name="__main__")
