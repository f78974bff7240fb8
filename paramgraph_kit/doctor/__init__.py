"""From a failed capture to its cause, the user's line and a fix."""

from __future__ import annotations

from paramgraph_kit.doctor.explain import explain as explain
from paramgraph_kit.trace.wording import failure_text as failure_text
