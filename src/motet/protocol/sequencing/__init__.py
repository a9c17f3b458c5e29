"""Sequencing: sites give the events of topics numbers, so that all subscribers can order them.

Lives here: the messages between clients and sites, and between the sites of a line; the machine of
a site. Pure: it may import errors, model and protocol, and it must never read a clock or a socket.
It does not know event services, nor what the events contain.

Test it with: pytest tests/unit/sequencing
"""
