"""``python -m paramgraph_kit.bench``."""

import sys

from paramgraph_kit.bench import main

sys.exit(main())
