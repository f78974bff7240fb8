"""Starts JupyterLab as Binder does, runs every notebook, and prints the most memory that it all took."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
from pathlib import Path

import psutil  # type: ignore[import-untyped]  # ipykernel brings it, without types

MOST = 2 << 30  # bytes that Binder gives a person
TOKEN = "check"
FIRST = "notebooks/00_start_here.ipynb"


def used(process: psutil.Process) -> int:
    """Bytes of a process and its children; memory that they share counts once."""
    total = 0
    for each in [process, *process.children(recursive=True)]:
        try:
            total += each.memory_full_info().pss
        except psutil.Error:  # it has ended
            continue
    return total


def main() -> int:
    """The exit status: 1 if a notebook fails, JupyterLab does not start on the first or too much memory is taken."""
    with socket.socket() as probe:  # on a port that another JupyterLab has, that one would answer
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = [
        "--no-browser",
        "--allow-root",
        f"--port={port}",
        f"--IdentityProvider.token={TOKEN}",
        "--log-level=ERROR",
    ]
    server = subprocess.Popen([sys.executable, "-m", "jupyter", "lab", *options])
    peak = 0
    done = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.3):
            peak = max(peak, used(psutil.Process()))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        status = _answer(port)
        for notebook in sorted(Path("notebooks").glob("[0-9]*.ipynb")):
            command = [sys.executable, "-m", "jupyter", "nbconvert", "--execute", "--to", "notebook", "--stdout"]
            run = subprocess.run([*command, str(notebook)], capture_output=True, text=True, check=False)
            print(f"• {notebook.name:<40} {'ok' if run.returncode == 0 else 'FAILED'}  {peak / 2**20:5.0f} MiB so far")
            if run.returncode:
                print(run.stderr[-2000:], file=sys.stderr)
                status = 1
    finally:
        done.set()
        watcher.join()
        server.terminate()
        server.wait()
    print(f"JupyterLab and one notebook at a time took {peak / 2**20:.0f} MiB at most, of {MOST >> 20}")
    return status or int(peak > MOST)


def _answer(port: int) -> int:
    """Whether JupyterLab, asked for nothing in particular, leads to the first notebook."""
    for _ in range(60):
        try:
            with urllib.request.urlopen(f"http://localhost:{port}/?token={TOKEN}", timeout=5) as answer:
                path = urllib.parse.urlsplit(answer.url).path
                print(f"• JupyterLab starts on {path}: HTTP {answer.status}")
                return int(path != f"/lab/tree/{FIRST}")
        except OSError:
            time.sleep(0.5)
    print("JupyterLab does not answer", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
