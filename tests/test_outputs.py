"""The output folder: whose it is, and that nothing in it is lost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from trainer import storage
from trainer.config import Config
from trainer.environment import paths
from trainer.errors import UserError
from trainer.outputs import RunFolder, differing_keys, resolved_yaml

pytestmark = pytest.mark.faults


def config(folder: Path, **training: object) -> Config:
    return Config.model_validate(
        {
            "name": "x",
            "task": "binary",
            "output_dir": str(folder),
            "data": {"source": "rows.csv", "split": {"by": "hash", "column": "id"}},
            "label": {"column": "y"},
            "features": [{"name": "a", "kind": "numeric"}],
            "training": training,
        }
    )


def claimed(folder: Path, **training: object) -> RunFolder:
    made = RunFolder(paths(config(folder, **training), {}), config(folder, **training))
    made.claim()
    (folder / "checkpoints" / "0000000007-0001").mkdir(parents=True, exist_ok=True)
    return made


def test_a_run_that_ended_before_its_first_checkpoint_claims_nothing(tmp_path: Path) -> None:
    """The corrected command after a mistake goes on in the same folder."""
    first = RunFolder(paths(config(tmp_path, batch_size=255), {}), config(tmp_path, batch_size=255))
    first.claim()
    first.status("failed")
    second = RunFolder(first.paths, config(tmp_path, batch_size=256))
    assert (second.state, second.attempt) == ("new", 2)


def test_states_of_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    first = claimed(folder)
    assert (first.state, first.attempt) == ("new", 1)
    second = claimed(folder)
    assert (second.state, second.attempt) == ("started", 2)
    second.status("succeeded")
    assert RunFolder(second.paths, config(folder)).state == "finished"


def test_resolved_config_loads_to_an_equal_config(tmp_path: Path) -> None:
    one = config(tmp_path, epochs=7, class_weights={"no": 2.0})
    assert Config.model_validate(yaml.safe_load(resolved_yaml(one))) == one


def test_another_config_is_refused_with_its_keys(tmp_path: Path) -> None:
    claimed(tmp_path / "run")
    with pytest.raises(UserError, match=r"training\.batch_size: 1024 -> 64.*--fresh") as caught:
        claimed(tmp_path / "run", batch_size=64)
    assert "training.epochs" not in str(caught.value)
    with pytest.raises(UserError, match=r"training\.epochs: 3 -> 4; training\.learning_rate: 0\.001 -> 0\.1"):
        claimed(tmp_path / "run", learning_rate=0.1, epochs=4)


def test_keys_that_do_not_touch_the_weights_may_change() -> None:
    old = {"training": {"steps_per_call": 0, "epochs": 3}, "checkpoint": {"keep": 3}, "output_dir": "a"}
    new = {"training": {"steps_per_call": 9, "epochs": 3}, "checkpoint": {"keep": 5}, "output_dir": "b"}
    assert differing_keys(old, new) == []
    assert differing_keys(old, {**new, "outputs": 1}) == ["outputs: None -> 1"]


def test_a_key_that_came_to_be_since_is_no_difference(tmp_path: Path) -> None:
    folder = claimed(tmp_path / "run")
    path = Path(folder.paths.file("config.yaml"))
    known = yaml.safe_load(path.read_text())
    del known["data"]["sharding"]  # as a version wrote it that had no such key
    path.write_text(yaml.safe_dump(known))
    assert claimed(tmp_path / "run").state == "started"
    known["data"]["cache"] = "none"
    path.write_text(yaml.safe_dump({**known, "no_longer": 1}))
    with pytest.raises(UserError, match=r"data\.cache: 'none' -> 'memory'"):
        claimed(tmp_path / "run")


def test_fresh_moves_everything_aside_and_loses_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    claimed(folder)
    (folder / "model").mkdir()
    (folder / "model" / "saved_model.pb").write_text("old")
    outside = tmp_path / "elsewhere"
    outside.mkdir()
    (outside / "state").write_text("old")
    places = paths(config(folder), {"AIP_CHECKPOINT_DIR": f"{outside}/"})
    made = RunFolder(places, config(folder, epochs=9), fresh=True)
    assert made.state == "new"
    kept = sorted(p.read_text() for p in tmp_path.rglob("*") if p.name in ("saved_model.pb", "state"))
    assert kept == ["old", "old"]
    assert not folder.exists()
    assert not outside.exists()


def test_a_model_of_something_else_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "saved_model.pb").write_text("precious")
    places = paths(config(tmp_path / "run"), {"AIP_MODEL_DIR": f"{tmp_path}/m/"})
    with pytest.raises(UserError, match="would be overwritten"):
        RunFolder(places, config(tmp_path / "run"))


def test_failure_is_told_with_its_traceback(tmp_path: Path) -> None:
    made = claimed(tmp_path / "run")
    try:
        raise RuntimeError("disk on fire")
    except RuntimeError as error:
        made.failed(error)
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert (status["state"], status["error"]) == ("failed", "disk on fire")
    assert "RuntimeError" in status["traceback"]


def test_damaged_config_of_an_earlier_start_is_named(tmp_path: Path) -> None:
    claimed(tmp_path / "run")
    (tmp_path / "run" / "config.yaml").write_text("{unclosed")
    with pytest.raises(UserError, match=r"config\.yaml.*--fresh"):
        claimed(tmp_path / "run")


def test_text_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b.json"
    storage.write_json(str(path), {"x": 1})
    with pytest.raises(ValueError, match="JSON"):
        storage.write_json(str(path), {"x": float("nan")})
    assert storage.read_json(str(path)) == {"x": 1}
    assert storage.listing(str(path.parent)) == ["b.json"]
    assert storage.read_json(str(tmp_path / "none.json")) is None
