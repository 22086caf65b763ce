"""Ctrl-C while the command is still being imported ends it in one line, not with a traceback out of an import.

Imported before anything else, which is when the half second begins; the command takes over once it runs.
"""

from __future__ import annotations

import os
import signal
import sys
import threading


def _leave(number: int, frame: object) -> None:
    sys.stderr.write("error: interrupted; nothing was begun\n")
    sys.stderr.flush()
    os._exit(130)


def _is_command() -> bool:
    name = os.path.basename(sys.argv[0] if sys.argv else "")
    return name in ("graphopt", "graphopt.exe", "graphopt-script.py")


if (
    _is_command()
    and threading.current_thread() is threading.main_thread()
    and signal.getsignal(signal.SIGINT) is signal.default_int_handler
):
    signal.signal(signal.SIGINT, _leave)
