"""A Jupyter kernel that has imported everything before it starts: notebooks that are run one after the other save that.

serve FOLDER         imports what every notebook imports, then forks for each kernel that is asked for
start FOLDER FILE    what Jupyter starts as the kernel of a connection file: asks for it, and lives as long as it does

A fork is a kernel like any other, in a process of its own: what a notebook changes, the next one does not see.
"""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import sys
import threading
import time
import traceback
from importlib import import_module
from pathlib import Path

SOCKET = "socket"
# Not paramgraph_kit.driver.sim: that makes the simulated device, which is for a notebook to do.
IMPORTED = [
    "ipykernel.kernelapp",
    "torch._inductor.compile_fx",
    "torch._inductor.lowering",
    "functorch.compile",
    "paramgraph_kit.backend",
    "paramgraph_kit.doctor.explain.exception",
    "paramgraph_kit.explore._widget",
    "paramgraph_kit.ledger",
    "plotly.graph_objs._figure",
    "plotly.io._renderers",
]
PATIENCE_S = 120  # for the imports, on a machine that others use too


def serve(folder: str) -> None:
    """Import, then fork for each request until somebody ends this process."""
    here = str(Path(__file__).resolve().parent)
    sys.path[:] = [entry for entry in sys.path if entry != here]  # a kernel finds what its notebook finds
    for name in IMPORTED:
        import_module(name)
    assert threading.active_count() == 1  # a fork has no other
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(Path(folder) / f"{SOCKET}.new"))
    listener.listen()
    os.rename(Path(folder) / f"{SOCKET}.new", Path(folder) / SOCKET)
    while True:
        caller, _ = listener.accept()
        with caller:
            request, streams, _, _ = socket.recv_fds(caller, 1 << 20, 3)
            if os.fork() == 0:
                listener.close()
                _become(json.loads(request), streams, caller)
            for stream in streams:
                os.close(stream)


def _become(request: dict[str, object], streams: list[int], caller: socket.socket) -> None:
    """Be the kernel that was asked for, and end when it does or when nobody waits for it any more."""
    said = os.dup(2)  # of the server: what a kernel says before it replies, nobody reads
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        os.chdir(str(request["cwd"]))
        os.environ.clear()
        os.environ.update(dict(request["environment"]))  # type: ignore[call-overload]
        random.seed()

        def watch() -> None:
            caller.recv(1)
            os._exit(0)

        threading.Thread(target=watch, daemon=True).start()
        from ipykernel.kernelapp import launch_new_instance

        launch_new_instance(["-f", str(request["file"])])
    except BaseException:
        os.write(said, traceback.format_exc().encode())
        raise
    finally:
        os._exit(0)


def start(folder: str, file: str) -> None:
    """Ask for a kernel and wait until it has ended."""
    path, stop = str(Path(folder) / SOCKET), time.monotonic() + PATIENCE_S
    while not os.path.exists(path):
        if time.monotonic() > stop:
            sys.exit(f"nothing listens at {path}")
        time.sleep(0.05)
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(path)
        request = {"file": file, "cwd": os.getcwd(), "environment": dict(os.environ)}
        socket.send_fds(server, [json.dumps(request).encode()], [0, 1, 2])
        while server.recv(1):
            pass


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2])
    else:
        start(sys.argv[2], sys.argv[3])
