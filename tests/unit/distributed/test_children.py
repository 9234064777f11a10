"""A child of a process that is killed ends too, with its own children."""

import os
import signal
import subprocess
import sys

import psutil
import pytest

CHILD = """
import subprocess, sys, time
from portico.distributed.children import end_with_parent
end_with_parent()
print(subprocess.Popen(["sleep", "60"]).pid, flush=True)
time.sleep(60)
"""
PARENT = """
import os, subprocess, sys
from portico.distributed.children import build_child_environment
subprocess.run([sys.executable, "-c", {!r}], env=build_child_environment(os.environ))
"""
LAUNCHER = f"""
import subprocess, sys
from portico.distributed.children import end_with_parent
end_with_parent()
subprocess.run([sys.executable, "-c", {CHILD!r}], start_new_session=True)
"""


@pytest.mark.parametrize("started", [CHILD, LAUNCHER], ids=["child", "child of a launcher"])
def test_a_killed_process_takes_its_children_along(started):
    with subprocess.Popen([sys.executable, "-c", PARENT.format(started)], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        grandchild = psutil.Process(int(parent.stdout.readline()))
        child = grandchild.parent()
        assert child is not None
        if started == LAUNCHER:  # which can end nothing once it is killed itself
            launcher = child.parent()
            assert launcher is not None
            launcher.kill()
        else:
            assert child.ppid() == parent.pid
        os.kill(parent.pid, signal.SIGKILL)
        _, alive = psutil.wait_procs([child, grandchild], timeout=30)
    assert not [one for one in alive if one.status() != psutil.STATUS_ZOMBIE]
