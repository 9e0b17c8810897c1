"""Packages `trainer` for the prebuilt training containers: make package. Adopters: list your dependencies."""

import re
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent
(VERSION,) = re.findall(
    r'^__version__ = "(.+)"', (ROOT / "trainer" / "__init__.py").read_text(), re.MULTILINE
)

# Only what the container lacks, and never TensorFlow, Keras, NumPy or protobuf: the service installs this
# list with `pip install --user` into a folder that shadows the container's own packages, so a second copy of
# any of these four breaks the image in ways that show only when the job runs.
REQUIRED = [
    "fastavro>=1.9",
    "pydantic>=2.8,<3",
    "PyYAML>=6",
    "rich>=13",
    "matplotlib>=3.8",
    "cloudml-hypertune",
    # Newer Pythons: any that pip finds.
    "pyarrow>=17; python_version >= '3.11'",
    "google-cloud-bigquery-storage>=2.27; python_version >= '3.11'",
    # Python 3.10, the Python of the containers, whose TensorFlow 2.17 needs NumPy 1 and protobuf 4: the last
    # releases that need no newer ones. Without these bounds pip puts protobuf 7 in front of the container's.
    "pyarrow>=17,<22; python_version < '3.11'",
    "google-cloud-bigquery-storage>=2.27,<2.40; python_version < '3.11'",
    "google-api-core<2.26; python_version < '3.11'",
    "googleapis-common-protos<=1.75.0; python_version < '3.11'",
    "grpcio-status<1.63; python_version < '3.11'",
    "proto-plus<=1.28.2; python_version < '3.11'",
]

setup(
    name="trainer",
    version=VERSION,
    description="A training template for Keras models on Vertex AI",
    python_requires=">=3.10",
    packages=find_packages(include=["trainer", "trainer.*"]),
    # The job's working folder is not the package's: data files travel inside it.
    package_data={"": ["*.yaml", "*.yml", "*.css", "*.json", "*.txt", "*.html"]},
    include_package_data=True,
    install_requires=REQUIRED,
    extras_require={
        # Everything for a machine that has no container: pip install 'trainer[train]'
        "train": ["tensorflow>=2.17", "tensorboard>=2.17", "keras-tuner>=1.4.7,<1.5", "scikit-learn>=1.5"],
        # python -m trainer tune, and the chief and workers of a keras-tuner job.
        "tune": ["keras-tuner>=1.4.7,<1.5", "scikit-learn>=1.5"],
        # Sending jobs. Kept apart: beside TensorFlow 2.17 it brings a protobuf that breaks it.
        "submit": ["google-cloud-aiplatform>=2.7,<3"],
        # Compiled against one TensorFlow minor; 0.37.1, the last one, crashes or does not load in any other.
        "tensorflow-io": ["tensorflow-io==0.37.1", "tensorflow==2.16.*", "tensorboard==2.16.*"],
        "tests": ["pytest>=8", "pytest-timeout>=2.3", "hypothesis>=6", "scikit-learn>=1.5", "packaging>=23"],
    },
    zip_safe=False,
)
