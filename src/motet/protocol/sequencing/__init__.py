"""Sequencing: sites give the events of topics numbers, so that all subscribers can order them.

Lives here: the messages between clients and sites, and between the sites of a line; the facts, the
groups and the machine of a site. Pure: it may import errors and protocol, and it must never read a
clock or a socket. It does not know event services, nor what the events contain.
Owns: all sites agree on the order of the requests that they have in common, and a timestamp names
everything that must come before its event.

Test this room: `pytest tests/unit/sequencing`
"""
