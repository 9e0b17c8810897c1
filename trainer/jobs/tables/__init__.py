"""Dated tables of what the service offers: machines, accelerators, images, prices. Adopters: update them.

Each is a file beside this one and says where its content is from and when it was true. `api.json` is
made by scripts/job_api.py.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parent
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@functools.cache
def load(name: str) -> dict[str, Any]:
    """Returns a table: `load("machines")` reads machines.yaml, `load("api")` api.json."""
    path = FOLDER / f"{name}.json"
    if path.exists():
        table: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return table
    table = yaml.load((FOLDER / f"{name}.yaml").read_text(encoding="utf-8"), Loader=_LOADER)
    return table
