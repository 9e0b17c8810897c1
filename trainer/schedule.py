"""The learning rate over the steps of a run: warm-up, then a shape. Adopters: add shapes here."""

from __future__ import annotations

import math

import tensorflow as tf

from trainer.config import ScheduleConfig


def schedule_factor(schedule: ScheduleConfig, step: tf.Tensor, total_steps: int) -> tf.Tensor:
    """Returns the share (0 to 1) of the peak learning rate that step `step` uses.

    Step 0 of a warm-up of n steps uses 1/n and step n-1 uses 1. After it the shape runs from 1 to
    `final_fraction` (f), with p the share of the remaining steps that is done: linear 1-(1-f)p, cosine
    f+(1-f)(1+cos(pi p))/2 (Loshchilov & Hutter 2017, without restarts), exponential f^p.

    Args:
        schedule: The `training.schedule` section.
        step: Steps done so far, an integer scalar.
        total_steps: Steps of the whole run.

    Returns:
        A float32 scalar.
    """
    step = tf.cast(step, tf.float32)
    warmup = float(schedule.warmup_steps)
    progress = tf.clip_by_value((step - warmup) / max(1.0, total_steps - warmup), 0.0, 1.0)
    final = schedule.final_fraction
    if schedule.name == "cosine":
        factor = final + (1.0 - final) * 0.5 * (1.0 + tf.cos(math.pi * progress))
    elif schedule.name == "linear":
        factor = 1.0 - (1.0 - final) * progress
    elif schedule.name == "exponential":
        factor = tf.exp(math.log(final) * progress)
    else:
        factor = tf.ones_like(progress)
    if warmup:
        factor *= tf.minimum((step + 1.0) / warmup, 1.0)
    return factor
