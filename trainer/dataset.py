"""A managed dataset of the job takes the place of the config's rows. Adopters: leave.

A training pipeline with a dataset sets AIP_DATA_FORMAT, AIP_TRAINING_DATA_URI, AIP_VALIDATION_DATA_URI and
AIP_TEST_DATA_URI. Whoever gives the same dataset and the same split to AutoML and to this trainer can compare
the figures of the two.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping

from trainer.config import Config, SplitConfig
from trainer.errors import UserError, nearest

log = logging.getLogger("trainer")

FORMAT = "AIP_DATA_FORMAT"
URIS = ("AIP_TRAINING_DATA_URI", "AIP_VALIDATION_DATA_URI", "AIP_TEST_DATA_URI")
_FORMATS = ("bigquery", "csv", "jsonl")


def apply(config: Config, environ: Mapping[str, str] = os.environ) -> Config:
    """Returns the config with the rows of the job's managed dataset; as it is where the job has none.

    `data.source` becomes the training part and the split `paths` the other two. Without a validation part the
    config's own split is made of the training part.

    Args:
        config: the run's config.
        environ: variables of this process.

    Raises:
        UserError: the variables contradict each other, or are of a format that there is none of.
    """
    train, validation, test = (environ.get(name, "").strip() for name in URIS)
    kind = environ.get(FORMAT, "").strip().lower()
    if not train:
        for name, value in zip((FORMAT, *URIS[1:]), (kind, validation, test), strict=True):
            if value:
                raise UserError(
                    f"{name}={value} is set, but {URIS[0]}, which names the rows to train on, is not"
                )
        return config
    if kind and kind not in _FORMATS:
        raise UserError(f"{FORMAT}: got {kind!r}, expected {', '.join(_FORMATS)}{nearest(kind, _FORMATS)}")
    for name, uri in zip(URIS, (train, validation, test), strict=True):
        if kind and uri and (kind == "bigquery") != _is_table(uri):
            wanted = "bq://project.dataset.table" if kind == "bigquery" else "files"
            raise UserError(f"{name}={uri}: {FORMAT} is {kind}, expected {wanted}")
    if test and not validation:
        raise UserError(
            f"{URIS[2]}={test} is set, but {URIS[1]} is not: the split would be half the service's"
        )
    changes: dict[str, object] = {"source": (train,), "query": None}
    if kind and kind != "bigquery":
        changes["format"] = kind  # names of older exports have no ending
    elif _is_table(train):
        changes["format"] = "auto"
    if validation:
        changes["split"] = SplitConfig(
            by="paths", validation_source=(validation,), test_source=(test,) if test else ()
        )
    log.info(
        "managed dataset in the place of data.source%s: train %s, validation %s, test %s",
        " and data.split" if validation else "",
        train,
        validation or "by data.split",
        test or ("none" if validation else "by data.split"),
    )
    return config.model_copy(update={"data": config.data.model_copy(update=changes)})


def _is_table(uri: str) -> bool:
    return uri.startswith(("bq://", "bigquery://"))
