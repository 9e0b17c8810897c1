"""`check`: every shipped job file passes, and every broken one yields its one finding."""

from __future__ import annotations

import datetime
import json
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from broken_jobs import JOBS, Case
from broken_names import CASES

from trainer.errors import UserError
from trainer.jobs import check, rules
from trainer.jobs.context import Policy

ROOT = Path(__file__).parents[2]
SHIPPED = sorted(JOBS.glob("*.yaml"))
TODAY = datetime.date(2026, 11, 30)


@pytest.fixture(autouse=True)
def _in_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_job_passes(path: Path) -> None:
    found, facts = check.check(str(path.relative_to(ROOT)), today=TODAY)
    expected = ["image-ended"] if path.stem.startswith("prebuilt_") else []
    assert [finding.rule for finding in found] == expected, "\n".join(map(str, found))
    assert any("configs/flights.yaml" in fact for fact in facts), "it was not checked against its run config"


def test_every_kind_of_job_is_shipped() -> None:
    kinds = {
        "custom_job", "multi_gpu", "multi_worker", "multi_worker_reduction_server", "spot",
        "persistent_resource", "hp_tuning", "pipeline", "pipeline_managed_dataset", "private_network",
    }  # fmt: skip
    names = {path.stem for path in SHIPPED}
    assert names >= kinds | {f"prebuilt_{kind}" for kind in kinds} | {"tpu", "tpu_v3", "private_network_psc"}


def _ids() -> list[str]:
    seen: dict[str, int] = {}
    ids = []
    for case in CASES:
        seen[case.rule] = seen.get(case.rule, 0) + 1
        ids.append(f"{case.rule}-{seen[case.rule]}")
    return ids


@pytest.mark.parametrize("case", CASES, ids=_ids())
def test_broken_job_has_its_one_finding(case: Case, tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(case.text)
    found, _ = check.check(str(path), **case.options)
    rules_found = [finding.rule for finding in found if finding.rule != case.also]
    assert rules_found == [case.rule], "\n".join(map(str, found))
    (finding,) = (finding for finding in found if finding.rule == case.rule)
    assert finding.severity == rules.RULES[case.rule][0]
    assert finding.file == str(path)
    assert 1 <= finding.line <= len(case.text.splitlines()) + 1
    assert finding.why
    assert finding.instead


def test_every_rule_is_broken_once() -> None:
    assert len(CASES) >= 40
    assert len({case.text for case in CASES}) >= 40
    broken = {case.rule for case in CASES}
    assert set(rules.RULES) - broken == set()


@pytest.mark.parametrize(
    ("rule", "field", "line_has", "says"),
    [
        ("reducer-bandwidth", "workerPoolSpecs[2].replicaCount", "replicaCount: 12", "write 13"),
        ("machine-type", "workerPoolSpecs[0].machineSpec.machineType", "n1-standard-12", "n1-standard-16"),
        ("metric-goal", "studySpec.metrics[0].goal", "goal: MINIMIZE", "write MAXIMIZE"),
        ("batch-size", "workerPoolSpecs[0].containerSpec.args[3]", "--batch_size=1020", "1016 or 1024"),
        ("arg-unknown", "workerPoolSpecs[0].containerSpec.args[2]", "reader_treads", "--data.reader_threads"),
        ("worker-restart", "scheduling.restartJobOnWorkerRestart", "scheduling:", "write true"),
        ("network-project", "jobSpec.network", "network:", "projects/PROJECT_NUMBER"),
    ],
)
def test_finding_says_where_and_what_instead(
    rule: str, field: str, line_has: str, says: str, tmp_path: Path
) -> None:
    case = next(case for case in CASES if case.rule == rule)
    path = tmp_path / "job.yaml"
    path.write_text(case.text)
    ((finding, *_), _) = check.check(str(path), **case.options)
    assert finding.field == field
    assert line_has in case.text.splitlines()[finding.line - 1]
    assert says in finding.instead


def test_several_mistakes_are_all_found(tmp_path: Path) -> None:
    text = (JOBS / "multi_worker.yaml").read_text()
    text = text.replace("replicaCount: 3", "replicaCuont: 3").replace(
        "--batch_size=8192", "--batch_size=1001"
    )
    text = text.replace("trainer-gpu:0.1.0", "trainer-gpu:latest").replace(
        "  restartJobOnWorkerRestart: true\n", ""
    )
    path = tmp_path / "job.yaml"
    path.write_text(text)
    found, _ = check.check(str(path), today=TODAY)
    assert sorted({f.rule for f in found}) == [
        "batch-size",
        "image-latest",
        "unknown-field",
        "worker-restart",
    ]


@pytest.mark.parametrize("form", ["text", "json", "sarif"])
def test_formats_and_exit_codes(form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "job.yaml"
    good = (JOBS / "custom_job.yaml").read_text()
    path.write_text(good.replace("n1-standard-8", "n1-standard-12"))
    assert check.main([str(path), f"--format={form}"]) == 1
    written = capsys.readouterr().out
    line = next(i for i, text in enumerate(path.read_text().splitlines(), 1) if "n1-standard-12" in text)
    if form == "text":
        assert written.startswith(f"{path}:{line}: error: workerPoolSpecs[0].machineSpec.machineType: ")
    elif form == "json":
        report = json.loads(written)
        assert (report["errors"], report["warnings"]) == (1, 0)
        assert report["findings"][0]["line"] == line
    else:
        run = json.loads(written)["runs"][0]
        (result,) = run["results"]
        assert result["level"] == "error"
        assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == result["ruleId"] == "machine-type"
        assert result["locations"][0]["physicalLocation"]["region"]["startLine"] == line
    path.write_text(good)
    assert check.main([str(path), "--format", form]) == 0


def test_warnings_fail_only_when_strict(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text((JOBS / "custom_job.yaml").read_text().replace("trainer-cpu:0.1.0", "trainer-cpu:latest"))
    assert check.main([str(path)]) == 0
    assert check.main([str(path), "--strict"]) == 1


def test_the_reader_of_tensorflow_io_is_welcome_in_the_image_of_its_tensorflow(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    text = (JOBS / "custom_job.yaml").read_text().replace("trainer-cpu:0.1.0", "trainer-cpu:tf2.16")
    path.write_text(text)
    assert [finding.rule for finding in check.check(str(path))[0]] == ["image-tensorflow"]
    path.write_text(text.replace("--data.reader_threads=8", "--data.reader=tensorflow-io"))
    assert not check.check(str(path))[0]


def test_set_lays_values_over_the_file(capsys: pytest.CaptureFixture[str]) -> None:
    job = "configs/jobs/multi_worker.yaml"
    assert check.main([job, "--set", "workerPoolSpecs[1].replicaCount=2"]) == 1  # 8192 rows over 6 replicas
    assert "batch-size" in capsys.readouterr().out


def test_stand_in_config_and_region(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    text = (JOBS / "custom_job.yaml").read_text().replace("configs/flights.yaml", "gs://b/x/mine.yaml")
    path.write_text(text)
    assert check.main([str(path)]) == 0
    assert "config-not-here" in capsys.readouterr().out
    assert check.main([str(path), "--config=configs/flights.yaml", "--region=us-east1"]) == 0
    out = capsys.readouterr().out
    assert "config-not-here" not in out
    assert "image-region" in out


def test_flags_are_checked_by_type_without_the_config(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    text = (JOBS / "custom_job.yaml").read_text().replace("configs/flights.yaml", "gs://b/x/mine.yaml")
    path.write_text(text.replace("--data.reader_threads=8", "--data.reader_threads=0"))
    found, _ = check.check(str(path), today=TODAY)
    assert [finding.rule for finding in found] == ["config-not-here", "arg-value"]


def test_policy_file(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text("cmek: true\nregions: [europe-west4]\n")
    assert check.read_policy(str(path)) == Policy(True, False, ("europe-west4",), str(path))
    assert check.read_policy(None) == Policy(file="configs/policy/default.yaml")
    path.write_text("cmk: true\n")
    with pytest.raises(UserError, match="cmk"):
        check.read_policy(str(path))


def test_a_package_on_a_tpu_says_why_not(tmp_path: Path) -> None:
    whys = []
    for case in (case for case in CASES if case.rule == "tpu-package"):
        path = tmp_path / "job.yaml"
        path.write_text(case.text)
        ((finding,), _) = check.check(str(path), **case.options)
        assert "make image-tpu" in finding.instead
        whys.append(finding.why)
    assert "no prebuilt image for TPU_V5E" in whys[0]
    assert "tf-tpu.2-15.cp310, has TensorFlow 2.15 (gone since 2025-10-23)" in whys[1]


def test_missing_file_names_the_nearest() -> None:
    with pytest.raises(UserError, match=r"no such job file: configs/jobs/x\.yaml$"):
        check.check("configs/jobs/x.yaml")
    with pytest.raises(
        UserError, match=r"no such job file: configs/jobs/custom_jobs.yaml; did you mean .*custom_job"
    ):
        check.check("configs/jobs/custom_jobs.yaml")


@pytest.mark.parametrize("verb", ["check", "cost"])
def test_starts_fast_and_without_tensorflow(verb: str) -> None:
    code = (
        "import sys, time; sys.argv = ['trainer', *sys.argv[1:]]; from trainer import __main__;"
        "code = __main__.main(); print(time.process_time(), 'tensorflow' in sys.modules, code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, verb, "configs/jobs/hp_tuning.yaml"],
        cwd=ROOT, capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    seconds, tensorflow, exit_code = done.stdout.split()[-3:]
    assert tensorflow == "False"
    assert exit_code == "0"
    assert float(seconds) < 1.0, f"{verb} took {seconds} s of CPU time"


def test_another_package_of_a_like_name_is_none_of_ours(tmp_path: Path) -> None:
    text = (JOBS / "prebuilt_custom_job.yaml").read_text()
    path = tmp_path / "job.yaml"
    path.write_text(text.replace("trainer-0.1.0", "forecast-2.0").replace("trainer.task", "train.main"))
    found, _ = check.check(str(path), today=datetime.date(2025, 6, 1))
    assert [finding.rule for finding in found] == []


def test_it_says_when_arguments_are_another_programs(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    text = (JOBS / "custom_job.yaml").read_text()
    path.write_text(text.replace("    args:", "    command: [python, train.py]\n    args:"))
    _, facts = check.check(str(path))
    assert "pool 0 runs 'python train.py' and not this trainer: its arguments are not looked at" in facts


def test_docs_list_every_rule() -> None:
    page = (ROOT / "docs" / "jobs.md").read_text()
    for rule, (severity, about) in rules.RULES.items():
        assert f"| `{rule}` | {severity} | {about} |" in page
    for path in SHIPPED:
        assert path.name in page or path.name.startswith("prebuilt_")


def test_tables_agree_with_each_other() -> None:
    from trainer.jobs import hardware, tables

    accelerators = set(tables.load("api")["enums"]["AcceleratorType"])
    offered = {name for names in hardware.regions().values() for name in names}
    assert offered <= accelerators | set(hardware.tpus())
    assert offered - set(hardware.tpus()) <= set(hardware.gpus())
    for machine in hardware.machines().values():
        assert machine.tpu in {"", *hardware.tpus()}
        assert machine.accelerator in {"", *hardware.gpus()}
        assert machine.tpu or machine.gbps > 0
    for use in ("training", "prediction"):
        for row in tables.load("images")[use].values():
            assert ("support" in row) == ("available" in row) == (row["tensorflow"] != "nightly")
            assert "support" not in row or row["support"] <= row["available"]
