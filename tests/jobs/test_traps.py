"""The twenty mistakes that cost most on the service: each ends at a rule of `check` or at a test, by name."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from broken_names import CASES

from trainer.jobs import rules

TESTS = Path(__file__).parents[1]

# (the mistake, rules of `check` that find it, tests that show that it can't happen here)
TRAPS: list[tuple[str, tuple[str, ...], tuple[str, ...]]] = [
    (
        "TF_CONFIG taken for granted",
        (),
        (
            "test_environment.py::test_who_this_process_is",
            "test_main.py::test_a_lone_process_trains_without_tf_config",
        ),
    ),
    ("worker 0 taken for the chief", (), ("test_environment.py::test_who_this_process_is",)),
    (
        "reduction servers left in TF_CONFIG as ps",
        ("parameter-servers",),
        ("test_environment.py::test_tensorflow_gets_only_what_trains",),
    ),
    (
        "work before the strategy is made",
        (),
        ("test_strategy.py::test_create_is_the_first_thing_and_sets_everything",),
    ),
    (
        "Keras fit under several workers",
        ("env-keras",),
        (
            "test_workers.py::test_two_workers_train_as_one_process",
            "test_strategy.py::test_other_keras_is_refused",
        ),
    ),
    ("every replica saves to one folder", (), ("test_workers.py::test_two_workers_train_as_one_process",)),
    (
        "model.save of a folder",
        (),
        (
            "test_export.py::test_saved_model_lies_directly_in_the_folder_with_one_signature",
            "test_parity.py::test_gate_passes_in_a_fresh_process",
        ),
    ),
    (
        "results on the machine's own disk",
        ("output-missing", "checkpoints-lost", "output-local", "data-local"),
        ("test_environment.py::test_files_that_go_with_the_machine_are_warned_of",),
    ),
    (
        "no baseOutputDirectory",
        ("output-missing", "tensorboard-output"),
        ("test_environment.py::test_folders_of_a_run",),
    ),
    ("baseOutputDirectory as a text, underscores for gcloud", ("wrong-type", "snake-case"), ()),
    (
        "open() of gs://",
        ("output-not-gs", "data-unreadable"),
        (
            "test_environment.py::test_folders_on_an_object_store_are_tried_too",
            "test_export.py::test_object_store_gets_the_files_with_saved_model_last",
            "test_checkpoints.py::test_an_object_store_works_alike",
        ),
    ),
    (
        "managed dataset opened as one file, wrong variable names",
        ("env-reserved", "dataset-destination"),
        ("jobs/test_local.py::test_managed_dataset_of_a_folder_or_of_bigquery",),
    ),
    (
        "tuned numbers and switches",
        ("parameter-type", "parameter-value", "parameter-unknown"),
        ("test_flags.py::test_a_flag_sets_its_key", "test_main.py::test_a_config_and_flags_become_a_run"),
    ),
    (
        "metric that is not the study's",
        ("metric-objective", "metric-unknown", "metric-goal", "metric-name"),
        (
            "test_reporting.py::test_one_writer_for_the_process",
            "test_reporting.py::test_only_a_trials_chief_writes",
            "test_reporting.py::test_what_is_not_finite_is_never_reported",
        ),
    ),
    (
        "trials that share a folder",
        (),
        (
            "test_environment.py::test_folders_of_a_run",
            "jobs/test_processes.py::test_trial_has_its_id_flags_folder_and_metric_file",
        ),
    ),
    (
        "prebuilt images taken for current",
        ("image-ended", "image-unknown", "image-program", "tpu-package", "serving-older"),
        (),
    ),
    (
        "TensorFlow among a package's requirements",
        (),
        ("test_packaging.py::test_sdist_asks_for_nothing_that_shadows_the_container",),
    ),
    (
        "project and account by default",
        ("default-account", "compute-account", "tensorboard-account", "resource-name"),
        ("jobs/test_processes.py::test_replicas_find_each_other_and_the_chief_ends_the_job",),
    ),
    (
        "no resume, wrong exit codes",
        ("worker-restart", "retries-restart", "spot-retries", "checkpoints-lost"),
        (
            "integration/test_restart.py::test_killed_at_random_moments_and_rerun_gives_the_same_bits",
            "integration/test_restart.py::test_sigterm_saves_and_exits_with_the_documented_code",
            "test_main.py::test_how_a_command_ends",
        ),
    ),
    (
        "a server that can't take the export or the request",
        ("serving-older", "serving-missing"),
        (
            "integration/test_serving_2_15.py::test_requests_are_answered_alike_in_2_15",
            "test_export.py::test_saved_model_lies_directly_in_the_folder_with_one_signature",
            "test_serving.py::test_tf_example_as_base64",
        ),
    ),
]


def test_there_are_twenty() -> None:
    assert len(TRAPS) == 20


@pytest.mark.parametrize(("mistake", "checks", "tests"), TRAPS, ids=[trap[0] for trap in TRAPS])
def test_trap_ends_at_a_rule_or_a_test(mistake: str, checks: tuple[str, ...], tests: tuple[str, ...]) -> None:
    assert checks or tests
    assert set(checks) <= set(rules.RULES)
    assert set(checks) <= {case.rule for case in CASES}
    for reference in tests:
        file, _, name = reference.partition("::")
        tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
        assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, reference


def test_docs_answer_all_twenty() -> None:
    """The table of docs/jobs.md: a row for each, in this order, with rules that are there."""
    text = (TESTS.parent / "docs" / "jobs.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| (.+) \| (.+) \|$", text, re.MULTILINE)
    assert [int(number) for number, _, _ in rows] == list(range(1, 21))
    for (_, _, answer), (mistake, checks, _) in zip(rows, TRAPS, strict=True):
        named = {word for word in re.findall(r"`([a-z]+(?:-[a-z]+)+)`", answer)}
        assert named <= set(rules.RULES), mistake
        assert named <= set(checks), f"{mistake}: {named - set(checks)} is in the docs alone"
