"""`python -m trainer cost JOB.yaml`: what a job or a study costs, by a dated price table. Adopters: leave.

An estimate: list prices of one region, without discounts, storage, network, registry and taxes, and for the
time that the job runs (machines are also paid for while they start).
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trainer.errors import EXIT_FAILED, UserError
from trainer.flags import Option
from trainer.jobs import command, duration, loading, runconfig
from trainer.jobs.context import region_of
from trainer.jobs.duration import Estimate
from trainer.jobs.loading import Notes
from trainer.jobs.prices import Price, Prices, load
from trainer.jobs.spec import Job, Pool

OPTIONS = {
    "hours": Option("How long the job runs; in a study, each trial.", "HOURS"),
    "measured": Option("Take the hours from this metrics.json of a run of the same config.", "FILE"),
    "metrics": Option("The same as --measured.", "FILE"),
    "steps": Option("With --measured: steps of the job; default: as its config says.", "STEPS"),
    "rows": Option("With --measured: rows of the job's train split; default: as measured.", "ROWS"),
    "speedup": Option("With --measured: how many times as fast the job's machines are; default 1.", "TIMES"),
    "budget": Option("Exit with 1 when the job costs more.", "AMOUNT"),
    "prices": Option("Your own prices, laid over trainer/jobs/tables/prices.yaml.", "FILE"),
    "config": Option("Local config file, when the job's own is on gs://.", "FILE"),
    "format": Option("text or json.", "FORMAT"),
    **command.ASSIGN,
}
_ABOUT = "Estimates what jobs cost, an hour and in all, on demand and on spot machines."


@dataclass(frozen=True)
class Bill:
    """What a job costs.

    Attributes:
        job: the job.
        pools: each pool with the price of all its machines, an hour.
        hour: all pools together, an hour.
        prices: the table.
        estimate: hours of the job or of each trial; None where they weren't given.
        trials: jobs in it: the trials of a study, else 1.
        parallel: trials at once, else 1.
    """

    job: Job
    pools: tuple[tuple[Pool, Price], ...]
    hour: Price
    prices: Prices
    estimate: Estimate | None = None
    trials: int = 1
    parallel: int = 1

    @property
    def is_spot(self) -> bool:
        """Whether the job asks for spot machines."""
        return self.job.scheduling.strategy == "SPOT"

    @property
    def each(self) -> Price | None:
        """One job or trial."""
        return self.hour.times(self.estimate.hours) if self.estimate else None

    @property
    def total(self) -> Price | None:
        """All of it."""
        return self.each.times(self.trials) if self.each else None

    @property
    def rounds(self) -> int:
        """Trials after one another when `parallel` run at once."""
        return math.ceil(self.trials / self.parallel)

    def due(self) -> float | None:
        """Returns the cost of all of it by the job's own strategy; None without hours.

        Raises:
            UserError: it asks for spot machines, and the table has no spot price for one of them.
        """
        total = self.total
        if total is None:
            return None
        if not self.is_spot:
            return total.on_demand
        if total.spot is None:
            raise UserError(
                f"{self.job.file}: no spot price of its machines in the table of {self.prices.date}; add "
                "one by --prices FILE"
            )
        return total.spot


def bill(job: Job, prices: Prices, estimate: Estimate | None = None) -> Bill:
    """Returns what a job costs.

    Args:
        job: the job.
        prices: the price table.
        estimate: its hours, or None.

    Raises:
        UserError: the table has no price for one of its machines, or a number of them is below 0.
    """
    for pool in job.active_pools:
        counts = {
            "replicaCount": pool.replicas,
            "machineSpec.acceleratorCount": pool.accelerator_count,
            "diskSpec.bootDiskSizeGb": pool.disk_gb,
        }
        for key, count in counts.items():
            if count < 0:
                raise UserError(f"{job.file}: {pool.value.path}.{key} is {count}, expected 0 or more")
    pools = tuple((pool, prices.pool(pool).times(pool.replicas)) for pool in job.active_pools)
    hour = Price(0.0, 0.0)
    for _, price in pools:
        hour += price
    study = job.study
    trials = max(1, study.max_trials or 1) if study else 1
    parallel = min(trials, max(1, (study.parallel_trials or 1) if study else 1))
    return Bill(job, pools, hour, prices, estimate, trials, parallel)


def main(argv: Sequence[str]) -> int:
    """Prints what job files cost; returns 1 when one is above the budget."""
    given = command.parse(
        argv, OPTIONS, "cost", _ABOUT, "configs/jobs/multi_worker.yaml --hours=2 --budget=50"
    )
    form = given.choice("format", ("text", "json"))
    prices = load(given.get("prices"))
    budget = given.number("budget")
    above = False
    reports: list[dict[str, Any]] = []
    for file in given.files:
        job = loading.load(file, given.all("set"))
        found = bill(job, prices, _hours(job, given))
        due = found.due()
        if budget is not None and due is None:
            raise UserError("--budget needs the hours: give --hours, or --measured with a metrics.json")
        over = budget is not None and due is not None and due > budget
        above = above or over
        if form == "json":
            reports.append({**as_json(found), "budget": budget, "above_budget": over})
        else:
            print("\n".join(as_text(found)))
            if budget is not None and due is not None:
                verdict = "ABOVE" if over else "within"
                print(f"  {verdict} the budget of {_amount(budget)} {prices.currency}: {_amount(due)}")
    if form == "json":
        print(json.dumps(reports if len(reports) > 1 else reports[0], indent=2))
    return EXIT_FAILED if above else 0


def _hours(job: Job, given: command.Command) -> Estimate | None:
    hours, measured = given.number("hours"), given.get("measured") or given.get("metrics")
    if hours is not None and measured is not None:
        raise UserError("--hours and --measured exclude each other: give one")
    if hours is not None:
        return Estimate(hours, f"--hours={hours:g}")
    extra = [name for name in ("steps", "rows", "speedup") if given.get(name) is not None]
    if measured is None:
        if extra:
            raise UserError(f"--{extra[0]} only counts with --measured FILE")
        return None
    config = runconfig.read(job, Notes(job.file), given.get("config")).config
    return duration.from_metrics(
        measured,
        config,
        steps=given.number("steps"),
        rows=given.number("rows"),
        speedup=given.number("speedup") or 1.0,
    )


# --- writing ----------------------------------------------------------------------------------------


def _amount(value: float | None) -> str:
    if value is None:
        return "no price"
    if value >= 1 or value == 0:
        return f"{value:,.2f}"
    # Below the unit four digits that count: no amount is rounded to nothing, and none to the next unit.
    digits = 3 - math.floor(math.log10(value))
    return f"{value:.{digits}f}"


def _machine(pool: Pool) -> str:
    if pool.tpu_topology:
        return f"{pool.machine_type} {pool.tpu_topology}"
    more = f" + {pool.accelerator_count} {pool.accelerator_type}" if pool.accelerator_type else ""
    return f"{pool.machine_type}{more}"


def as_text(found: Bill) -> list[str]:
    """Returns a bill as lines."""
    job, prices = found.job, found.prices
    rows = [("pool", "machines", "on demand/h", "spot/h", "prices")]
    for pool, price in found.pools:
        name = f"{pool.index} {pool.role}"
        what = f"{pool.replicas} x {_machine(pool)}, {pool.disk_gb} GB {pool.disk_type}"
        rows.append((name, what, _amount(price.on_demand), _amount(price.spot), price.source))
    rows.append(("all", "", _amount(found.hour.on_demand), _amount(found.hour.spot), found.hour.source))
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    lines = [
        f"{job.file}: an estimate in {prices.currency}, by list prices of {prices.region} of {prices.date}"
        + (f" and {prices.file}" if prices.file else "")
    ]
    for row in rows:
        name, what, hour, spot, source = row
        lines.append(
            f"  {name:<{widths[0]}}  {what:<{widths[1]}}  {hour:>{widths[2]}}  {spot:>{widths[3]}}  {source}"
        )
    lines += [f"  {line}" for line in _totals(found)]
    lines += [f"  {line}" for line in _remarks(found)]
    return lines


def _totals(found: Bill) -> list[str]:
    each, total = found.each, found.total
    if found.estimate is None or each is None or total is None:
        return ["what it costs in all: give --hours, or --measured with the metrics.json of a run"]
    hours, at_once = found.estimate.hours, found.hour.times(found.parallel)
    both = lambda price: f"{_amount(price.on_demand)} on demand, {_amount(price.spot)} on spot machines"  # noqa: E731
    own = " (its own strategy is SPOT)" if found.is_spot else ""
    if found.job.study is None:
        return [f"job: {hours:.3g} h: {both(total)}{own}", f"hours from {found.estimate.how}"]
    return [
        f"trial: {hours:.3g} h: {both(each)}",
        f"study: {found.trials} trials are {found.trials * hours:.3g} machine hours: {both(total)}{own}",
        f"  {found.parallel} at once: done in {found.rounds * hours:.3g} h, at {_amount(at_once.on_demand)} "
        f"an hour; one after another: {found.trials * hours:.3g} h, "
        f"at {_amount(found.hour.on_demand)} an hour",
        f"hours from {found.estimate.how}",
    ]


def _remarks(found: Bill) -> list[str]:
    job, region = found.job, region_of(found.job)
    lines = ["without discounts, storage, network, registry, taxes, and the minutes in which machines start"]
    if region != found.prices.region:
        lines.append(f"the job runs in {region}, whose prices differ: give them by --prices FILE")
    if job.persistent_resource:
        lines.append(f"persistent resource {job.persistent_resource}: its machines cost as long as it exists")
    if job.scheduling.strategy == "FLEX_START":
        lines.append("FLEX_START has prices of its own, which the table doesn't hold: on demand is the most")
    if found.hour.source == "recalled":
        lines.append("some prices were remembered and not looked up: see trainer/jobs/tables/prices.yaml")
    return lines


def as_json(found: Bill) -> dict[str, Any]:
    """Returns a bill as plain values: prices an hour, and amounts where the hours are known."""

    def pair(price: Price | None) -> dict[str, float | None] | None:
        if price is None:
            return None
        spot = None if price.spot is None else round(price.spot, 6)
        return {"on_demand": round(price.on_demand, 6), "spot": spot}

    return {
        "file": found.job.file,
        "estimate": True,
        "currency": found.prices.currency,
        "prices_of": found.prices.date,
        "prices_region": found.prices.region,
        "strategy": found.job.scheduling.strategy,
        "pools": [
            {
                "pool": pool.index,
                "role": pool.role,
                "machine": _machine(pool),
                "replicas": pool.replicas,
                "hour": pair(price),
                "source": price.source,
            }
            for pool, price in found.pools
        ],
        "hour": pair(found.hour),
        "hours": found.estimate.hours if found.estimate else None,
        "trials": found.trials,
        "parallel_trials": found.parallel,
        "hours_parallel": found.rounds * found.estimate.hours if found.estimate else None,
        "hours_serial": found.trials * found.estimate.hours if found.estimate else None,
        "each": pair(found.each),
        "total": pair(found.total),
        "due": found.due(),
    }
