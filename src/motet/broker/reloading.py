"""Reading the topology again while a broker runs, when its operator asks for it."""

from __future__ import annotations

import logging
from pathlib import Path

from motet.broker.driver import BrokerDriver
from motet.broker.topology import Topology
from motet.errors import MotetError

log = logging.getLogger("motet.broker")


def reload(driver: BrokerDriver, topology: Path, name: str) -> None:
    """Apply a topology file. One that is wrong, or that cannot be applied to a running broker,
    is an error in the log and in the status, and changes nothing: the broker goes on."""
    problem = ""
    try:
        plan = Topology.load(topology)
        driver.reconfigure(plan.config(name), plan.wiring(name), plan.durability)
        driver.retain(plan.retention_of(name))
    except MotetError as error:
        problem = str(error)
        log.error("the topology is not applied: %s", problem)
    else:
        log.info("the topology of %s is applied", topology)
    driver.reloads.append(problem)
