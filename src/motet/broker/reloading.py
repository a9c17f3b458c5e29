"""Reading the topology again while a broker runs, when its operator asks for it."""

from __future__ import annotations

import logging
from pathlib import Path

from motet.broker.driver import BrokerDriver
from motet.broker.topology import Topology
from motet.errors import MisuseError, MotetError

log = logging.getLogger("motet.broker")


def reload(driver: BrokerDriver, topology: Path, name: str) -> None:
    """Apply a topology file. One that is wrong, or that cannot be applied to a running broker,
    is an error in the log and in the status, and changes nothing: the broker goes on."""
    problem = ""
    try:
        plan = Topology.load(topology)
        kept = driver.status()["journal"]["durability"]
        if plan.durability != kept:
            raise MisuseError(
                f"the durability of {name} is {kept!r} and cannot become {plan.durability!r} while "
                "it runs; stop it and start it again"
            )
        driver.reconfigure(plan.config(name), plan.wiring(name))
    except MotetError as error:
        problem = str(error)
        log.error("the topology is not applied: %s", problem)
    else:
        log.info("the topology of %s is applied", topology)
    driver.reloads.append(problem)
