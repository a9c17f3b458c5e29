"""Hosted clients: application code that runs in a broker's container, with state that moves along.

    class Counter(motet.hosted.Hosted):
        async def start(self, context, state):
            self.context, self.seen = context, int(state or b"0")
            await context.subscribe("step > 1")

        async def on_event(self, event):
            self.seen += 1

        def state(self):
            return str(self.seen).encode()

Lives here
    application  what applications derive from, and what they may call
    session      the session of a running copy: its inbox, and its progress
    execution    one run of a copy: events, checkpoints, its end
    container    all copies of one broker: started and stopped as the broker says
    classes      classes by name

May import: the client, and of brokers only topology files.

Must never: run two copies of one client.

Test only this room: `pytest tests/unit/hosted`
"""

from motet.hosted.application import Context, Hosted

__all__ = ["Context", "Hosted"]
