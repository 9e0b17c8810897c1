"""What jobs cost: prices by hand, studies, budgets, own prices, hours from a measured run."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from trainer.errors import UserError
from trainer.jobs import cost, duration, loading, prices

ROOT = Path(__file__).parents[2]
JOBS = ROOT / "configs" / "jobs"


@pytest.fixture(autouse=True)
def _in_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def _bill(name: str, hours: float | None = None, *own: str) -> cost.Bill:
    estimate = None if hours is None else duration.Estimate(hours, "a test")
    return cost.bill(loading.load(str(JOBS / f"{name}.yaml"), own), prices.load(), estimate)


def test_n1_is_the_listed_price() -> None:
    found = _bill("custom_job", None, "workerPoolSpecs[0].machineSpec.machineType=n1-standard-4")
    disk = 100 * 0.000267808
    assert found.hour.on_demand == pytest.approx(0.21849885 + disk, rel=1e-6)
    assert found.hour.spot is not None
    assert found.hour.spot < found.hour.on_demand


@pytest.mark.parametrize("path", sorted(JOBS.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_shipped_job_has_a_price(path: Path) -> None:
    found = cost.bill(loading.load(str(path)), prices.load(), duration.Estimate(1.0, "a test"))
    assert found.hour.on_demand > 0
    assert found.due() is not None
    assert "estimate" in cost.as_text(found)[0]
    assert found.prices.date in cost.as_text(found)[0]


def test_reducers_and_disks_are_in_it() -> None:
    found = _bill("multi_worker_reduction_server")
    parts = {pool.role: price.on_demand for pool, price in found.pools}
    # n1-highmem-96 with 8 V100, and n1-highcpu-16, each with 100 GB of pd-ssd.
    machine = (96 * 0.031611 + 96 * 6.5 * 0.004237) * 1.15 + 8 * 2.852 + 100 * 0.000267808
    reducer = (16 * 0.031611 + 16 * 0.9 * 0.004237) * 1.15 + 100 * 0.000267808
    assert parts["chief"] == pytest.approx(machine)
    assert parts["worker"] == pytest.approx(3 * machine)
    assert parts["reducer"] == pytest.approx(13 * reducer)
    assert found.hour.on_demand == pytest.approx(4 * machine + 13 * reducer)


def test_tpu_cores_are_priced_by_eight() -> None:
    assert _bill("tpu_v3").hour.on_demand == pytest.approx(9.20 + 100 * 0.000267808)
    assert _bill("tpu_v3").hour.spot is None
    slice_of_four_hosts = _bill("tpu", None, "workerPoolSpecs[0].machineSpec.tpuTopology=4x4").hour.on_demand
    assert slice_of_four_hosts == pytest.approx(4 * _bill("tpu").hour.on_demand)


def test_study_is_trials_times_hours() -> None:
    found = _bill("hp_tuning", 0.5)
    assert (found.trials, found.parallel, found.rounds) == (50, 5, 10)
    assert found.each is not None
    assert found.total is not None
    assert (
        found.total.on_demand
        == pytest.approx(50 * found.each.on_demand)
        == pytest.approx(25 * found.hour.on_demand)
    )
    report = cost.as_json(found)
    assert (report["hours_parallel"], report["hours_serial"]) == (5.0, 25.0)
    text = "\n".join(cost.as_text(found))
    assert "50 trials are 25 machine hours" in text
    assert "5 at once: done in 5 h" in text
    assert "one after another: 25 h" in text


def test_spot_job_is_due_at_spot_prices() -> None:
    found = _bill("spot", 2.0)
    assert found.total is not None
    assert found.due() == found.total.spot
    assert _bill("multi_gpu", 2.0).due() == _bill("multi_gpu").hour.on_demand * 2


@pytest.mark.parametrize(("budget", "code"), [("1.00", 1), ("3", 0)])
def test_budget(budget: str, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["configs/jobs/custom_job.yaml", "--hours=4", "--budget", budget]  # about 0.46 an hour
    assert cost.main(arguments) == code
    assert ("ABOVE" if code else "within") in capsys.readouterr().out
    assert cost.main([*arguments, "--format=json"]) == code
    report = json.loads(capsys.readouterr().out)
    assert report["above_budget"] is bool(code)
    assert report["due"] == pytest.approx(4 * report["hour"]["on_demand"], rel=1e-4)
    assert report["estimate"] is True


def test_a_tiny_budget_is_not_rounded_to_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert cost.main(["configs/jobs/custom_job.yaml", "--hours=0.0001", "--budget=0.00001"]) == 1
    out = capsys.readouterr().out
    assert "ABOVE the budget of 0.00001000 USD: 0.0000" in out
    assert "USD: 0.0000\n" not in out


def test_a_job_file_with_mistakes_says_error_once(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text((JOBS / "custom_job.yaml").read_text().replace("replicaCount", "replicas"))
    with pytest.raises(UserError) as caught:  # the command line puts "error: " before it
        cost.main([str(path), "--hours=1"])
    assert "error:" not in str(caught.value)
    assert str(caught.value).startswith(f"{path}:7: workerPoolSpecs[0].replicas: no such field")


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (
            "replicaCount: 1",
            "replicaCount: -1",
            r"workerPoolSpecs\[0\].replicaCount is -1, expected 0 or more",
        ),
        ("bootDiskSizeGb: 100", "bootDiskSizeGb: -5", r"diskSpec.bootDiskSizeGb is -5, expected 0 or more"),
    ],
)
def test_no_machine_pays_back(old: str, new: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text((JOBS / "custom_job.yaml").read_text().replace(old, new))
    with pytest.raises(UserError, match=says):
        cost.main([str(path), "--hours=1"])


def test_own_prices_are_laid_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "ours.yaml"
    path.write_text(
        "date: 2026-11\nfee: 1.0\nmachines: {n1-standard-8: {hour: 1.0, spot: 0.25}}\n"
        "disks: {pd-ssd: {hour: 0.0}}\n"
    )
    assert cost.main(["configs/jobs/custom_job.yaml", "--hours=2", f"--prices={path}"]) == 0
    out = capsys.readouterr().out
    assert "2026-11" in out
    assert str(path) in out
    assert "job: 2 h: 2.00 on demand, 0.5000 on spot machines" in out
    own = prices.load(str(path))
    assert own.table["accelerators"] == prices.load().table["accelerators"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("machine: {a: {hour: 1}}\n", "unknown key 'machine'"),
        ("machines: {n1-standard-8: {price: 1}}\n", "expected hour"),
        ("machines: {n1-standard-8: {hour: cheap}}\n", "expected a price an hour"),
        ("families: {x9: {vcpu: 1}}\n", "expected memory"),
        ("fee: none\n", "expected a factor"),
    ],
)
def test_own_prices_of_another_form(text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "ours.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=says):
        prices.load(str(path))


def test_unknown_price_says_how_to_add_it(tmp_path: Path) -> None:
    change = [
        "workerPoolSpecs[0].machineSpec.machineType=a4-highgpu-8g",
        "workerPoolSpecs[0].machineSpec.acceleratorType=NVIDIA_B200",
    ]
    job = loading.load(str(JOBS / "multi_gpu.yaml"), change)
    with pytest.raises(UserError, match=r"no price of 'a4-highgpu-8g'.*--prices FILE"):
        cost.bill(job, prices.load())
    path = tmp_path / "ours.yaml"
    path.write_text("machines: {a4-highgpu-8g: {hour: 20}}\naccelerators: {NVIDIA_B200: {hour: 10}}\n")
    assert cost.bill(job, prices.load(str(path))).hour.on_demand == pytest.approx(20 * 1.15 + 40, abs=0.1)


# --- hours from a measured run ----------------------------------------------------------------------


def _measured(tmp_path: Path, batch: int = 1024) -> str:
    """A run of 3 epochs of 200,000 rows: 588 steps in 60 s, and 30 s for all the rest."""
    figures = {
        "steps": 3 * math.ceil(200_000 / batch),
        "epochs": 3,
        "train": {"auc": 0.7, "examples": 200_000},
        "seconds": {"features": 10.0, "train": 60.0, "total": 90.0},
    }
    (tmp_path / "metrics.json").write_text(json.dumps(figures))
    (tmp_path / "config.yaml").write_text(f"training:\n  batch_size: {batch}\n  epochs: 3\n")
    return str(tmp_path / "metrics.json")


def _estimate(path: str, *own: str, **more: float) -> duration.Estimate:
    from trainer import flags

    return duration.from_metrics(path, flags.load("configs/flights.yaml", list(own)), **more)


def test_same_run_takes_the_same_time(tmp_path: Path) -> None:
    batch = "--training.batch_size=1024"
    estimate = _estimate(_measured(tmp_path), batch, "--training.epochs=3")
    assert estimate.hours * 3600 == pytest.approx(90)


def test_hours_go_with_the_steps(tmp_path: Path) -> None:
    path = _measured(tmp_path)
    own = ("--training.batch_size=1024", "--training.epochs=3")
    assert _estimate(path, *own[:1], "--training.epochs=30").hours * 3600 == pytest.approx(630)
    assert _estimate(path, *own, steps=588 / 2).hours * 3600 == pytest.approx(60)
    assert _estimate(path, *own, speedup=9).hours * 3600 == pytest.approx(10)
    # Ten times the rows: ten times the steps of an epoch, and ten times the rest.
    ten_times = _estimate(path, *own, rows=2_000_000).hours * 3600
    assert ten_times == pytest.approx(900, rel=0.01)
    # Twice the batch is half the steps, each with twice the rows.
    larger = _estimate(path, "--training.batch_size=2048", "--training.epochs=3").hours * 3600
    assert larger == pytest.approx(90, rel=0.01)
    assert _estimate(path, *own, "--training.max_steps=294").hours * 3600 == pytest.approx(60)


def test_measured_run_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = _measured(tmp_path)
    assert cost.main(["configs/jobs/custom_job.yaml", f"--measured={path}", "--speedup=2"]) == 0
    out = capsys.readouterr().out
    assert "588 steps" in out
    assert cost.main(["configs/jobs/custom_job.yaml", "--metrics", path, "--speedup=2"]) == 0
    assert capsys.readouterr().out == out
    assert "2 times as fast" in out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--hours=0"], "above 0"),
        (["--hours=soon"], "expected a number"),
        (["--hours=1", "--measured=x.json"], "exclude each other"),
        (["--measured=nowhere/metrics.json"], "can't be read"),
        (["--speedup=2"], "only counts with --measured"),
        (["--budget=5"], "needs the hours"),
        (["--format=xml"], "expected text, json"),
        (["--hour=2"], "did you mean 'hours'"),
    ],
)
def test_mistakes_on_the_command_line(arguments: list[str], says: str) -> None:
    with pytest.raises(UserError, match=says):
        cost.main(["configs/jobs/custom_job.yaml", *arguments])


def test_metrics_of_an_unfinished_run(tmp_path: Path) -> None:
    (tmp_path / "metrics.json").write_text('{"steps": 5}')
    with pytest.raises(UserError, match="of a finished run"):
        cost.main(["configs/jobs/custom_job.yaml", f"--measured={tmp_path / 'metrics.json'}"])


def test_help_names_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cost.main(["--help"])
    out = capsys.readouterr().out
    assert all(f"--{name}" in out for name in cost.OPTIONS)
    with pytest.raises(UserError, match="needs a job file"):
        cost.main([])
