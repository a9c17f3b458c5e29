"""CloudEvents: `to_cloudevent` and `from_cloudevent` convert events to and from their JSON form."""

from motet.model import from_cloudevent, to_cloudevent

__all__ = ["from_cloudevent", "to_cloudevent"]
