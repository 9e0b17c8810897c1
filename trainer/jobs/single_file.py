"""One Python file that holds the trainer and a config, and trains when it is run. Adopters: leave.

The package travels as a zip in base64 and is unpacked into a temporary folder, because its data files and the
fresh process of the parity gate need real files. The same code and config make the same script, byte by byte.
"""

from __future__ import annotations

import base64
import io
import textwrap
import zipfile
from collections.abc import Sequence
from pathlib import Path

import trainer
from trainer import outputs
from trainer.config import Config

FIRST_LINE = '"""Trains a model: the trainer and its config in one file, made by `python -m trainer package`.'
_PACKAGE = Path(trainer.__file__).parent
_CONFIG = "config.yaml"
_SCRIPT = '''{first}

    python {file} [--KEY=VALUE ...]        every key of the config is a flag; --help lists them

Run: {name} (task {task}), trainer {version}. It needs TensorFlow and, beside what the prebuilt container of
TensorFlow 2.17 holds:

{requirements}
"""

import atexit
import base64
import io
import os
import shutil
import sys
import tempfile
import zipfile

CONFIG = "{config}"
PACKAGE = """
{package}
"""


def unpack():
    """Unpacks the trainer and its config into a folder that goes when this process ends, and returns it."""
    folder = tempfile.mkdtemp(prefix="trainer-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    with zipfile.ZipFile(io.BytesIO(base64.b64decode(PACKAGE))) as archive:
        archive.extractall(folder)
    return folder


def main():
    """Trains as the config and the command line say, and returns the exit code."""
    if sys.version_info < (3, 10):
        sys.exit("this script needs Python 3.10 or newer, got " + sys.version.split()[0])
    folder = unpack()
    sys.path.insert(0, folder)
    # The export is proved in a fresh process, which must find the same package.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH")]))
    try:
        from trainer import task
    except ModuleNotFoundError as error:
        sys.exit("missing package: " + str(error.name) + "; install what the head of " + __file__ + " lists")
    return task.main(["--config=" + os.path.join(folder, CONFIG), *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
'''


def script(config: Config, requirements: Sequence[str] = ()) -> str:
    """Returns the text of a script that trains a config.

    Args:
        config: the run's config, which goes into the script as it is resolved.
        requirements: packages that its head lists.
    """
    packed = base64.b64encode(_zip(config)).decode()
    listed = " ".join(f"'{line}'" if set("<>= ") & set(line) else line for line in requirements)
    return _SCRIPT.format(
        first=FIRST_LINE,
        file=f"train_{config.name}.py",
        name=config.name,
        task=config.task,
        version=trainer.__version__,
        requirements=textwrap.fill(
            f"pip install {listed or 'the packages of the trainer'}",
            108,
            initial_indent="    ",
            subsequent_indent="        ",
            break_long_words=False,
            break_on_hyphens=False,
        ).replace("\n", " \\\\\n"),
        config=_CONFIG,
        package="\n".join(packed[i : i + 108] for i in range(0, len(packed), 108)),
    )


def _zip(config: Config) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for path in sorted(_PACKAGE.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                _add(archive, f"trainer/{path.relative_to(_PACKAGE).as_posix()}", path.read_bytes())
        _add(archive, _CONFIG, outputs.resolved_yaml(config).encode())
    return made.getvalue()


def _add(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    entry = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))  # no clock: the same content, the same zip
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.external_attr = 0o644 << 16
    archive.writestr(entry, content)
