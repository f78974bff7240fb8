"""Keeps JupyterLab of this environment from asking about news when it is first opened."""

from __future__ import annotations

import json
import sys
from pathlib import Path

ANNOUNCEMENTS = "@jupyterlab/apputils-extension:announcements"


def main(prefix: Path = Path(sys.prefix)) -> Path:
    """Switch the plugin off in the environment's own configuration, beside what is there; returns the file."""
    path = prefix / "etc" / "jupyter" / "labconfig" / "page_config.json"
    settings = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    if not settings.setdefault("disabledExtensions", {}).get(ANNOUNCEMENTS):
        settings["disabledExtensions"][ANNOUNCEMENTS] = True
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(settings, indent=2), encoding="utf-8")
    return path


if __name__ == "__main__":
    main()
