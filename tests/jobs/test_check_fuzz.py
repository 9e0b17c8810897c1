"""`check` and `cost` on files with anything at any place: findings, or one sentence, but never a crash."""

from __future__ import annotations

import contextlib
import datetime
import random
from pathlib import Path
from typing import Any

import pytest
import yaml

from trainer.errors import UserError
from trainer.jobs import check, cost, loading, prices

ROOT = Path(__file__).parents[2]
SHIPPED = sorted((ROOT / "configs" / "jobs").glob("*.yaml"))
ODD: list[Any] = [
    None, "", "x", "-1", -1, 0, 3, 2.5, 10**12, True, [], {}, [None], [[]], [{}], {"a": None}, {"": 1},
    "1e400", "gs://", "projects/x", "0s", "--", "--config", "é" * 50, [1, "a", {}],
    10**30, "1" * 30, float("inf"), float("nan"), "\x00", "gs://B*/[x", "a b://c:d@e", "../..", "trainer.\n",
]  # fmt: skip


def _places(node: Any) -> list[tuple[Any, Any]]:
    """Returns (container, key) of every value in a document."""
    found: list[tuple[Any, Any]] = []
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in items:
        found += [(node, key), *_places(value)]
    return found


@pytest.mark.parametrize("seed", range(40))
def test_nothing_crashes(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    random_ = random.Random(seed)
    content = yaml.safe_load(random_.choice(SHIPPED).read_text())
    for _ in range(random_.randint(1, 3)):
        container, key = random_.choice(_places(content))
        if random_.random() < 0.3:
            del container[key]
            break
        container[key] = random_.choice(ODD)
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    found, _ = check.check(str(path), today=datetime.date(2026, 11, 30))
    assert all(finding.why and finding.instead and finding.line >= 1 for finding in found)
    with contextlib.suppress(UserError):  # no such machine, no price
        cost.as_text(cost.bill(loading.load(str(path)), prices.load()))
