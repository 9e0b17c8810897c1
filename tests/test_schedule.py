"""The shapes of the learning rate, at steps whose value can be worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from trainer.config import ScheduleConfig
from trainer.schedule import schedule_factor


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ({"name": "constant"}, {0: 1, 99: 1, 150: 1}),
        ({"name": "constant", "warmup_steps": 10}, {0: 0.1, 4: 0.5, 9: 1, 10: 1, 99: 1}),
        ({"name": "linear", "final_fraction": 0.2}, {0: 1, 50: 0.6, 100: 0.2, 150: 0.2}),
        ({"name": "cosine"}, {0: 1, 25: 0.85355, 50: 0.5, 100: 0}),
        (
            {"name": "cosine", "warmup_steps": 20, "final_fraction": 0.5},
            {0: 0.05, 19: 1, 20: 1, 60: 0.75, 100: 0.5},
        ),
        ({"name": "exponential", "final_fraction": 0.01}, {0: 1, 50: 0.1, 100: 0.01}),
    ],
)
def test_schedules(schedule: dict[str, Any], expected: dict[int, float]) -> None:
    config = ScheduleConfig.model_validate(schedule)
    for step, factor in expected.items():
        got = schedule_factor(config, tf.constant(step, tf.int64), total_steps=100)
        assert float(got) == pytest.approx(factor, rel=1e-4, abs=1e-7)
