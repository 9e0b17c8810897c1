"""Config files and flags: values, names, mistakes, inheritance, help, round trip."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from trainer import config_file, config_help, flags, outputs, schema
from trainer.config import Config
from trainer.errors import UserError

BASE = """\
name: demo
task: binary
data:
  source: rows.csv
  split: {by: hash, column: id}
label: {column: y}
features:
  - {name: age, kind: numeric}
  - name: state
    kind: categorical
  - {name: hour-of.day, kind: datetime}
"""


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Writes a file into the working folder and returns its name."""
    monkeypatch.chdir(tmp_path)

    def write(text: str, name: str = "x.yaml") -> str:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text), encoding="utf-8")
        return name

    return write


def _get(config: Config, path: str) -> object:
    value: object = config
    for part in path.split("."):
        value = getattr(value, part)
    return value


def _message(*argv: str, path: str | Sequence[str] | None = "x.yaml") -> str:
    with pytest.raises(UserError) as caught:
        flags.load(path, argv)
    return str(caught.value)


# --- values -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "path", "value"),
    [
        (["--training.batch_size=64"], "training.batch_size", 64),
        (["--batch_size=64.0"], "training.batch_size", 64),
        (["--batch_size", "6.4e1"], "training.batch_size", 64),
        (["--batch-size", "128.0"], "training.batch_size", 128),
        (["--limit_rows=9007199254740993"], "data.limit_rows", 2**53 + 1),
        (["--learning_rate=1e-3"], "training.learning_rate", 1e-3),
        (["--learning-rate", "0.1"], "training.learning_rate", 0.1),
        (["--learning_rate=1", "--training.learning_rate=0.5"], "training.learning_rate", 0.5),
        (["--momentum", "0"], "training.momentum", 0.0),
        *[([f"--shuffle={text}"], "data.shuffle", True) for text in ("true", "True", "1")],
        *[([f"--shuffle={text}"], "data.shuffle", False) for text in ("false", "False", "0")],
        (["--shuffle", "false", "--seed", "3"], "data.shuffle", False),
        (["--batch_norm"], "model.batch_norm", True),
        (["--batch_norm", "--seed=3"], "model.batch_norm", True),
        (["--hidden_units=64,32"], "model.hidden_units", (64, 32)),
        (["--hidden_units=[64, 32.0]"], "model.hidden_units", (64, 32)),
        (["--hidden-units", "64.0"], "model.hidden_units", (64,)),
        (["--hidden_units="], "model.hidden_units", ()),
        (["--source=gs://b/a=1/*.csv"], "data.source", ("gs://b/a=1/*.csv",)),
        (["--source=a.csv,b.csv"], "data.source", ("a.csv", "b.csv")),
        (['--source=["a,b.csv"]'], "data.source", ("a,b.csv",)),
        (["--slice_by=state, age"], "report.slice_by", ("state", "age")),
        (['--class_weights={"0":1,"1":9}'], "training.class_weights", {"0": 1.0, "1": 9.0}),
        (["--clip_norm=none"], "training.clip_norm", None),
        (["--clip_norm=null"], "training.clip_norm", None),
        (["--clip_norm=1"], "training.clip_norm", 1.0),
        (["--data.weight=none"], "data.weight", None),
        (["--data.cache=none"], "data.cache", "none"),
        (["--salt=none"], "data.split.salt", "none"),
        (["--salt=a b=c\"d'"], "data.split.salt", "a b=c\"d'"),
        (["--jit_compile=True"], "training.jit_compile", "true"),
        (["--optimizer=SGD"], "training.optimizer", "sgd"),
        (["--validation_from=2013-10-01"], "data.split.validation_from", "2013-10-01"),
        (["--label.column=z"], "label.column", "z"),
        (["--name=other"], "name", "other"),
        (["--model.name=linear"], "model.name", "linear"),
        (["--early_stopping.patience=2"], "training.early_stopping.patience", 2),
        (["--output_dir=gs://b/x:y/"], "output_dir", "gs://b/x:y/"),
        (["--na-values="], "data.csv.na_values", ()),
        (["--delimiter=;"], "data.csv.delimiter", ";"),
        (["--delimiter=,"], "data.csv.delimiter", ","),
        (["--seed=1", "--seed=2"], "seed", 2),
    ],
)
def test_a_flag_sets_its_key(write: Callable[..., str], argv: list[str], path: str, value: object) -> None:
    got = _get(flags.load(write(BASE), argv), path)
    assert got == value
    assert type(got) is type(value)


@pytest.mark.parametrize(
    ("yaml", "path", "value"),
    [
        ("training: {batch_size: 64.0}", "training.batch_size", 64),
        ("training: {batch_size: 6.4e1}", "training.batch_size", 64),
        ("training: {batch_size: 262_144}", "training.batch_size", 262144),
        ("training: {learning_rate: 1e-3}", "training.learning_rate", 1e-3),
        ("training:\n  # batch_size: 3", "training.batch_size", 1024),
        ("training: {class_weights: {no: 1, yes: 2}}", "training.class_weights", {"no": 1.0, "yes": 2.0}),
        ("training: {clip_norm: null}", "training.clip_norm", None),
        ("training: {clip_norm: ~}", "training.clip_norm", None),
        ("training: {clip_norm: none}", "training.clip_norm", None),
        ("training: {jit_compile: true}", "training.jit_compile", "true"),
        ("model: {hidden_units: 64}", "model.hidden_units", (64,)),
        ("model: {batch_norm: True}", "model.batch_norm", True),
        ("report: {slice_by: none}", "report.slice_by", ("none",)),
        ("export: {parity_tolerance: 1.e-4}", "export.parity_tolerance", 1e-4),
        ("strategy: {expect_gpus: '2'}", "strategy.expect_gpus", 2),
    ],
)
def test_a_file_sets_its_key(write: Callable[..., str], yaml: str, path: str, value: object) -> None:
    assert _get(flags.load(write(BASE + yaml)), path) == value


def test_texts_in_a_file_stay_as_they_are_written(write: Callable[..., str]) -> None:
    text = BASE.replace("column: id}", "column: 1.10, validation_fraction: 0.2, train_value: 2013-10-01}")
    text = text.replace("{column: y}", "{column: on, classes: [no, yes]}")
    config = flags.load(write(text))
    assert (config.data.split.column, config.data.split.train_value) == ("1.10", "2013-10-01")
    assert (config.label.column, config.label.classes) == ("on", ("no", "yes"))
    quoted = flags.load(write(BASE + "training: {objective: 'null'}"))
    assert quoted.training.objective == "null"


def test_a_feature_is_changed_by_its_name(write: Callable[..., str]) -> None:
    argv = [
        "--features.age.normalize=log",
        "--features.hour-of.day.parts=hour,month",
        "--features.state.min-count=3",
    ]
    config = flags.load(write(BASE), argv)
    assert [feature.name for feature in config.features] == ["age", "state", "hour-of.day"]
    assert config.features[0].normalize == "log"  # type: ignore[union-attr]
    assert config.features[2].parts == ("hour", "month")  # type: ignore[union-attr]
    assert config.features[1].min_count == 3  # type: ignore[union-attr]
    replaced = flags.load("x.yaml", ['--features=[{"name": "q", "kind": "hashed", "buckets": 7}]'])
    assert [feature.name for feature in replaced.features] == ["q"]


# --- mistakes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--batch_size=64.5"], "Invalid training.batch_size: got 64.5, expected a whole number, at least 1"),
        (
            ["--batch_size=many"],
            "Invalid training.batch_size: got 'many', expected a whole number, at least 1",
        ),
        (["--batch_size=inf"], "Invalid training.batch_size: got inf, expected a whole number, at least 1"),
        (
            ["--steps_per_epoch=0"],
            "Invalid training.steps_per_epoch: got 0, expected a whole number, at least 1, or none",
        ),
        (
            ["--steps-per-epoch=-1"],
            "Invalid training.steps_per_epoch: got -1, expected a whole number, at least 1, or none",
        ),
        (["--epochs", "-1"], "Invalid training.epochs: got -1, expected a whole number, at least 1"),
        (
            ["--batch_size=none"],
            "Invalid training.batch_size: got 'none', expected a whole number, at least 1",
        ),
        (["--learning_rate=nan"], "Invalid training.learning_rate: got nan, expected a number, above 0"),
        (["--learning_rate=0"], "Invalid training.learning_rate: got 0, expected a number, above 0"),
        (["--dropout=1"], "Invalid model.dropout: got 1, expected a number, at least 0 and below 1"),
        (["--shuffle=yes"], "Invalid data.shuffle: got 'yes', expected true or false"),
        (
            ["--optimizer=adamm"],
            "Invalid training.optimizer: got 'adamm', expected adam, adamw, sgd or adagrad; "
            "did you mean 'adam'?",
        ),
        (
            ["--hidden_units=64,x"],
            "Invalid model.hidden_units[1]: got 'x', expected a whole number, at least 1",
        ),
        (
            ["--hidden_units=64,0"],
            "Invalid model.hidden_units[1]: got 0, expected a whole number, at least 1",
        ),
        (["--hidden_units=[64"], "Invalid model.hidden_units: got '[64', expected JSON (not valid YAML: "),
        (
            ["--class_weights=3"],
            "Invalid training.class_weights: got 3, expected a map of texts to numbers",
        ),
        (['--class_weights={"0":"x"}'], "Invalid training.class_weights.0: got 'x', expected a number"),
        (['--class_weights={"0":1,"0":2}'], "the key '0' is given twice"),
        (["--source="], "Invalid data.source: got [], expected a list of texts, not empty"),
        (["--learn=0.1"], "unknown flag --learn; did you mean '--training.learning_rate'?"),
        (["--no-such=1"], "unknown flag --no-such; --help lists them all"),
        (
            ["--training.learning_rat=1"],
            "unknown flag --training.learning_rat; did you mean '--training.learning_rate'?",
        ),
        (["--fersh"], "unknown flag --fersh"),
        (["--column=a"], "ambiguous flag --column: it may mean --data.split.column or --label.column"),
        (["--training=3"], "--training is a section: set one of its keys, such as --training.batch_size"),
        (
            ["--early_stopping=3"],
            "--early_stopping is a section: set one of its keys, such as --training.early_st",
        ),
        (["--batch_size"], "--batch_size needs a value: a whole number, at least 1"),
        (["--batch_size", "--seed=1"], "--batch_size needs a value: a whole number, at least 1"),
        (["junk"], "unexpected argument 'junk': every setting is a --flag"),
        (["--shuffle", "true", "junk"], "unexpected argument 'junk': every setting is a --flag"),
        (["seed=3"], "unexpected argument 'seed=3': every setting is a --flag; did you mean '--seed=3'?"),
        (["-seed=3"], "unexpected argument '-seed=3': every setting is a --flag; did you mean '--seed=3'?"),
        (["--"], "unexpected argument '--'"),
        (["--features.stat.min_count=3"], "the config's features are age, state, hour-of.day"),
        (["--features.state.buckets=3"], "a categorical feature has the keys name, column, kind, min_count"),
        (
            ["--features.age.impute=men"],
            "Invalid features.age.impute: got 'men', expected mean, median or zero or a",
        ),
        (
            ['--features=[{"name": "q"}]'],
            "features.q: 'kind' is missing, expected one of numeric, categorical",
        ),
        (["--features=[3]"], "Invalid features[0]: got 3, expected a feature: a map with name and kind"),
        (
            ['--features=[{"name":"q","kind":"integer"}]'],
            "features.q.size is missing: a whole number, at least 1",
        ),
    ],
)
def test_a_wrong_flag_is_told_in_one_sentence(
    write: Callable[..., str], argv: list[str], message: str
) -> None:
    write(BASE)
    assert _message(*argv).startswith(message) or message in _message(*argv)
    assert "\n" not in _message(*argv)


@pytest.mark.parametrize(
    ("yaml", "message"),
    [
        (
            "training:\n  learning_rat: 1",
            "x.yaml:13: training.learning_rat: unknown key; did you mean 'learning_rate'?",
        ),
        ("learning_rate: 1", "x.yaml:12: learning_rate: unknown key; did you mean 'training.learning_rate'?"),
        (
            "training: {batch-size: 1}",
            "x.yaml:12: training.batch-size: unknown key; did you mean 'batch_size'?",
        ),
        (
            "training:\n\n  batch_size: 64.5",
            "x.yaml:14: Invalid training.batch_size: got 64.5, expected a whole",
        ),
        (
            "training:\n  epochs: 0",
            "x.yaml:13: Invalid training.epochs: got 0, expected a whole number, at least 1",
        ),
        ("training:\n  epochs:", "x.yaml:13: Invalid training.epochs: got nothing, expected a whole number"),
        ("training: 3", "x.yaml:12: Invalid training: got 3, expected the keys batch_size, epochs, "),
        ("seed: [1, 2]", "x.yaml:12: Invalid seed: got [1, 2], expected a whole number"),
        ("seed: {a: 1}", "x.yaml:12: Invalid seed: got {a: 1}, expected a whole number"),
        ("task: regression", "x.yaml:12: the key 'task' is given twice"),
        ("model:\n  name: dnn\n  name: dcn", "x.yaml:14: the key 'name' is given twice"),
        ("model: {a: [1}", "x.yaml:12: not valid YAML: "),
        ("model:\n\tname: dnn", "x.yaml:13: not valid YAML: "),
        (
            "seed: !!python/object:os.system x",
            "x.yaml:12: the tag 'tag:yaml.org,2002:python/object:os.system' has no",
        ),
        ("seed: *nowhere", "x.yaml:12: not valid YAML: found undefined alias"),
        ("model: &m {name: *m}", "nested more than 30 deep"),
        ("? [a]\n: 1", "a key must be a single word"),
        ("---\nname: b", "x.yaml:12: not valid YAML: but found another document"),
        (
            "training:\n  batch_size: 10\n  accumulate: 3",
            "x.yaml:12: training: batch_size 10 does not divide",
        ),
        (
            "training:\n  class_weights: {a: 1}\nlabel2: 1",
            "x.yaml:14: label2: unknown key; did you mean 'label'?",
        ),
    ],
)
def test_a_mistake_in_a_file_names_file_line_and_key(
    write: Callable[..., str], yaml: str, message: str
) -> None:
    write(BASE + yaml)
    assert message in _message()
    assert "\n" not in _message()


def test_missing_keys_say_what_belongs_there(write: Callable[..., str]) -> None:
    write("name: demo\ndata:\n  source: a.csv\nfeatures:\n  - {name: a, kind: numeric}\n")
    assert _message().splitlines() == [
        "x.yaml: task is missing: binary, multiclass, regression or multilabel (What is predicted.)",
        "x.yaml:2: data.split is missing: a section (How rows are dealt to train, validation and test.)",
        "x.yaml: label is missing: a section (What is learned.)",
    ]


def test_all_mistakes_are_told_at_once_and_each_once(write: Callable[..., str]) -> None:
    write(BASE + "training:\n  batch_size: 0.5\n  accumulate: 3\n  optimiser: sgd\n")
    assert _message("--learn=1", "--dropout=2", "--zzz_qx").splitlines() == [
        "unknown flag --learn; did you mean '--training.learning_rate'?",
        "unknown flag --zzz_qx; --help lists them all",
        "x.yaml:13: Invalid training.batch_size: got 0.5, expected a whole number, at least 1",
        "x.yaml:15: training.optimiser: unknown key; did you mean 'optimizer'?",
        "Invalid model.dropout: got 2, expected a number, at least 0 and below 1",
    ]


def test_rules_between_keys_name_the_line(write: Callable[..., str]) -> None:
    write(BASE.replace("binary", "multilabel"))
    assert _message() == "x.yaml:6: label.column: task multilabel can't have 1 label column(s)"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "--config: no such file: cofigs/x.yaml; did you mean 'cofigs/y.yaml'?"),
        (b"\xff\xfe", "cofigs/x.yaml: not UTF-8 text"),
        (b"- a\n- b\n", "cofigs/x.yaml: expected keys such as 'name:' and 'data:' at the top"),
        (b"", "cofigs/x.yaml: name is missing"),
        (b"\xef\xbb\xbfnam: x\n", "cofigs/x.yaml:1: nam: unknown key; did you mean 'name'?"),
    ],
)
def test_a_file_that_is_no_config(write: Callable[..., str], content: bytes | None, message: str) -> None:
    write("", "cofigs/y.yaml")
    if content is not None:
        Path("cofigs/x.yaml").write_bytes(content)
    assert message in _message(path="cofigs/x.yaml")


def test_a_folder_is_no_config(write: Callable[..., str]) -> None:
    write("", "a/b.yaml")
    assert _message(path="a") == "--config: a can't be read: Is a directory"


# --- inheritance ------------------------------------------------------------------------------------


def test_a_file_is_laid_over_its_base(write: Callable[..., str]) -> None:
    write(
        BASE + "training: {epochs: 7, class_weights: {a: 1, b: 2}}\nmodel: {hidden_units: [8, 4]}",
        "up/base.yaml",
    )
    write("base: ../up/base.yaml\nmodel: {dropout: 0.5}\ntraining:\n", "sub/mid.yaml")
    top = write(
        """\
        base: sub/mid.yaml
        name: top
        training: {batch_size: 32, class_weights: {b: 3}}
        model: {hidden_units: [16]}
        """
    )
    config = flags.load(top)
    assert config.name == "top"
    assert (config.training.epochs, config.training.batch_size) == (7, 32)
    assert config.training.class_weights == {"b": 3.0}  # a map of values is a value
    assert (config.model.hidden_units, config.model.dropout) == ((16,), 0.5)


def test_errors_name_the_file_that_has_the_key(write: Callable[..., str]) -> None:
    write(BASE + "training:\n  epoch: 7\n", "base.yaml")
    write("base: base.yaml\nsead: 1\n")
    assert _message().splitlines() == [
        "base.yaml:13: training.epoch: unknown key; did you mean 'epochs'?",
        "x.yaml:2: sead: unknown key; did you mean 'seed'?",
    ]


def test_bases_that_cannot_be_read(write: Callable[..., str]) -> None:
    write("base: b.yaml\n", "a.yaml")
    write("base: a.yaml\n", "b.yaml")
    assert _message(path="a.yaml") == "b.yaml:1: base: the bases go in a circle: a.yaml -> b.yaml -> a.yaml"
    write("name: x\nbase: aa.yaml\n", "c.yaml")
    assert _message(path="c.yaml") == "c.yaml:2: base: no such file: aa.yaml; did you mean 'a.yaml'?"
    write("base: [a.yaml]\n", "d.yaml")
    assert _message(path="d.yaml") == "d.yaml:1: Invalid base: expected the path of one config file"


def test_later_files_win_and_flags_win_over_all(write: Callable[..., str]) -> None:
    write(BASE + "training: {epochs: 7, batch_size: 8}\n")
    write("training: {epochs: 1, steps_per_epoch: 1}\n", "debug.yaml")
    config = flags.load(["x.yaml", "debug.yaml"], ["--batch_size=4"])
    training = config.training
    assert (training.epochs, training.batch_size, training.steps_per_epoch) == (1, 4, 1)


@pytest.mark.parametrize(
    "path", sorted(config_help.PAGE.parent.parent.glob("configs/debug/*.yaml")), ids=lambda p: p.stem
)
def test_debug_configs_lie_over_any_config(write: Callable[..., str], path: Path) -> None:
    config = flags.load([write(BASE), str(path)])
    assert config.output_dir == f"runs/debug/{path.stem}"
    assert config.data.limit_rows > 0
    assert f"configs/debug/{path.name}" in path.read_text()  # the command in its header


def test_configs_on_an_object_store(write: Callable[..., str]) -> None:
    import tensorflow as tf  # its ram:// files go the way of gs://

    tf.io.gfile.makedirs("ram://flags/c")
    for name, text in (("base.yaml", BASE), ("c/x.yaml", "base: ../base.yaml\nseed: 5\nsead: 6\n")):
        with tf.io.gfile.GFile(f"ram://flags/{name}", "w") as file:
            file.write(text)
    assert flags.load("ram://flags/base.yaml").name == "demo"
    assert _message(path="ram://flags/c/x.yaml") == (
        "ram://flags/c/x.yaml:3: sead: unknown key; did you mean 'seed'?"
    )
    assert _message(path="ram://flags/y.yaml").startswith("--config: ram://flags/y.yaml can't be read: ")


def test_anchors_and_merge_keys(write: Callable[..., str]) -> None:
    text = BASE.replace("features:\n", "features:\n  - &h {name: h, kind: hashed, buckets: 7}\n")
    config = flags.load(write(text + "  - {<<: *h, name: g}\n"))
    assert [(f.name, f.buckets) for f in config.features if f.kind == "hashed"] == [("h", 7), ("g", 7)]


@pytest.mark.parametrize(
    ("path", "name", "expected"),
    [
        ("configs/x.yaml", "y.yaml", "configs/y.yaml"),
        ("configs/a/x.yaml", "../y.yaml", "configs/y.yaml"),
        ("x.yaml", "y.yaml", "y.yaml"),
        ("gs://b/c/x.yaml", "y.yaml", "gs://b/c/y.yaml"),
        ("gs://b/c/x.yaml", "../y.yaml", "gs://b/y.yaml"),
        ("gs://b/x.yaml", "/gcs/y.yaml", "/gcs/y.yaml"),
        ("x.yaml", "gs://b/y.yaml", "gs://b/y.yaml"),
    ],
)
def test_a_base_is_seen_from_its_file(path: str, name: str, expected: str) -> None:
    assert config_file.relative_to(path, name) == expected


# --- the command line -------------------------------------------------------------------------------


def test_options_and_keys_on_one_command_line(write: Callable[..., str]) -> None:
    write(BASE)
    arguments = flags.parse(
        ["--seed", "3", "--config=x.yaml", "--fresh", "--debug", "false", "--print-config=1"]
    )
    assert arguments.config.seed == 3
    assert (arguments.fresh, arguments.debug, arguments.print_config) == (True, False, True)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "--config is missing: name a config file, such as --config configs/"),
        (["--config"], "--config needs a value: FILE"),
        (["--config=x.yaml", "--fresh=perhaps"], "Invalid --fresh: got 'perhaps', expected true or false"),
        (["--config=x.yaml", "--fersh"], "unknown flag --fersh; did you mean '--fresh'?"),
    ],
)
def test_wrong_options(write: Callable[..., str], argv: list[str], message: str) -> None:
    write(BASE)
    with pytest.raises(UserError) as caught:
        flags.parse(argv)
    assert str(caught.value).startswith(message)


def test_a_command_may_have_options_of_its_own(write: Callable[..., str]) -> None:
    write(BASE)
    options = {**flags.CONFIG, "rows": flags.Option("Rows to look at.", "NUMBER")}
    arguments = flags.parse(["--config=x.yaml", "--rows", "7"], options, "look")
    assert arguments.options["rows"] == "7"


def test_help_lists_every_key(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        flags.parse(["--help", "--nonsense"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    for leaf in schema.leaves():
        assert f"--{leaf.path}  (" in text
        assert " ".join(leaf.description.split()) in " ".join(text.split())
    for option in flags.TRAIN:
        assert f"--{option}" in text
    for kind in schema.kinds(schema.FEATURE):
        assert f"kind: {kind} " in text
    assert max(map(len, text.splitlines())) <= 110
    order = [text.index(f"\n{path}: ") for path, _, _ in schema.sections()]
    assert order == sorted(order)


def test_the_resolved_config_loads_to_the_same_config(write: Callable[..., str]) -> None:
    odd = [
        "none",
        "null",
        "~",
        "yes",
        "1e3",
        "2013-10-01",
        "a: b",
        "#c",
        "é",
        "",
        " x ",
        "{a}",
        "1,5",
        "'",
        '"',
    ]
    write(BASE)
    argv = [
        f"--slice_by={json.dumps(odd)}",
        f"--classes={json.dumps(['no', '1.10'])}",
        '--class_weights={"no": 1, "1.10": 1e-7}',
        "--data.weight=w",
        "--salt=none",
        "--objective=null_",
        "--learning_rate=1e-05",
        "--features.age.impute=0.5",
    ]
    config = flags.load("x.yaml", argv)
    assert config.report.slice_by == tuple(odd)
    write(outputs.resolved_yaml(config), "resolved.yaml")
    assert flags.load("resolved.yaml") == config


@pytest.mark.parametrize(
    ("argv", "code", "text"),
    [
        (["trainer.task", "--help"], 0, "--training.learning_rate  (a number, above 0; default 0.001)"),
        (["trainer.task", "--config=x.yaml", "--print_config", "--seed=7"], 0, "seed: 7"),
        (["trainer", "train", "--config=x.yaml", "--print_config"], 0, "name: demo"),
        (
            ["trainer.task", "--config=x.yaml", "--seed=7.5"],
            2,
            "error: Invalid seed: got 7.5, expected a whole",
        ),
        (
            ["trainer.task", "--config=y.yaml"],
            2,
            "error: --config: no such file: y.yaml; did you mean 'x.yaml'?",
        ),
        (["trainer"], 0, "train     Train, evaluate, export and report"),
    ],
)
def test_answers_come_within_a_second_and_without_tensorflow(
    write: Callable[..., str], argv: list[str], code: int, text: str
) -> None:
    write(BASE)
    program = (
        "import runpy, sys; module = sys.argv.pop(1)\n"
        "try: runpy.run_module(module, run_name='__main__', alter_sys=True)\n"
        "finally: print('heavy:', sorted({'tensorflow', 'pyarrow', 'numpy', 'keras'} & set(sys.modules)))"
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-c", program, *argv],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(Path(flags.__file__).parent.parent), "PATH": "/usr/bin:/bin"},
        check=False,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == code
    assert text in done.stdout + done.stderr
    assert "heavy: []" in done.stdout
    # Seconds of CPU, because a busy machine stretches the clock's.
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 1


def test_the_page_of_keys_is_up_to_date() -> None:
    assert config_help.PAGE.read_text(encoding="utf-8") == config_help.markdown(), (
        "docs/config.md is stale: run `python -m trainer.config_help --write`"
    )
