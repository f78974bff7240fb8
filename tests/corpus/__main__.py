"""``python -m tests.corpus``, from the root of a checkout: every workload of the corpus."""

from __future__ import annotations

import sys

from tests.corpus.command import main

sys.exit(main())
