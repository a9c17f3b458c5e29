"""The plugin's fixtures, also where Motet is on the path but not installed."""

from __future__ import annotations

from motet.testing.fixture import motet_overlay as motet_overlay
from motet.testing.fixture import motet_simulation as motet_simulation
