"""``python -m scripts.record``, from the root of a checkout: the recordings that the package ships."""

from __future__ import annotations

import sys

from scripts.record.command import main

sys.exit(main())
