"""Topology files: the brokers of an overlay and their links.

Lives here
    topology         a topology, checked to be one tree, and each broker's configuration from it
    topology_file    its schema, checked with pydantic

May import: `motet.broker.core`, `motet.broker.folder.retention` and
`motet.runtime` and everything below.

Must never: start, stop or query a broker.

Invariants owned here
    - An accepted topology is one tree, and every broker in it can be configured.

Test only this room: `pytest tests/unit/runtime/test_topology.py`
"""
