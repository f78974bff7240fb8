"""``python -m paramgraph_kit.bench``."""

from __future__ import annotations

import sys

from paramgraph_kit.bench import main

sys.exit(main())
