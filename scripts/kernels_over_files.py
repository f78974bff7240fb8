"""For nbval: kernels are reached through files, not ports: ``pytest -p nbval -p scripts.kernels_over_files``.

Jupyter chooses a kernel's ports before the kernel takes them. On a busy machine another process has one of them by
then now and then, and the kernel "died before replying".
"""

from __future__ import annotations

import os
from pathlib import Path
from uuid import uuid4

import nbval.kernel
from jupyter_client.manager import KernelManager
from traitlets import CaselessStrEnum, Unicode, default

FOLDER = "PARAMGRAPH_KERNELS"  # the variable of the environment: a folder with a short name


class OverFiles(KernelManager):
    """A kernel manager whose sockets are files of a name that nobody else has."""

    transport = CaselessStrEnum(["tcp", "ipc"], default_value="ipc")
    connection_file = Unicode()

    @default("connection_file")
    def _connection_file_default(self) -> str:
        return str(Path(os.environ[FOLDER]) / f"{uuid4().hex}.json")


nbval.kernel.KernelManager = OverFiles
