"""The worker process: reads calls from its standard input, answers on what was its standard output."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from pickle import PicklingError
from typing import Any, BinaryIO

from graphopt.errors import ExecutionError, GraphoptError, RunFailedError, ValueNotSupportedError, WorkerMemoryError
from graphopt.runtime.channel import read_message, write_message


def _leave_with_parent(parent: int) -> None:
    """End this process when its parent has gone, even in the middle of a run: no worker is ever left behind."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(3)


def _portable(error: BaseException) -> BaseException:
    """An exception that can be sent; foreign classes may not unpickle on the other side."""
    if isinstance(error, GraphoptError):
        # Only the sentence: causes hold objects of the runtime. Classes with other constructors lose their fields.
        if isinstance(error, ExecutionError) or type(error).__init__ is Exception.__init__:
            return type(error)(str(error))
        return GraphoptError(str(error))
    if isinstance(error, MemoryError):
        return WorkerMemoryError(f"out of memory: {error or 'an array could not be allocated'}")
    return RunFailedError(f"{type(error).__name__}: {error}")


def serve(requests: BinaryIO, replies: BinaryIO) -> None:
    """Answer calls until the other side closes the pipe."""
    while True:
        try:
            function, arguments, keywords = read_message(requests)
        except EOFError:
            return
        reply: tuple[str, Any]
        try:
            reply = ("value", function(*arguments, **keywords))
        except Exception as error:
            reply = ("error", _portable(error))
        function = arguments = keywords = None
        try:
            write_message(replies, reply)
        except (
            TypeError,
            AttributeError,
            PicklingError,
        ) as error:  # nothing has been written yet: the pickle comes first
            refusal = f"a value of this type cannot be read in Python: {error}; compare the model without this output"
            write_message(replies, ("error", ValueNotSupportedError(refusal)))


def main() -> None:
    """Take the pipe for messages and turn whatever libraries print towards the log."""
    requests = os.fdopen(os.dup(0), "rb")
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # a print from native code must not end up between two messages
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides what it ends
    threading.Thread(target=_leave_with_parent, args=(os.getppid(),), daemon=True).start()
    with contextlib.suppress(BrokenPipeError):
        serve(requests, replies)
    sys.stdout.flush()
    os._exit(0)  # the runtime's own tear-down can crash and has nothing to save


if __name__ == "__main__":
    main()
