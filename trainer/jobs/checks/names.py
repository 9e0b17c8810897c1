"""Names of resources, images, packages, modules and buckets, as the service spells them. Adopters: leave."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from pathlib import Path

import trainer
from trainer.jobs.checks.images import prebuilt
from trainer.jobs.context import Context
from trainer.jobs.document import Value
from trainer.jobs.spec import Pool

_PLACE = r"projects/[^/\s]+/locations/[a-z0-9-]+"
_CONTEXT = (rf"{_PLACE}/metadataStores/[^/\s]+/contexts/[^/\s]+", "metadataStores/default/contexts/NAME")
# (path in the spec, pattern of the whole name, what to write)
_IN_SPEC = (
    (
        ("serviceAccount",),
        r"[^@:\s]+@[^@\s]+\.gserviceaccount\.com",
        "NAME@PROJECT.iam.gserviceaccount.com",
    ),
    (
        ("tensorboard",),
        rf"{_PLACE}/tensorboards/[^/\s]+",
        "projects/PROJECT/locations/REGION/tensorboards/ID",
    ),
    (("experiment",), _CONTEXT[0], f"projects/PROJECT/locations/REGION/{_CONTEXT[1]}"),
    (("experimentRun",), _CONTEXT[0], f"projects/PROJECT/locations/REGION/{_CONTEXT[1]}"),
    (
        ("pscInterfaceConfig", "networkAttachment"),
        r"projects/[^/\s]+/regions/[a-z0-9-]+/networkAttachments/[^/\s]+",
        "projects/PROJECT/regions/REGION/networkAttachments/NAME",
    ),
    (("persistentResourceId",), r"[a-z]([a-z0-9-]{0,126}[a-z0-9])?", "its id alone, such as my-machines"),
)
_KEY = (
    rf"{_PLACE}/keyRings/[^/\s]+/cryptoKeys/[^/\s]+",
    "projects/PROJECT/locations/REGION/keyRings/RING/cryptoKeys/KEY",
)
_IN_ROOT = (
    (("encryptionSpec", "kmsKeyName"), *_KEY),
    (("modelToUpload", "encryptionSpec", "kmsKeyName"), *_KEY),
    (("parentModel",), rf"{_PLACE}/models/[^/\s]+", "projects/PROJECT/locations/REGION/models/ID"),
    (
        ("modelId",),
        r"[a-z_][a-z0-9_-]{0,62}",
        "63 lower case letters, digits, _ and - at most, a letter first",
    ),
    (("inputDataConfig", "datasetId"), r"\d+", "the number alone"),
)
_ALIAS = re.compile(r"[a-z][a-zA-Z0-9-]{0,126}[a-z0-9]")
_BUCKET = re.compile(r"[a-z0-9]([a-z0-9._-]*[a-z0-9])?")
_IN_TEXT = re.compile(r"gs://([^/\s,]+)")
_FILES = (".tar.gz", ".tgz", ".whl", ".zip")  # what pip installs
_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_VERBS = ("train", "tune")
_LIKE = 0.75  # likeness of a package's name that is meant to be the trainer


def check(context: Context) -> None:
    """Notes names that the service, the registry or the machine would refuse."""
    job = context.job
    for root, places in ((job.spec, _IN_SPEC), (job.root, _IN_ROOT)):
        for keys, pattern, right in places:
            value = root.get(*keys)
            if value is not None and value.data is not None and not re.fullmatch(pattern, str(value.data)):
                context.add("resource-name", value, f"got {value.data!r}", f"write {right}")
    for pool in job.active_pools:
        _image(context, pool.at(pool.container, "executorImageUri" if pool.is_package else "imageUri"))
        _program(context, pool)
        _packages(context, pool)
    model = job.root.get("modelToUpload")
    if model is not None:
        _image(context, model.nearest("containerSpec", "imageUri"))
        aliases = model.get("versionAliases")
        for alias in aliases.items() if aliases else ():
            if not _ALIAS.fullmatch(str(alias.data)):
                context.add(
                    "model-alias",
                    alias,
                    f"got {alias.data!r}",
                    "write lower case letters, digits and -, a letter first, such as candidate",
                )
    _buckets(context)


def _image(context: Context, at: Value) -> None:
    image = at.data
    if not isinstance(image, str):
        return
    name, right = image.partition("@")[0], image.strip().partition("://")[2] or image.strip()
    if ":" in name.rpartition("/")[2]:
        name = name.rpartition(":")[0]
    rest = image.removeprefix(name)
    if right != image or any(letter.isspace() for letter in image):
        context.add("image-name", at, f"{image!r} has more than host, name and tag", f"write {right}")
    elif name != name.lower():
        context.add(
            "image-name", at, "no registry takes capitals in an image's name", f"write {name.lower()}{rest}"
        )


def _program(context: Context, pool: Pool) -> None:
    """Notes a program that can't start: an image without one, a module that isn't there."""
    if pool.is_reducer:
        return
    if context.noted("image-unknown", "container-kinds"):
        return
    if not pool.is_package and not pool.command and prebuilt(pool.image) is not None:
        context.add_pool(
            "image-program",
            pool,
            (pool.container, "imageUri"),
            "a prebuilt image has TensorFlow and not the trainer, so that nothing would run",
            "build your own image (make image), or use pythonPackageSpec with the trainer's packageUris",
        )
        return
    words = [*pool.command]
    if pool.is_package:
        at, module, words = pool.at(pool.container, "pythonModule"), pool.python_module, []
    elif "-m" in words[:-1]:
        place = words.index("-m") + 1
        at, module, words = pool.at(pool.container, "command", place), words[place], words[place + 1 :]
    else:
        return
    ours = "trainer" in "".join((pool.image.rpartition("/")[2], *pool.package_uris))
    if problem := _module_problem(module, [*words, *pool.args], ours):
        context.add("module-unknown", at, problem, "write trainer.task")


def _module_problem(module: str, words: list[str], ours: bool) -> str | None:
    """Returns why `python -m module` would not start a run, or None.

    Args:
        module: what the machine starts.
        words: what follows it.
        ours: whether image or package are this trainer's by name, so that no other package is meant.
    """
    if not module:
        return None
    if not _MODULE.fullmatch(module):
        return f"{module!r} is no name of a module, with dots and without .py"
    package, *rest = module.split(".")
    if package != "trainer":
        like = difflib.SequenceMatcher(None, package, "trainer").ratio()
        return f"the package is called trainer, not {package}" if ours and like >= _LIKE else None
    place = Path(trainer.__file__).parent.joinpath(*rest)
    if rest and not place.with_suffix(".py").exists() and not (place / "__main__.py").exists():
        return f"the trainer has no module {module}"
    if rest in ([], ["__main__"]) and (not words or words[0] not in _VERBS):
        return f"python -m {module} wants a command first, and gets {words[0] if words else 'nothing'}"
    return None


def _packages(context: Context, pool: Pool) -> None:
    uris = pool.value.get(pool.container, "packageUris")
    for uri in uris.items() if uris else ():
        text = str(uri.data)
        name = text.rpartition("/")[2]
        if not text.startswith("gs://"):
            context.add(
                "package-uri",
                uri,
                "the machine fetches it from Cloud Storage",
                f"copy it to a bucket and write gs://BUCKET/packages/{name}",
            )
        elif not name.endswith(_FILES):
            context.add(
                "package-uri",
                uri,
                f"pip can't install {name!r}",
                "write a source distribution (.tar.gz, made by `make package`) or a wheel (.whl)",
            )


def _texts(value: Value) -> Iterator[Value]:
    """Yields every text of a document."""
    if isinstance(value.data, dict):
        for item in value.data.values():
            yield from _texts(item)
    elif isinstance(value.data, list):
        for item in value.data:
            yield from _texts(item)
    elif isinstance(value.data, str):
        yield value


def _buckets(context: Context) -> None:
    seen: set[str] = set()
    for value in _texts(context.job.root):
        for bucket in _IN_TEXT.findall(value.data):
            if not _BUCKET.fullmatch(bucket) and "$" not in bucket and bucket not in seen:
                seen.add(bucket)
                context.add(
                    "bucket-name",
                    value,
                    f"no bucket can be called {bucket!r}",
                    "write lower case letters, digits, -, _ and ., a letter or digit first and last",
                )
