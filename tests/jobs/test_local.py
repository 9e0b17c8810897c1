"""`local`: what each shipped job file starts here, its options, and what is on the screen."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from test_processes import write_job

from trainer import __main__
from trainer.errors import UserError
from trainer.jobs import here, loading, local
from trainer.jobs.here import Here
from trainer.jobs.processes import Loss

ROOT = Path(__file__).parents[2]
JOBS = ROOT / "configs" / "jobs"
SHIPPED = sorted(JOBS.glob("*.yaml"))
GOLDEN = ROOT / "tests" / "golden" / "local"


@pytest.fixture(autouse=True)
def _in_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def _plan(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert local.main([*arguments, "--dry_run"]) == 0
    text = capsys.readouterr().out.replace(sys.executable, "python").replace(f"{ROOT}/", "")
    found: dict[str, Any] = json.loads(text)
    return found


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_what_a_shipped_job_starts(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Commands and variables of every replica, JSON for JSON; make golden writes the files anew."""
    found = _plan(capsys, f"configs/jobs/{path.name}", "--map", "gs://my-bucket/flights=data")
    for replica in found["replicas"].values():
        for name in ("CLUSTER_SPEC", "TF_CONFIG", "TPU_CONFIG"):
            if name in replica["variables"]:
                replica["variables"][name] = json.loads(replica["variables"][name])
    text = json.dumps(found, indent=1) + "\n"
    golden = GOLDEN / f"{path.stem}.json"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.parent.mkdir(parents=True, exist_ok=True)
        golden.write_text(text)
    assert text == golden.read_text()


def test_golden_files_belong_to_jobs() -> None:
    assert {path.stem for path in GOLDEN.glob("*.json")} == {path.stem for path in SHIPPED}


def test_arguments_after_the_dashes_come_last(capsys: pytest.CaptureFixture[str]) -> None:
    found = _plan(capsys, "configs/jobs/custom_job.yaml", "--map=gs://my-bucket=data")
    without = found["replicas"]["chief"]["command"]
    assert "'--data.source=data/flights/*.parquet'" in without
    local.main(
        ["configs/jobs/custom_job.yaml", "--map=gs://my-bucket=data", "--dry_run", "--", "--epochs=1", "x"]
    )
    assert json.loads(capsys.readouterr().out)["replicas"]["chief"]["command"].endswith("--epochs=1 x")


def test_mapped_bucket_takes_the_output_and_maps_the_config(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = (ROOT / "configs" / "flights.yaml").read_text()
    mine = tmp_path / "mine.yaml"
    mine.write_text(config.replace("data/flights/*.parquet", "gs://b/rows/*.parquet"))
    job = tmp_path / "job.yaml"
    text = (JOBS / "custom_job.yaml").read_text().replace("configs/flights.yaml", str(mine))
    job.write_text(
        text.replace("    - --data.source=gs://my-bucket/flights/*.parquet\n", "").replace("my-bucket", "b")
    )
    (tmp_path / "bucket").mkdir()
    found = _plan(capsys, str(job), f"--map=gs://b={tmp_path}/bucket", f"--output={tmp_path}/work")
    chief = found["replicas"]["chief"]
    assert chief["variables"]["AIP_MODEL_DIR"] == f"{tmp_path}/bucket/runs/flights/model/"
    (copy,) = re.findall(r"--config=(\S+)", chief["command"])
    assert copy == f"{tmp_path}/work/configs/mine.yaml"
    assert f"{tmp_path}/bucket/rows/*.parquet" in Path(copy).read_text()
    assert Path(mine).read_text() != Path(copy).read_text()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("chief@30s", Loss("chief", "killed", after=30)),
        ("worker1@1.5m", Loss("worker1", "killed", after=90)),
        ("worker1@200ms", Loss("worker1", "killed", after=0.2)),
        ("worker2@10", Loss("worker2", "killed", after=10)),
        ("workerpool1-0@10s", Loss("worker1", "killed", after=10)),
        ("workerpool0-0@10s", Loss("chief", "killed", after=10)),
        ("chief@epoch 2/3", Loss("chief", "killed", text="epoch 2/3")),
    ],
)
def test_when_a_machine_is_lost(text: str, expected: Loss) -> None:
    assert local.loss(text, "killed") == expected


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--kill=worker1"], r"Invalid --kill: got 'worker1', expected REPLICA@WHEN"),
        (["--preempt=@3s"], r"Invalid --preempt: got '@3s'"),
        (["--map=my-bucket=data"], r"Invalid --map: got 'my-bucket=data', expected gs://BUCKET=FOLDER"),
        (["--map=gs://my-bucket=nowhere"], r"Invalid --map: nowhere is no folder here"),
        (["--dataset=data"], r"Invalid --dataset: got 'data', expected bq://PROJECT.DATASET"),
        (["--grace=-1"], r"expected a number above 0"),
        (["--preemt=chief@3s"], r"unknown flag --preemt; did you mean 'preempt'"),
        (["configs/jobs/spot.yaml"], r"local runs one job file, got 2"),
        (
            ["--set=workerPoolSpecs[0].containerSpec.args[0]=--config=configs/x.yaml"],
            r"--config=configs/x.yaml is not here",
        ),
    ],
)
def test_mistakes_on_the_command_line(arguments: list[str], says: str) -> None:
    with pytest.raises(UserError, match=says):
        local.main(["configs/jobs/custom_job.yaml", *arguments, "--dry_run"])


def test_managed_dataset_of_a_folder_or_of_bigquery(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = "configs/jobs/pipeline_managed_dataset.yaml"
    for split in ("training", "validation", "test"):
        (tmp_path / f"{split}-0.csv").write_text("a\n")
    chief = _plan(capsys, job, f"--dataset={tmp_path}")["replicas"]["chief"]["variables"]
    assert chief["AIP_DATA_FORMAT"] == "csv"
    assert chief["AIP_TEST_DATA_URI"] == f"{tmp_path}/test-*.csv"
    chief = _plan(capsys, job, "--dataset=bq://p.dataset_1")["replicas"]["chief"]["variables"]
    assert chief["AIP_DATA_FORMAT"] == "bigquery"
    assert chief["AIP_TRAINING_DATA_URI"] == "bq://p.dataset_1.training"
    assert chief["AIP_VALIDATION_DATA_URI"] == "bq://p.dataset_1.validation"


# --- the screen -------------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


LINES = [
    ("chief", "plain"),
    ("worker1", '{"severity": "INFO", "message": "step 1", "step": 1}'),
    ("worker1", '{"severity": "WARNING", "message": "two\\nlines"}'),
    ("worker1", '{"severity": "INFO"'),
    ("worker1", '{"other": 1}'),
]
SHOWN = [
    "chief   | plain",
    "worker1 | step 1",
    "worker1 | warning: two",
    "worker1 | lines",
    'worker1 | {"severity": "INFO"',
    'worker1 | {"other": 1}',
]


@pytest.mark.parametrize(("stream", "environ", "colour"), [
    (io.StringIO(), {"TERM": "xterm"}, False),
    (Terminal(), {"TERM": "xterm"}, True),
    (Terminal(), {"TERM": "dumb"}, False),
    (Terminal(), {"TERM": "xterm", "NO_COLOR": "1"}, False),
])  # fmt: skip
def test_lines_of_replicas(
    stream: io.StringIO, environ: dict[str, str], colour: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    screen = local.Screen(["chief", "worker1"], stream)
    for name, line in LINES:
        screen.show(name, line)
    written = stream.getvalue()
    assert ("\033[" in written) == colour
    assert re.sub(r"\033\[\d+m", "", written).splitlines() == SHOWN
    if colour:
        assert written.splitlines()[0].startswith("\033[36mchief   |\033[0m ")
        assert "\033[33mwarning: two\033[0m" in written


def test_whoever_stops_reading_ends_the_job() -> None:
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    screen = local.Screen(["chief"], Closed())
    calls: list[int] = []
    screen.broken = lambda: calls.append(1)
    screen.show("chief", "x")
    assert calls == [1]


# --- the whole of it --------------------------------------------------------------------------------------


def test_exit_code_says_how_it_ended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    work = f"--output={tmp_path}/work"
    assert local.main([str(write_job(tmp_path, "--chief=say:hello")), work]) == 0
    out = capsys.readouterr().out
    assert "chief | hello\n" in out
    assert "local | SUCCEEDED after " in out
    assert local.main([str(write_job(tmp_path, "--chief=exit:4")), work, "--", "--chief=exit:5"]) == 4
    assert "FAILED" in capsys.readouterr().out
    (tmp_path / "work" / "output").mkdir()
    assert local.main([str(write_job(tmp_path, "--chief=exit:0")), work, "--fresh"]) == 0
    assert not (tmp_path / "work" / "output").exists()
    assert [path.name for path in tmp_path.glob("work.old-*/output")] == ["output"]


def test_what_shipped_files_leave_to_fill_in_is_refused_before_it_is_waited_for(tmp_path: Path) -> None:
    work = f"--output={tmp_path}/work"
    for name in ("custom_job", "multi_worker", "hp_tuning", "prebuilt_spot", "pipeline"):
        with pytest.raises(
            UserError, match=r"source=gs://my-bucket/flights/\*.*--map gs://my-bucket/flights=FOLD"
        ):
            local.main([f"configs/jobs/{name}.yaml", work])
    job = loading.load("configs/jobs/custom_job.yaml")
    mapped = Here(str(tmp_path), maps=here.maps([f"gs://my-bucket/flights={tmp_path}"]))
    assert [path.stem for path in SHIPPED if here.placeholders(loading.load(str(path)), mapped)] == []
    assert here.placeholders(job, Here(str(tmp_path), extra=("--data.source", "rows.parquet"))) == []
    assert here.placeholders(job, Here(str(tmp_path), extra=("--name=x",))) != []


def test_errors_that_check_knows_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_job(tmp_path, "--chief=exit:0")
    path.write_text(path.read_text().replace("n1-standard-8", "n1-standard-12"))
    assert local.main([str(path), f"--output={tmp_path}/work"]) == 0
    assert "local | check: " in capsys.readouterr().out


def test_pipeline_needs_the_model_that_it_uploads(tmp_path: Path) -> None:
    path = write_job(tmp_path, "--chief=exit:0")
    text = "".join(f"  {line}\n" for line in path.read_text().splitlines())
    path.write_text(
        "displayName: x\ntrainingTaskDefinition: gs://google-cloud-aiplatform/schema/trainingjob/definition/"
        f"custom_task_1.0.0.yaml\ntrainingTaskInputs:\n{text}modelToUpload: {{displayName: x}}\n"
    )
    arguments = [str(path), f"--output={tmp_path}/work"]
    with pytest.raises(UserError, match=r"modelToUpload: .* the job left no .*output/model/saved_model.pb"):
        local.main(arguments)
    (tmp_path / "work" / "output" / "model").mkdir(parents=True)
    (tmp_path / "work" / "output" / "model" / "saved_model.pb").write_text("")
    assert local.main(arguments) == 0


def test_reading_stops_and_nothing_is_raised(tmp_path: Path) -> None:
    """`local ... | head -1`: the job is ended when its reader is gone."""
    path = write_job(tmp_path, "--chief=say:x,sleep:1,say:y,sleep:1,say:z,sleep:600")
    command = f"{sys.executable} -m trainer local {path} --output={tmp_path}/work | head -1"
    done = subprocess.run(
        ["sh", "-c", command], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr
    assert done.stdout.startswith("local | job 'job': 1 chief")


def test_tensorflow_is_not_imported(tmp_path: Path) -> None:
    code = (
        "import sys; sys.argv = ['trainer', *sys.argv[1:]]; from trainer import __main__;"
        "code = __main__.main(); print('tensorflow' in sys.modules, code)"
    )
    path = write_job(tmp_path, "--chief=exit:0")
    done = subprocess.run(
        [sys.executable, "-c", code, "local", str(path), f"--output={tmp_path}/work"],
        cwd=ROOT, capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    assert done.stdout.split()[-2:] == ["False", "0"]


def test_it_is_a_verb(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        __main__.run(["local", "--help"])
    out = capsys.readouterr().out
    assert all(f"--{name}" in out for name in local.OPTIONS)
