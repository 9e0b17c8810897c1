"""What stands in for buckets, accelerators and containers, and how the cores are shared."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from trainer.jobs import cluster, here, loading
from trainer.jobs.cluster import Identity
from trainer.jobs.here import Here, Maps

ROOT = Path(__file__).parents[2]
JOBS = ROOT / "configs" / "jobs"
MAPS = Maps((("gs://b/deep", "/deep"), ("gs://b", "/here"), ("/gcs/b", "/here")))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("--data.source=gs://b/x/*.parquet", "--data.source=/here/x/*.parquet"),
        ("gs://b", "/here"),
        ("gs://b/", "/here/"),
        ("gs://b/deep/x", "/deep/x"),
        ("gs://b/deeper", "/here/deeper"),
        ("gs://bucket/x", "gs://bucket/x"),
        ("gs://b-2/x", "gs://b-2/x"),
        ("[gs://b/x,gs://b/y]", "[/here/x,/here/y]"),
        ('{"a": "gs://b"}', '{"a": "/here"}'),
        ("/gcs/b/x", "/here/x"),
        ("nothing", "nothing"),
    ],
)
def test_mapped_texts(text: str, expected: str) -> None:
    assert MAPS.apply(text) == expected


def test_maps_of_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a=b").mkdir()
    found = here.maps([f"gs://bucket/={tmp_path}/a=b", "/mnt/nfs/x=a=b", "gs://bucket/longer=."])
    assert found.apply("gs://bucket/y") == f"{tmp_path}/a=b/y"
    assert found.apply("/gcs/bucket/longer/y") == f"{tmp_path}/y"
    assert found.apply("/mnt/nfs/x/y") == f"{tmp_path}/a=b/y"


@pytest.mark.parametrize(
    ("name", "own", "expected"),
    [
        ("custom_job", (), ()),
        ("spot", (), ("--strategy.expect_gpus=0",)),
        ("multi_gpu", (), ("--strategy.expect_gpus=0", "--strategy.cpu_replicas=4")),
        ("multi_worker", (), ("--strategy.expect_gpus=0",)),
        ("tpu", (), ("--strategy.name=mirrored", "--strategy.cpu_replicas=4")),
        ("tpu_v3", (), ("--strategy.name=mirrored", "--strategy.cpu_replicas=4")),
        (
            "tpu",
            (
                "workerPoolSpecs[0].machineSpec.machineType=ct5lp-hightpu-1t",
                "workerPoolSpecs[0].machineSpec.tpuTopology=1x1",
            ),
            ("--strategy.name=one_device",),
        ),
        (
            "multi_gpu",
            ("workerPoolSpecs[0].machineSpec.acceleratorCount=6",),  # 4 doesn't divide them
            ("--strategy.expect_gpus=0", "--strategy.cpu_replicas=3"),
        ),
    ],
)
def test_cpus_in_the_place_of_accelerators(
    name: str, own: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    job = loading.load(str(JOBS / f"{name}.yaml"), own)
    assert here.cpu_arguments(job, job.pools[0]) == expected


@pytest.mark.parametrize(
    ("cores", "processes", "share"),
    [(8, 2, "8"), (8, 4, "4"), (2, 4, "1"), (2, 2, "2"), (2, 1, "2"), (7, 4, "4"), (1, 9, "1")],
)
def test_processes_share_the_cores(cores: int, processes: int, share: str) -> None:
    assert set(here.threads(cores, processes).values()) == {share}


def test_environment_of_a_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(ROOT)
    job = loading.load(str(JOBS / "custom_job.yaml"))
    (replica,) = cluster.replicas(job)
    outer = {
        "PATH": "/usr/bin", "HOME": "/root", "TF_CONFIG": "{}", "AIP_MODEL_DIR": "x",
        "CLOUD_ML_TRIAL_ID": "3", "OMP_NUM_THREADS": "7",
    }  # fmt: skip
    place = Here(str(tmp_path), cores=6, environ=outer)
    found = here.environ(job, replica, {0: ["h:1"]}, Identity(base=place.base(job)), place, 2)
    assert found["HOME"] == "/root"
    assert found["PATH"] == f"{os.path.dirname(sys.executable)}:/usr/bin"
    assert found["AIP_MODEL_DIR"] == f"{tmp_path}/output/model/"
    assert not {"TF_CONFIG", "CLOUD_ML_TRIAL_ID"} & set(found)
    assert found["CUDA_VISIBLE_DEVICES"] == ""
    assert (found["OMP_NUM_THREADS"], found["TF_NUM_INTRAOP_THREADS"]) == ("7", "6")


def test_what_is_not_mapped_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(ROOT)
    job = loading.load(str(JOBS / "custom_job.yaml"))
    said = here.notes(job, Here(str(tmp_path)))
    assert any(note.startswith("gs://my-bucket is not mapped") for note in said)
    said = here.notes(job, Here(str(tmp_path), maps=Maps((("gs://my-bucket", "/x"),))))
    assert not any("not mapped" in note for note in said)
