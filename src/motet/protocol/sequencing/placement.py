"""At which site a topic lives. Sites and clients use the same rule: the topic's own name decides,
else the longest prefix that it has, else it lives at the site for all others."""

from __future__ import annotations

from collections.abc import Iterable

ANY = "*"
"""At the end of a name: all topics that begin with it."""


def site_of(topic: str, placement: Iterable[tuple[str, str]], elsewhere: str) -> str:
    found, longest = elsewhere, -1
    for name, site in placement:
        if name == topic:
            return site
        prefix = name[:-1]
        if name.endswith(ANY) and len(prefix) > longest and topic.startswith(prefix):
            found, longest = site, len(prefix)
    return found
