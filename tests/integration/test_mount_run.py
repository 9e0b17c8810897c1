"""A whole run in a bucket that is mounted as a folder, as the service does below /gcs/."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import mounts
import pytest
import yaml
from small_run import Small

from trainer import predict, storage
from trainer.config import Config
from trainer.environment import paths
from trainer.outputs import RunFolder
from trainer.run import train

pytestmark = [pytest.mark.slow, pytest.mark.faults]


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_a_killed_run_in_a_mounted_bucket_goes_on_to_the_figures_of_a_disk(
    small: Small,
    finished: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "trainer")
    bucket = mounts.refuse(monkeypatch, tmp_path / "gcs" / "bucket")
    (bucket / "data").mkdir()
    shutil.copyfile(small.data, bucket / "data" / "rows.parquet")
    content: dict[str, Any] = yaml.safe_load(small.config.read_text())
    content["data"]["source"] = f"{bucket}/data/*.parquet"
    config = Config(**{**content, "output_dir": f"{bucket}/run", "checkpoint": {"every_steps": 10}})

    write, manifests = storage.write_text, itertools.count(1)

    def dies(path: str, text: str) -> None:
        if path.endswith("manifest.json") and next(manifests) == 3:
            raise KeyboardInterrupt  # all else of this checkpoint is there
        write(path, text)

    with monkeypatch.context() as patch:
        patch.setattr(storage, "write_text", dies)
        with pytest.raises(KeyboardInterrupt):
            train(config)
    half = [
        path for path in (bucket / "run" / "checkpoints").iterdir() if not (path / "manifest.json").exists()
    ]
    assert [(path / "state.json").exists() for path in half] == [True]
    here = train(config)
    assert f"{half[0]} can't be used: it was never completed" in caplog.text
    assert "resuming at epoch" in caplog.text

    there = json.loads((finished / "metrics.json").read_text())
    for split in ("train", "validation", "test"):
        assert here[split] == pytest.approx(there[split], abs=1e-6)
    left = sorted(path.name for path in bucket.rglob("*") if ".tmp" in path.name or path.name.startswith("."))
    assert not left, "nothing half written"
    expected = {path.name for path in finished.iterdir()}
    assert {path.name for path in (bucket / "run").iterdir()} == expected, "the files of a run on a disk"
    assert not (bucket / "run" / "lock.json").exists()

    told = f"{bucket}/predictions.jsonl"
    predict.main([f"--model={bucket}/run", f"--input={bucket}/data/rows.parquet", f"--output={told}"])
    assert len(Path(told).read_text().splitlines()) == small.table.num_rows

    before = names(bucket / "run")
    assert RunFolder(paths(config), config, fresh=True).state == "new"
    (aside,) = bucket.glob("run.old-*")
    assert names(aside) == before, "nothing is lost"
