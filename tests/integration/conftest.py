"""A finished run of a small table, shared by the integration tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_run import Small


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Small:
    """The small table and its config."""
    return Small(tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="session")
def finished(small: Small) -> Path:
    """The output folder of a finished run of the small config."""
    done = small.train("finished")
    assert done.returncode == 0, done.stdout + done.stderr
    return small.folder / "finished"
