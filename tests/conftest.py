"""What every test shares: a quiet TensorFlow with two logical CPUs, and a clean environment."""

from __future__ import annotations

import os
import sys

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

_SERVICE_VARIABLES = ("AIP_", "CLOUD_ML_", "TF_CONFIG", "CLUSTER_SPEC")


@pytest.fixture(scope="session", autouse=True)
def _two_logical_cpus() -> None:
    """Splits the CPU in two before TensorFlow looks at it, so that two replicas can run in tests.

    Only where the collected tests imported TensorFlow: the others stay fast without it.
    """
    if "tensorflow" in sys.modules:
        import tensorflow as tf

        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)


@pytest.fixture(autouse=True)
def _no_service(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps variables of a surrounding training job out of the tests."""
    for name in list(os.environ):
        if name.startswith(_SERVICE_VARIABLES):
            monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def _same_random_weights() -> None:
    """Gives every run of a test the same start, so that no rounding fails one run in a thousand."""
    if "tensorflow" in sys.modules:
        import keras

        keras.utils.set_random_seed(0)
