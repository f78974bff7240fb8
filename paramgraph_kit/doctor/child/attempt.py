"""Run in a process of its own: warm a function up, capture it for real, replay it, and write down how that went."""

from __future__ import annotations

import json
import os
import sys
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import Any

from paramgraph_kit.doctor.child.carry import unpack
from paramgraph_kit.doctor.explain.exception import explain
from paramgraph_kit.driver.select import driver, twin

WARM_UPS = 3


def attempt(data: bytes) -> dict[str, Any]:
    """How the capture of a packed function went: "captured", "failed" with the failure, or "cannot" with a reason."""
    target, cuda = driver(), twin()
    try:
        function, args, kwargs = unpack(data)
    except Exception as error:
        return {"outcome": "cannot", "why": f"it cannot be made again there: {type(error).__name__}: {error}"}
    graph, side = cuda.CUDAGraph(), cuda.Stream()
    try:
        side.wait_stream(cuda.current_stream())
        with cuda.stream(side):
            for _ in range(WARM_UPS):
                function(*args, **kwargs)
        cuda.current_stream().wait_stream(side)
        cuda.synchronize()
        with cuda.graph(graph):
            function(*args, **kwargs)
        graph.replay()
        cuda.synchronize()
    except Exception as error:
        traceback.print_exc()
        return {"outcome": "failed", "failure": asdict(explain(error)), "where": target.source().label()}
    return {"outcome": "captured", "where": target.source().label()}


def main(given: str, answer: str) -> None:
    """Read a packed function from one file and write the answer to another."""
    found = attempt(Path(given).read_bytes())
    Path(answer).write_text(json.dumps(found), encoding="utf-8")
    sys.stdout.flush()
    # After a failed capture torch may abort while it cleans up, and everything is said.
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:3])
