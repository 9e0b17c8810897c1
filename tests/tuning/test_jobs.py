"""Trials of a local study as jobs: what their rules of restart say, and machines to lose."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import synthetic

from trainer.errors import UserError
from trainer.jobs import loading
from trainer.jobs.here import Here
from trainer.jobs.processes import Loss
from trainer.tuning import jobs
from trainer.tuning.trial import Trial


@pytest.mark.parametrize(
    ("state", "said"),
    [("FAILED", "why"), ("TIMEOUT", "why"), ("CANCELLED", ""), ("SUCCEEDED", ""), (None, "")],
)
def test_the_verdict_is_that_of_the_trials_job(tmp_path: Path, state: str | None, said: str) -> None:
    launch = jobs.JobTrials(loading.load(str(synthetic.write(tmp_path))), Here(str(tmp_path / "work")))
    if state:
        place = tmp_path / "work" / "replicas" / "3" / "outcome.json"
        place.parent.mkdir(parents=True)
        place.write_text(json.dumps({"state": state, "reason": "why"}))
    assert launch.verdict(Trial(3, "2", {})) == said


def test_a_machine_to_lose_must_be_one_of_a_trial(tmp_path: Path) -> None:
    job = loading.load(str(synthetic.write(tmp_path)))
    with pytest.raises(UserError, match=r"no replica 'worker7' here; expected one of chief"):
        jobs.prepare(job, Here(str(tmp_path)), {}, losses=[Loss("worker7", "killed", after=1.0)])
