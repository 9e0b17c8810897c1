"""Images: there, supported, with the right libraries. Adopters: leave; update tables/images.yaml."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

from trainer.config import READER_TENSORFLOW
from trainer.errors import nearest
from trainer.jobs import hardware, tables
from trainer.jobs.context import Context
from trainer.jobs.document import Value
from trainer.jobs.spec import PIPELINE, Pool

ROOT = Path(__file__).parents[3]
_PREBUILT = re.compile(
    r"^(?P<host>us|europe|asia)-docker\.pkg\.dev/vertex-ai(?P<restricted>-restricted)?/(?P<use>training|prediction)/"
    r"(?P<name>[\w.-]+?)(?P<tag>[:@].*)?$"
)
_OLD_HOST = re.compile(r"^(us|eu|asia)?\.?gcr\.io/cloud-aiplatform/(training|prediction)/")
_REGIONAL = re.compile(r"^([a-z]+-[a-z]+\d+)-docker\.pkg\.dev/")
_CONTINENT = {
    "us": ("us", "northamerica", "southamerica"),
    "europe": ("europe", "me", "africa"),
    "asia": ("asia", "australia"),
}
# An image that names its TensorFlow: tensorflow/tensorflow:2.19.0-gpu, .../tf-cpu.2-17, trainer:tf2.21.
_TENSORFLOW = re.compile(r"(?:tensorflow[:-]|tf-?(?:[cgt]pu)?[.-]?)(2)[.-](\d{1,2})(?!\d)")


def check(context: Context) -> None:
    """Notes what is wrong with the images that a job trains and serves with."""
    seen: set[tuple[str, str]] = set()
    for pool in context.job.active_pools:
        kind = (pool.image, pool.accelerator_type)
        if pool.image and kind not in seen and not pool.is_reducer:
            _training(context, pool)
        seen.add(kind)  # of two pools with the same image, one finding is enough
    if context.job.kind == PIPELINE:
        _serving(context)


@functools.cache
def locked(root: Path = ROOT) -> dict[str, str]:
    """Returns the TensorFlow minor of each lock file, such as {"default": "2.21", "tf217": "2.17"}.

    An installed trainer has no lock files: an empty dict.
    """
    found = {}
    for path in sorted((root / "requirements").glob("*.txt")):
        with path.open(encoding="utf-8") as file:
            for line in file:
                if match := re.match(r"tensorflow(?:-tpu)?==(\d+\.\d+)\.", line):
                    found[path.stem] = match[1]
                    break
    return found


def tensorflow_of(image: str) -> str | None:
    """Returns the TensorFlow minor that an image's name tells, or None."""
    match = _TENSORFLOW.search(image)
    return f"{match[1]}.{match[2]}" if match else None


def prebuilt(image: str) -> tuple[str, dict[str, Any]] | None:
    """Returns (name, row of the table) of a prebuilt image; the row is empty for an unknown one."""
    match = _PREBUILT.match(image)
    if match is None:
        return None
    row: dict[str, Any] = tables.load("images")[match["use"]].get(match["name"], {})
    return match["name"], row


def _training(context: Context, pool: Pool) -> None:
    key = "executorImageUri" if pool.is_package else "imageUri"
    at = pool.at(pool.container, key)
    if pool.is_tpu and pool.is_package and pool.runs_trainer and not context.machines_unclear:
        _package_on_tpu(context, pool, at)
        return
    found = prebuilt(pool.image)
    if found is None:
        if _OLD_HOST.match(pool.image):
            context.add(
                "image-unknown",
                at,
                "the old registry host is no longer served",
                "write us-docker.pkg.dev/vertex-ai/training/NAME:latest, or your own image",
            )
        elif pool.is_package:
            context.add(
                "executor-image",
                at,
                f"{pool.image} is not a prebuilt image of the service, and only those install packages",
                "write us-docker.pkg.dev/vertex-ai/training/tf-cpu.2-17.py310:latest, or use containerSpec",
            )
        else:
            _own(context, pool, at)
        return
    name, row = found
    table = tables.load("images")["training"]
    if name not in table:
        hint = nearest(name, table).removeprefix("; did you mean ").rstrip("?")
        context.add(
            "image-unknown",
            at,
            f"the service has no training image {name!r} (table of {tables.load('images')['date']})",
            f"write {hint or next(iter(table))}",
        )
        return
    tag = pool.image.rpartition(name)[2]
    if tag not in ("", ":latest") and not tag.startswith("@"):
        context.add(
            "image-unknown",
            at,
            f"prebuilt images have the tag latest alone, got {tag[1:]!r}",
            "write :latest",
        )
        return
    _region(context, pool.image, at)
    if not _device(context, pool, at, row["device"]):
        return
    locks = locked()
    if locks and row["tensorflow"] not in locks.values():
        context.add(
            "image-tensorflow",
            at,
            f"TensorFlow {row['tensorflow']} is none that this trainer is locked and tested with "
            f"({', '.join(sorted(set(locks.values())))})",
            f"write {name.replace(row['tensorflow'].replace('.', '-'), '2-17')}, or build your own image",
        )
        return
    _dates(context, at, name, row, "build your own image (make image) and use containerSpec")


def _package_on_tpu(context: Context, pool: Pool, at: Value) -> None:
    """Notes that no prebuilt image lets this trainer run on a TPU, and why."""
    table = tables.load("images")["training"]
    newest = next(name for name, row in table.items() if row["device"] == "tpu")
    row = table[newest]
    why = (
        f"the newest prebuilt image for TPUs, {newest}, has TensorFlow {row['tensorflow']} (gone since "
        f"{row['available']}), and this trainer needs 2.17 or newer"
    )
    if hardware.tpu_of(pool) not in ("TPU_V2", "TPU_V3"):
        why = f"there is no prebuilt image for {hardware.tpu_of(pool)}"
    context.add("tpu-package", at, why, "build your own image (make image-tpu) and use containerSpec")


def _dates(context: Context, at: Value, name: str, row: dict[str, Any], instead: str) -> None:
    ended = [word for word in ("support", "available") if row.get(word) and context.today >= row[word]]
    if ended:
        words = {"support": "has had no fixes since", "available": "may no longer be pulled since"}
        why = " and ".join(f"{words[word]} {row[word]}" for word in ended)
        context.add("image-ended", at, f"{name} {why}", instead)


def _own(context: Context, pool: Pool, at: Value) -> None:
    """Notes what the name of one's own image tells."""
    image = pool.image
    last = image.rpartition("/")[2]
    if "@sha256:" not in image and (":" not in last or last.endswith(":latest")):
        context.add(
            "image-latest",
            at,
            "the image behind it can change between the check, a retry and the next job",
            "write a version or a digest, such as :0.1.0 or @sha256:...",
        )
        return
    words = set(re.split(r"[-_.:/@]", last))
    device = next((word for word in ("cpu", "gpu", "tpu") if word in words), None)
    if device and not _device(context, pool, at, device):
        return
    version, locks = tensorflow_of(image), locked()
    right = locks.get({"gpu": "gpu", "tpu": "tpu"}.get(device or "", "default"))
    config = context.run.config
    if config and config.data.reader == "tensorflow-io" and version == READER_TENSORFLOW:
        right = version  # requirements/tfio.txt
    if version and right and version != right:
        context.add(
            "image-tensorflow",
            at,
            f"the image has TensorFlow {version}, and the lock of this trainer {right}",
            f"build it anew from requirements/ (TensorFlow {right})",
        )
        return
    _region(context, image, at)


def _device(context: Context, pool: Pool, at: Value, device: str) -> bool:
    """Notes an image for another device than the pool has; returns whether it fits."""
    if context.machines_unclear:
        return True
    has = "tpu" if pool.is_tpu else "gpu" if hardware.gpu_count(pool) else "cpu"
    if device == has:
        return True
    if has == "cpu":
        context.add(
            "image-idle",
            at,
            f"an image for {device.upper()}s, and the pool has none: it is larger and slower to start",
            "take the CPU image, or add accelerators",
        )
    else:
        context.add(
            "image-device",
            at,
            f"an image for {device.upper()}s on a pool with {pool.accelerator_type or pool.machine_type}: "
            "TensorFlow would train on the CPU, at the price of all",
            f"take the image for {has.upper()}s (make image-{has})",
        )
    return False


def _region(context: Context, image: str, at: Value) -> None:
    if match := _REGIONAL.match(image):
        if match[1] != context.region:
            context.add(
                "image-region",
                at,
                f"the image is in {match[1]} and the job in {context.region}: every machine pulls it across",
                f"copy it to a repository in {context.region}",
            )
        return
    host = image.partition("-docker.pkg.dev")[0]
    area = context.region.partition("-")[0]
    right = next((name for name, areas in _CONTINENT.items() if area in areas), host)
    if host in _CONTINENT and right != host and prebuilt(image) is not None:
        context.add(
            "image-region",
            at,
            f"the image is on the host for {host} and the job in {context.region}",
            f"write {right}-docker.pkg.dev/...",
        )


# --- the model to upload ----------------------------------------------------------------------------


def _serving(context: Context) -> None:
    job = context.job
    model = job.root.get("modelToUpload")
    data = job.root.get("inputDataConfig")
    if data is not None:
        _destination(context, data)
    if data is not None and not (data.get("gcsDestination") or data.get("bigqueryDestination")):
        context.add_in(
            "dataset-destination",
            data,
            ("bigqueryDestination",),
            "the dataset's rows are exported for the job, and need a place",
            "write bigqueryDestination: {outputUri: bq://PROJECT} or gcsDestination: {outputUriPrefix: gs://...}",
        )
    if model is None:
        return
    image = model.of("containerSpec", "imageUri", default="")
    for key, given in (("displayName", model.of("displayName", default="")), ("containerSpec", image)):
        if not given:
            context.add_in(
                "serving-missing",
                model,
                (key,),
                "a model is uploaded with a name and a serving image, or not at all",
                f"write {key}" if key == "displayName" else "write containerSpec: {imageUri: ...}",
            )
            return
    artifacts = str(model.of("artifactUri", default="")).rstrip("/")
    if artifacts and artifacts != f"{job.base_output}/model":
        context.add_in(
            "artifact-elsewhere",
            model,
            ("artifactUri",),
            f"the trainer exports to {job.base_output}/model (AIP_MODEL_DIR)",
            "leave it out",
        )
    at = model.nearest("containerSpec", "imageUri")
    found = prebuilt(image)
    if found is None:
        return
    name, row = found
    table = tables.load("images")["prediction"]
    if not row:
        hint = nearest(name, table).removeprefix("; did you mean ").rstrip("?")
        context.add(
            "image-unknown",
            at,
            f"the service has no prediction image {name!r}",
            f"write {hint or next(iter(table))}",
        )
        return
    exporting = _exporting(context)
    older = exporting and row["tensorflow"] != "nightly" and _minor(row["tensorflow"]) < _minor(exporting)
    if older:
        support = (
            f", and {name} has had no fixes since {row['support']}" if context.today >= row["support"] else ""
        )
        context.add(
            "serving-older",
            at,
            f"it serves with TensorFlow {row['tensorflow']} what {exporting} exports, which need not "
            f"load there{support}",
            "write us-docker.pkg.dev/vertex-ai-restricted/prediction/tf_opt-cpu.nightly:latest, or load your "
            f"export in TensorFlow {row['tensorflow']} first (tests/integration/test_serving_2_15.py does)",
        )
        return
    _dates(context, at, name, row, "write tf_opt-cpu.nightly, or your own serving image")


def _destination(context: Context, data: Value) -> None:
    """Notes a place that the rows of a managed dataset can't be exported to."""
    for keys, right, pattern in (
        (("bigqueryDestination", "outputUri"), "bq://PROJECT", r"bq://[^/.\s]+"),
        (("gcsDestination", "outputUriPrefix"), "gs://BUCKET/FOLDER", r"gs://.+"),
    ):
        place = data.get(*keys)
        if place is not None and not re.fullmatch(pattern, str(place.data)):
            context.add("dataset-destination", place, f"got {place.data!r}", f"write {right}")


def _exporting(context: Context) -> str | None:
    """Returns the TensorFlow minor that exports the model: the image's own, else the lock's."""
    chief = context.job.pools[0] if context.job.pools else None
    if chief is None:
        return None
    found = prebuilt(chief.image)
    if found is not None:
        version: str | None = found[1].get("tensorflow")
        return version
    return tensorflow_of(chief.image) or locked().get("tpu" if chief.is_tpu else "default")


def _minor(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
