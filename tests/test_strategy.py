from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest
import tensorflow as tf
from loop_parts import config

from trainer import strategy
from trainer.errors import UserError


def create(environ: dict[str, str] | None = None, **changes: Any) -> tf.distribute.Strategy:
    # deterministic=False: the switch can't be turned back for the tests that follow.
    return strategy.create(config(strategy__deterministic=False, **changes), environ or {})


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"TF_USE_LEGACY_KERAS": "1"}, "TF_USE_LEGACY_KERAS=1"),
        ({"TF_USE_LEGACY_KERAS": "True"}, "unset TF_USE_LEGACY_KERAS"),
        ({"KERAS_BACKEND": "jax"}, "KERAS_BACKEND=jax"),
    ],
)
def test_other_keras_is_refused(environ: dict[str, str], words: str) -> None:
    with pytest.raises(UserError, match=words):
        strategy.check_keras(environ)
    with pytest.raises(UserError, match=words):
        create(environ)


def test_keras_3_is_accepted() -> None:
    strategy.check_keras({"TF_USE_LEGACY_KERAS": "0", "KERAS_BACKEND": "tensorflow"})


def test_missing_gpu_is_told_with_a_way_out() -> None:
    with pytest.raises(UserError, match=r"expected 1 GPU, TensorFlow sees 0; .*tensorflow\[and-cuda\]"):
        create(strategy__expect_gpus=1)
    with pytest.raises(UserError, match="expected 2 GPUs, TensorFlow sees 0"):
        create(strategy__expect_gpus=2)


def test_zero_gpus_can_be_expected(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("DEBUG", "trainer"):
        create(strategy__expect_gpus=0)
    assert "no GPU here, nothing to set" in caplog.text
    assert "OneDeviceStrategy: 1 replica; TensorFlow" in caplog.text
    assert "sees 0 GPUs and 2 CPU devices" in caplog.text


def test_auto_goes_by_what_is_there() -> None:
    assert create().num_replicas_in_sync == 1
    two = create(strategy__cpu_replicas=2)
    assert isinstance(two, tf.distribute.MirroredStrategy)
    assert two.num_replicas_in_sync == 2
    assert strategy.local_replicas(two) == 2
    assert strategy.worker_batch(config(training__batch_size=32), two) == 32


def test_names_can_be_forced() -> None:
    assert create(strategy__name="one_device", strategy__cpu_replicas=2).num_replicas_in_sync == 1
    assert isinstance(create(strategy__name="mirrored"), tf.distribute.MirroredStrategy)


def test_what_contradicts_the_cluster_is_refused() -> None:
    cluster = {"chief": ["a:1"], "worker": ["b:1"]}
    environ = {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": "chief", "index": 0}})}
    for name in ("one_device", "mirrored"):
        with pytest.raises(
            UserError, match=f"strategy.name: '{name}' trains in one process, and TF_CONFIG has 2"
        ):
            create(environ, strategy__name=name)
    with pytest.raises(UserError, match=r"'tpu' trains in one process, .*take pool 1 out of"):
        create(environ, strategy__name="tpu")
    with pytest.raises(UserError, match="'nccl' works between GPUs"):
        create(environ, strategy__communication="nccl")


def test_several_workers_need_a_cluster() -> None:
    with pytest.raises(UserError, match="needs a TF_CONFIG with several workers"):
        create(strategy__name="multi_worker_mirrored")


def test_jit_with_several_replicas_is_refused_with_the_reason() -> None:
    with pytest.raises(UserError, match=r"training\.jit_compile: true can't .* because XLA"):
        create(strategy__cpu_replicas=2, training__jit_compile="true")
    assert not strategy.uses_jit(config(training__jit_compile="auto"), create(strategy__cpu_replicas=2))


def test_jit_on_one_device() -> None:
    one = create()
    assert strategy.uses_jit(config(training__jit_compile="true"), one)
    assert not strategy.uses_jit(config(training__jit_compile="false"), one)
    assert not strategy.uses_jit(config(training__jit_compile="auto"), one)  # auto: one *GPU*


@pytest.mark.parametrize(
    ("batch", "replicas", "accumulate", "near"),
    [(1001, 2, 1, "1,000 or 1,002"), (10, 4, 2, "8 or 16"), (3, 4, 1, "the nearest that do: 4$")],
)
def test_a_batch_that_does_not_divide(batch: int, replicas: int, accumulate: int, near: str) -> None:
    with pytest.raises(UserError, match=near) as caught:
        strategy.check_batch(batch, replicas, accumulate)
    assert str(caught.value).startswith(f"training.batch_size: {batch:,} rows don't divide over")


def test_a_batch_that_divides_passes() -> None:
    strategy.check_batch(96, 4, 3)


def test_a_batch_larger_than_the_split_is_told(caplog: pytest.LogCaptureFixture) -> None:
    settings = config(training__batch_size=128)
    strategy.arithmetic(settings, create(), 128, 1)
    assert not caplog.records
    strategy.arithmetic(settings, create(), 120, 1)
    assert "training.batch_size: 128 is more than the 120 rows of the train split: each" in caplog.text


def test_the_arithmetic_is_one_sentence() -> None:
    two = create(strategy__cpu_replicas=2)
    settings = config(training__batch_size=1024, training__epochs=3, training__accumulate=4)
    assert strategy.arithmetic(settings, two, 100_000, 98) == (
        "Global batch 1,024 = 1 worker x 2 replicas x 512 rows, each in 4 parts; "
        "100,000 rows make 98 steps an epoch; 3 epochs: 294 steps."
    )
    limited = config(training__epochs=1, training__max_steps=5)
    told = strategy.arithmetic(limited, create(), 320, 10)
    assert told.endswith("1 epoch: 5 steps (training.max_steps 5).")


CODE = """
import json, numpy as np
from loop_parts import config
from trainer import strategy
from trainer.errors import UserError

def refusal(**changes):
    try:
        strategy.create(config(**changes))
    except UserError as error:
        return str(error)

made = strategy.create(config(strategy__cpu_replicas=3, seed=7))
import tensorflow as tf
drawn = float(tf.random.uniform([]))
late = refusal(strategy__cpu_replicas=4)
print(json.dumps([made.num_replicas_in_sync, drawn, late, refusal(strategy__name="tpu")]))
"""


def test_create_is_the_first_thing_and_sets_everything() -> None:
    here = os.path.dirname(__file__)
    path = os.pathsep.join([here, os.path.dirname(here)])
    done = subprocess.run(
        [sys.executable, "-c", CODE],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    replicas, drawn, late, tpu = json.loads(done.stdout.splitlines()[-1])
    assert replicas == 3
    tf.keras.utils.set_random_seed(7)
    assert drawn == float(tf.random.uniform([]))
    assert "strategy.cpu_replicas: 4 logical CPUs can't be made any more" in late
    assert "strategy.name: 'tpu' was asked for, but this machine shows no TPU" in tpu
