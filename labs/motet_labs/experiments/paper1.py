"""Parameters and results of paper 1 (its section 7).

Its figures are taken from its text: "about" is the paper's.
"""

from __future__ import annotations

BROKERS = (1, 3, 5, 9)
THREADS = (1, 2, 5, 10)
CASTS = (1, 2, 5, 10)
"""Instantiations of the scenario, of four clients each."""
BASE_BROKERS = 3
TRANSACTIONS = 1000
EVENTS_PER_BURST, INSTANCES_PER_BURST = 20_000, 4
"""The number of regular events between bursts, and of instances per burst."""

BASE_MS = {"BL-WAIT": 190.0, "S-TX": 50.0, "D-TX": 570.0, "D-TX_NI": 570.0}
BASE_PER_S = {"BL-WAIT": 5.0, "S-TX": 20.0, "D-TX": 1 / 0.57, "D-TX_NI": 1 / 0.57}
STATIC_AGAINST_WAIT = 4.0
"""Throughput of S-TX relative to BL-WAIT."""
OVERLAY_GROWTH = {"BL-WAIT": 2.6, "S-TX": 1.9, "D-TX": 2.5}
"""Of latency, from 1 to 9 brokers. (For D-TX it also gives 410 and 911 ms, which are 2.2 times.)"""
OVERLAY_MS = {("D-TX", 1): 410.0, ("D-TX", 9): 911.0, ("S-TX", 9): 60.0}
THREADS_LATENCY = {"BL-WAIT": 1.5, "S-TX": 3.0, "D-TX": 4.0, "D-TX_NI": 4.0}
"""Growth of latency from 1 to 10 concurrent transactions."""
THREADS_RATE = {"BL-WAIT": 7.0, "S-TX": 3.7, "D-TX": 2.3}
"""Growth of throughput."""
CLIENTS_LATENCY = {"BL-WAIT": 1.5, "S-TX": 1.5}
"""Growth of latency from 4 to 40 clients."""
CLIENTS_RATE = {"BL-WAIT": 7.0, "S-TX": 7.0}
IMPACT = {
    "BL-WAIT": "",
    "S-TX": "no drop visible",
    "D-TX": "significant drop",
    "D-TX_NI": "significant drop",
}
