"""Sessions: the identity of a client, its epoch, and its requests.

Lives here: the frames between client and broker, durable sessions, their leases and deadlines.
May import: `motet.model`, `motet.errors`, and the routing messages it makes of requests.
Must never: look at connections; a session is the same one over any connection.
Admission is soft: it decides which clients may open a session here or move here. It turns away no
client that has a session here, except by the operator's rule.
Owns: an epoch is never issued twice, and is newer than all epochs its broker knew; a request
takes effect once, even if it is sent repeatedly; an ended session leaves no state behind.
Test this room: `pytest tests/unit/session`
"""
