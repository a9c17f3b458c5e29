"""A command that does not want to end: it blocks, has a child that has a child, and complains.

python tests/unit/cli/blocking_command.py once|twice|done|broken
"""

from __future__ import annotations

import subprocess
import sys
import time

from motet.cli.console import say
from motet.cli.interrupt import interruptible, until_stop_request
from motet.errors import MotetError

FAMILY = "sleep 60 & echo $!; exec sleep 60"


@interruptible("interrupted; nothing is lost")
def job(kind: str) -> int:
    if kind == "done":
        return 7
    if kind == "broken":
        raise MotetError("it broke")
    child = subprocess.Popen(["sh", "-c", FAMILY], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    family = f"{child.pid} {child.stdout.readline().strip()}"
    if kind == "twice":
        with until_stop_request("enough of the first part") as stop_request:
            say(family)  # from here on it may be interrupted
            while not stop_request:
                time.sleep(0.01)
        say("the second part")
    else:
        say(family)
    try:
        child.wait()
    finally:
        while True:
            sys.stderr.write("somebody has killed my child\n")
    return 0


if __name__ == "__main__":
    sys.exit(job(sys.argv[1]))
