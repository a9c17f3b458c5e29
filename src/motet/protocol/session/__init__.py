"""Sessions: who a client is, which epoch it lives in, what it has asked for.

Lives here: the frames between client and broker, durable sessions, their leases and deadlines.
May import: `motet.model`, `motet.errors`, and the routing messages it makes of requests.
Must never: look at connections; a session is the same one whatever connection carries it.
Owns: an epoch is never issued twice, and is newer than all that its broker knew of; a request
takes effect once, however often it is sent; a session that ended leaves nothing behind.
Test this room: `pytest tests/unit/session`
"""
