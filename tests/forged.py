"""A job of an engine, as the engine sees it: `python -I -S forged.py TIE PARENT FORGE IMPORTS MODULE …`."""

import contextlib
import ctypes
import json
import os
import signal
import socket
import sys


def pass_on(forge: socket.socket, number: int) -> None:
    with contextlib.suppress(OSError):  # it has ended, and how is about to be read
        forge.send(bytes([number]))


def main() -> int:
    tie, parent, address, makers, module, *arguments = sys.argv[1:]
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    forge = socket.socket(socket.AF_UNIX)
    forge.connect(address)
    ctypes.CDLL(None).prctl(1, int(tie), 0, 0, 0)
    if os.getppid() != int(parent):  # it died before we were tied to it
        os.kill(os.getpid(), int(tie))
    request = {
        "module": module,
        "arguments": arguments,
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "name": arguments[-1],
        "at_death": int(tie),
        "imports": [module, *json.loads(makers)],
    }
    message = json.dumps(request).encode() + b"\n"
    sent = socket.send_fds(forge, [message], [1, 2])
    forge.sendall(message[sent:])
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: pass_on(forge, number))
    said = forge.recv(16)
    return int(said) if said else -signal.SIGKILL


if __name__ == "__main__":
    code = main()
    if code < 0:
        signal.signal(-code, signal.SIG_DFL) if code != -signal.SIGKILL else None
        os.kill(os.getpid(), -code)
    sys.exit(code)
