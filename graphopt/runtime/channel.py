"""Messages between this process and the worker: pickled, arrays beside the pickle so that they are copied once."""

from __future__ import annotations

import pickle
import struct
from typing import Any, BinaryIO

_HEAD = struct.Struct("<QI")
_SIZE = struct.Struct("<Q")


def write_message(stream: BinaryIO, message: Any) -> None:
    """Write one message: head, sizes of the buffers, pickle, buffers."""
    buffers: list[pickle.PickleBuffer] = []
    payload = pickle.dumps(message, protocol=5, buffer_callback=buffers.append)
    views = [buffer.raw() for buffer in buffers]
    stream.write(_HEAD.pack(len(payload), len(views)))
    for view in views:
        stream.write(_SIZE.pack(view.nbytes))
    stream.write(payload)
    for view in views:
        stream.write(view)
    stream.flush()


def read_message(stream: BinaryIO) -> Any:
    """Read one message.

    Raises:
        EOFError: The other side has gone.
    """
    length, count = _HEAD.unpack(_exactly(stream, _HEAD.size))
    sizes = [_SIZE.unpack(_exactly(stream, _SIZE.size))[0] for _ in range(count)]
    payload = _exactly(stream, length)
    buffers = [_exactly(stream, size) for size in sizes]
    return pickle.loads(payload, buffers=buffers)


def _exactly(stream: BinaryIO, size: int) -> bytearray:
    buffer = bytearray(size)
    view = memoryview(buffer)
    filled = 0
    while filled < size:
        got = stream.readinto(view[filled:])  # type: ignore[attr-defined]
        if not got:
            raise EOFError("the other side has gone")
        filled += got
    return buffer
