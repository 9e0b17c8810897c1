"""What the process imports from which tests fork others (see warm.py)."""

from trainer import process

process.prepare()

import tensorflow  # noqa: E402, F401

import trainer.evaluate  # noqa: E402
import trainer.predict  # noqa: E402
import trainer.report  # noqa: E402
import trainer.run  # noqa: E402, F401
