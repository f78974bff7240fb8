"""From a failed capture to its cause, the user's line and a fix."""

from __future__ import annotations

from paramgraph_kit.doctor.explain.exception import explain as explain
from paramgraph_kit.doctor.known.catalogue import catalogue as catalogue
from paramgraph_kit.doctor.known.catalogue import failure_class as failure_class
from paramgraph_kit.doctor.known.failure_class import FailureClass as FailureClass
from paramgraph_kit.trace.wording import failure_text as failure_text
