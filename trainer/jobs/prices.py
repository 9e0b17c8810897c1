"""The price table, and what a pool costs an hour by it. Adopters: leave; update tables/prices.yaml."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainer.errors import UserError
from trainer.jobs import document, hardware, tables
from trainer.jobs.spec import Pool

_SURENESS = ("listed", "yours", "derived", "recalled")  # the surest first


@dataclass(frozen=True)
class Price:
    """Prices of one thing, an hour.

    Attributes:
        on_demand: price of the ordinary kind.
        spot: price of the spot kind, or None where the table has none.
        source: listed, derived or recalled (see prices.yaml), or yours.
    """

    on_demand: float
    spot: float | None
    source: str = "listed"

    def __add__(self, other: Price) -> Price:
        """Returns the sum: without spot price if a part has none, and as sure as the least sure part."""
        spot = None if self.spot is None or other.spot is None else self.spot + other.spot
        return Price(self.on_demand + other.on_demand, spot, max(self.source, other.source, key=_doubt))

    def times(self, count: float) -> Price:
        """Returns the price of several."""
        return Price(self.on_demand * count, None if self.spot is None else self.spot * count, self.source)


def _doubt(source: str) -> int:
    return _SURENESS.index(source) if source in _SURENESS else 0


@dataclass(frozen=True)
class Prices:
    """A price table.

    Attributes:
        table: its content.
        file: where one's own prices are from, or "".
    """

    table: Mapping[str, Any]
    file: str = ""

    @property
    def date(self) -> str:
        """When its prices were true."""
        return str(self.table["date"])

    @property
    def currency(self) -> str:
        """Its currency."""
        return str(self.table["currency"])

    @property
    def region(self) -> str:
        """The region whose prices it holds."""
        return str(self.table["region"])

    def pool(self, pool: Pool) -> Price:
        """Returns what one machine of a pool costs an hour: machine, accelerators and boot disk.

        Raises:
            UserError: the table has no price for a part of it.
        """
        return self.machine(pool) + self.accelerators(pool) + self.disk(pool)

    def machine(self, pool: Pool) -> Price:
        """Returns the price of a pool's machine without accelerators; TPU VMs come with their chips."""
        fee = float(self.table["fee"])
        hosts = max(1, hardware.tpu_hosts(pool))
        row = self.table["machines"].get(pool.machine_type)
        if row is not None:
            return _price(row, fee * hosts)
        machine = hardware.machines().get(pool.machine_type)
        if pool.machine_type == "cloud-tpu":
            return Price(0.0, 0.0)  # the price of its cores has its host in it
        row = self.table["families"].get(machine.family) if machine else None
        if machine is None or row is None:
            raise self._unknown("machines", pool.machine_type)
        hour = machine.vcpus * row["vcpu"] + machine.memory * row["memory"]
        spot = None
        if "spot_vcpu" in row and "spot_memory" in row:
            spot = machine.vcpus * row["spot_vcpu"] + machine.memory * row["spot_memory"]
        return _price({"hour": hour, "spot": spot, "source": row.get("source", "yours")}, fee)

    def accelerators(self, pool: Pool) -> Price:
        """Returns the price of the accelerators of one machine of a pool."""
        if not pool.accelerator_type:
            return Price(0.0, 0.0)
        row = self.table["accelerators"].get(pool.accelerator_type)
        if row is None:
            raise self._unknown("accelerators", pool.accelerator_type)
        each = 8 if pool.accelerator_type.startswith("TPU") else 1  # TPU cores are priced by eight
        return _price(row).times(pool.accelerator_count / each)

    def disk(self, pool: Pool) -> Price:
        """Returns the price of the boot disk of one machine of a pool; it is the same for spot machines."""
        row = self.table["disks"].get(pool.disk_type)
        if row is None:
            raise self._unknown("disks", pool.disk_type)
        return _price({"spot": row["hour"], **row}).times(pool.disk_gb * max(1, hardware.tpu_hosts(pool)))

    def _unknown(self, kind: str, name: str) -> UserError:
        return UserError(
            f"no price of {name!r} in the table of {self.date}: write it in a YAML file, "
            f"`{kind}: {{{name}: {{hour: 1.0, spot: 0.4}}}}`, and name that by --prices FILE"
        )


def _price(row: Mapping[str, Any], factor: float = 1.0) -> Price:
    spot = row.get("spot")
    return Price(row["hour"] * factor, None if spot is None else spot * factor, row.get("source", "yours"))


def load(file: str | None = None) -> Prices:
    """Returns the price table, with one's own laid over it key by key.

    Args:
        file: YAML file of the same form as tables/prices.yaml with what differs; None for none.

    Raises:
        UserError: the file can't be read, or isn't of that form.
    """
    table = tables.load("prices")
    if file is None:
        return Prices(table)
    try:
        with open(file, encoding="utf-8") as stream:
            own = document.parse(stream.read(), file).plain or {}
    except OSError as error:
        raise UserError(f"--prices: {file} can't be read: {error.strerror or error}") from error
    _check(own, table, file)
    return Prices(_over(table, own), file)


def _over(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(under)
    for key, value in over.items():
        if isinstance(value, dict) and "hour" not in value and isinstance(result.get(key), dict):
            result[key] = _over(result[key], value)
        else:
            result[key] = value
    return result


def _check(own: Any, table: Mapping[str, Any], file: str) -> None:
    if not isinstance(own, dict):
        raise UserError(f"{file}: expected keys such as machines:, accelerators: and disks:")
    for section, rows in own.items():
        if section not in table:
            raise UserError(f"{file}: unknown key {section!r}, expected one of {', '.join(table)}")
        if not isinstance(table[section], dict):
            if section == "fee" and not (isinstance(rows, (int, float)) and rows > 0):
                raise UserError(f"{file}: fee: got {rows!r}, expected a factor such as 1.15")
            continue
        if not isinstance(rows, dict):
            raise UserError(f"{file}: {section}: expected names with their prices")
        wanted = ("vcpu", "memory") if section == "families" else ("hour",)
        for name, row in rows.items():
            numbers = row if isinstance(row, dict) else {}
            known = table[section].get(name, {})
            for key in wanted:
                if key not in numbers and not (section == "families" and key in known):
                    raise UserError(f"{file}: {section}.{name}: expected {key}: a price an hour")
            for key, value in numbers.items():
                if key != "source" and not (isinstance(value, (int, float)) and value >= 0):
                    raise UserError(
                        f"{file}: {section}.{name}.{key}: got {value!r}, expected a price an hour"
                    )
