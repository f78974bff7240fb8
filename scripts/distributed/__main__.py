"""``python -m scripts.distributed``, from the root of a checkout: FSDP2 and DDP on several GPUs, in every mode."""

from __future__ import annotations

import sys

from scripts.distributed.command import main

sys.exit(main())
