"""The verb submit: what stops it, what it sends, and what it tells."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.jobs.test_calls import has_sdk
from trainer.errors import UserError
from trainer.jobs import submit

ROOT = Path(__file__).parents[2]
JOBS = ROOT / "configs" / "jobs"
needs_sdk = pytest.mark.skipif(not has_sdk(), reason="google-cloud-aiplatform is not installed")


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    for name in (*submit._PROJECTS, *submit._REGIONS):
        monkeypatch.delenv(name, raising=False)


def mine(tmp_path: Path, name: str = "custom_job", *changes: tuple[str, str]) -> str:
    """Writes a shipped job file with a project and a bucket put in, and returns its path."""
    text = (
        (JOBS / f"{name}.yaml").read_text().replace("my-project", "p-local").replace("my-bucket", "b-local")
    )
    for before, after in changes:
        assert before in text
        text = text.replace(before, after)
    path = tmp_path / f"{name}.yaml"
    path.write_text(text)
    return str(path)


def dry(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, Any]:
    assert submit.main([*argv, "--dry_run"]) == 0
    out = capsys.readouterr().out
    found: dict[str, Any] = json.loads(out)
    return found


def test_dry_run_prints_the_request_alone(capsys: pytest.CaptureFixture[str]) -> None:
    made = dry(capsys, "configs/jobs/custom_job.yaml", "--project=p-local", "--name=nightly")
    assert made["method"] == "google.cloud.aiplatform.v1.JobService/CreateCustomJob"
    assert made["endpoint"] == "us-central1-aiplatform.googleapis.com"
    assert made["request"]["parent"] == "projects/p-local/locations/us-central1"
    job = made["request"]["customJob"]
    assert job["displayName"] == "nightly"
    assert set(job["labels"]) >= {"config_hash", "submission"}


def test_dry_run_needs_no_sdk_and_no_tensorflow() -> None:
    """In a process where the SDK can't be imported, the request is made all the same."""
    code = (
        "import sys; sys.modules['google.cloud.aiplatform_v1'] = None\n"
        "from trainer.jobs import submit\n"
        "code = submit.main(sys.argv[1:])\n"
        "assert not {'tensorflow', 'grpc', 'numpy', 'pyarrow'} & set(sys.modules)\n"
        "sys.exit(code)"
    )
    job = "configs/jobs/multi_worker.yaml"
    command = [sys.executable, "-c", code, job, "--project=p-local", "--dry_run"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["request"]["customJob"]["displayName"] == "multi_worker"


def test_without_the_sdk_it_says_how_to_install_it(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['google.cloud.aiplatform_v1'] = None\n"
        "from trainer import __main__; sys.argv[1:1] = ['submit']; sys.exit(__main__.main())"
    )
    command = [sys.executable, "-c", code, mine(tmp_path), "--project=p-local"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert "pip install 'trainer[submit]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_error_of_check_stops_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = mine(tmp_path, "custom_job", ("n1-standard-8", "n1-standard-12"))
    line = next(
        i for i, text in enumerate(Path(path).read_text().splitlines(), 1) if "n1-standard-12" in text
    )
    # No server, no SDK call: it would fail otherwise.
    assert submit.main([path, "--project=p-local", "--endpoint=http://127.0.0.1:1"]) == 1
    assert f"{path}:{line}: workerPoolSpecs[0].machineSpec.machineType: " in caplog.text
    assert "nothing was sent: check found 1 error" in caplog.text


def test_a_slip_in_a_field_name_stops_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = mine(tmp_path, "custom_job", ("replicaCount", "replicaCont"))
    assert submit.main([path, "--project=p-local"]) == 1
    assert "write replicaCount" in caplog.text


def test_set_lays_values_over_the_file(capsys: pytest.CaptureFixture[str]) -> None:
    made = dry(
        capsys,
        "configs/jobs/custom_job.yaml",
        "--project=p-local",
        "--set=workerPoolSpecs[0].machineSpec.machineType=n1-standard-16",
        "--set",
        "scheduling.timeout=3600s",
        "--set=workerPoolSpecs[0].containerSpec.args[2]=--data.reader_threads=16",
    )
    spec = made["request"]["customJob"]["jobSpec"]
    assert spec["workerPoolSpecs"][0]["machineSpec"] == {"machineType": "n1-standard-16"}
    assert spec["workerPoolSpecs"][0]["containerSpec"]["args"][2] == "--data.reader_threads=16"
    assert spec["scheduling"] == {"timeout": "3600s"}


def test_a_value_that_is_set_is_checked_too(caplog: pytest.LogCaptureFixture) -> None:
    argv = ["configs/jobs/custom_job.yaml", "--project=p-local", "--set=workerPoolSpecs[0].replicaCount=2"]
    assert submit.main([*argv, "--dry_run"]) == 1
    assert "chief-replicas" in caplog.text


def test_config_hash_follows_the_config_and_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def config_hash(path: str) -> str:
        labels = dry(capsys, path, "--project=p-local")["request"]["customJob"]["labels"]
        found: str = labels["config_hash"]
        return found

    path = mine(tmp_path)
    first = config_hash(path)
    assert config_hash(mine(tmp_path, "custom_job", ("n1-standard-8", "n1-standard-16"))) == first
    assert config_hash(mine(tmp_path, "custom_job", ("reader_threads=8", "reader_threads=9"))) != first


def test_config_that_is_not_here_gets_no_hash(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = mine(tmp_path, "custom_job", ("configs/flights.yaml", "gs://b-local/elsewhere/x.yaml"))
    with caplog.at_level(logging.WARNING):
        assert submit.main([path, "--project=p-local", "--dry_run"]) == 0
    assert "no label config_hash" in caplog.text


def test_placeholders_are_refused_before_anything_is_sent() -> None:
    argv = ["configs/jobs/custom_job.yaml", "--project=p-local", "--endpoint=http://127.0.0.1:1"]
    with pytest.raises(
        UserError, match=r"custom_job.yaml: baseOutput.* \(and \d more\) still says .*my-"
    ) as caught:
        submit.main(argv)
    assert "\n" not in str(caught.value)


def test_project(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    job = "configs/jobs/custom_job.yaml"
    with pytest.raises(UserError, match="no project: give --project PROJECT"):
        submit.main([job, "--dry_run"])
    with pytest.raises(UserError, match="Invalid project: got 'My Project'"):
        submit.main([job, "--dry_run", "--project=My Project"])
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "p-of-env")
    assert dry(capsys, job)["request"]["parent"] == "projects/p-of-env/locations/us-central1"
    assert dry(capsys, job, "--project=1234")["request"]["parent"].startswith("projects/1234/")


def test_region(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """By the flag, by the job's own resources, by the environment, else the default."""

    def region(*argv: str) -> str:
        found: str = dry(capsys, *argv, "--project=p-local")["request"]["parent"]
        return found.rpartition("/")[2]

    plain = mine(tmp_path)
    bound = mine(tmp_path, "private_network", ("us-central1", "europe-west4"))
    assert (region(plain), region(bound)) == ("us-central1", "europe-west4")
    monkeypatch.setenv("GOOGLE_CLOUD_REGION", "us-east1")
    assert (region(plain), region(bound)) == ("us-east1", "europe-west4")
    assert region(plain, "--region=europe-west1") == "europe-west1"


def test_several_files_are_refused() -> None:
    with pytest.raises(UserError, match="submit takes one job file, got 2"):
        submit.main(["configs/jobs/custom_job.yaml", "configs/jobs/spot.yaml"])


def test_starts_fast_and_without_tensorflow() -> None:
    code = (
        "import sys, time; sys.argv = ['trainer', *sys.argv[1:]]; from trainer import __main__;"
        "code = __main__.main(); print(time.process_time(), 'tensorflow' in sys.modules, code)"
    )
    argv = ["submit", "configs/jobs/pipeline.yaml", "--project=p-local", "--dry_run"]
    done = subprocess.run([sys.executable, "-c", code, *argv], cwd=ROOT, capture_output=True, text=True)
    seconds, has_tensorflow, exit_code = done.stdout.splitlines()[-1].split()
    assert (has_tensorflow, exit_code) == ("False", "0"), done.stderr
    assert float(seconds) < 3  # CPU time: 0.6 s alone on the machine


def test_arguments_arrive_unchanged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Commas, blanks, quotes, equal signs: each argument is one text from the file to the request."""
    args = ["--hidden_units=64,32", "--data.split.salt=a b=\"c\" 'd'", "--data.csv.na_values=,NA"]
    listed = "".join(f"    - {json.dumps(text)}\n" for text in args)
    path = mine(tmp_path, "custom_job", ("scheduling:", f"{listed}scheduling:"))
    spec = dry(capsys, path, "--project=p-local")["request"]["customJob"]["jobSpec"]
    assert spec["workerPoolSpecs"][0]["containerSpec"]["args"][3:] == args


@pytest.mark.parametrize("text", ["3", "", "true"])
def test_an_argument_that_is_no_text_is_refused(
    text: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = mine(tmp_path, "custom_job", ("scheduling:", f"    - {text}\nscheduling:"))
    assert submit.main([path, "--project=p-local"]) == 1
    assert "containerSpec.args[3]" in caplog.text


# --- against the server -------------------------------------------------------------------------------


@needs_sdk
@pytest.mark.parametrize("name", ["custom_job", "hp_tuning", "pipeline", "multi_worker_reduction_server"])
def test_sends_what_dry_run_prints(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from google.protobuf import json_format

    from tests.servers.vertex import VertexServer

    path = mine(tmp_path, name)
    printed = dry(capsys, path, "--project=p-local")
    with VertexServer() as server:
        assert submit.main([path, "--project=p-local", f"--endpoint={server.address}"]) == 0
        ((method, request),) = server.requests
    assert printed["method"].endswith(f"/{method}")
    sent = json_format.MessageToDict(type(request).pb(request))
    job = next(key for key in sent if key != "parent")
    sent[job]["labels"]["submission"] = printed["request"][job]["labels"]["submission"]
    if "modelToUpload" in sent[job]:
        sent[job]["modelToUpload"]["labels"]["submission"] = sent[job]["labels"]["submission"]
    assert sent == printed["request"]
    out = capsys.readouterr().out
    assert out.strip().splitlines()[-1].startswith("projects/p-local/locations/us-central1/")


@needs_sdk
def test_wait_ends_with_how_the_job_ended(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    from tests.servers.vertex import Log, VertexServer

    caplog.set_level(logging.INFO, "trainer")
    argv = [mine(tmp_path), "--project=p-local", "--wait", "--poll=0.01"]
    with VertexServer() as server:
        server.logs += [Log("*", "epoch 1/3 loss 0.52"), Log("*", "no disk left", "ERROR")]
        where = [f"--endpoint={server.address}", f"--logging_endpoint={server.logging_address}"]
        assert submit.main([*argv, *where]) == 0
        assert "workerpool0-0 | epoch 1/3 loss 0.52" in caplog.text
        assert caplog.text.count("no disk left") == 1
        assert "SUCCEEDED after" in caplog.text
        assert "console.cloud.google.com/agent-platform/locations/us-central1/training/" in caplog.text
        caplog.clear()
        server.states, server.logs = ["PENDING", "RUNNING", "FAILED"], []
        assert submit.main([*argv, *where, "--logs=false"]) == 1
    assert "FAILED after" in caplog.text
    assert "Replica workerpool0-0 exited with a non-zero status of 1" in caplog.text
    assert "JOB_STATE" not in caplog.text
