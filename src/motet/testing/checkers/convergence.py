"""After quiet nothing of any transaction is left at any broker: no operation that is not decided,
no subscription that has ended, no decision that is not settled, and nobody who waits. Outcomes
stay, and so does what the log of a pubend has."""

from __future__ import annotations

from collections.abc import Mapping

from motet.broker.core import BrokerCore
from motet.testing.checkers.verdict import Verdict

KEPT = ("locals", "coordinations", "asked", "reads", "bases", "floods", "active", "staged")
KEPT_BESIDES = ("blocks", "queue", "questions", "opened")


def check(cores: Mapping[str, BrokerCore]) -> Verdict:
    verdict = Verdict("convergence")
    for name, core in cores.items():
        durable = core.durable
        if not durable.transactions.root:
            continue
        for kind in (*KEPT, *KEPT_BESIDES):
            left = getattr(durable.transactions.state, kind)
            verdict.expect(not left, "{} still has {}: {}", name, kind, left)
        state = durable.routing.state
        for table in (state.advertisements, state.subscriptions):
            for entry in table:
                verdict.expect(not entry.tx, "{} at {} is undecided", entry.id, name)
                verdict.expect(not entry.ended, "{} at {} has ended, but stays", entry.id, name)
        verdict.expect(not state.tentative, "{} waits for cuts: {}", name, state.tentative)
        verdict.expect(not state.ghosts, "{} remembers {}", name, state.ghosts)
        verdict.expect(not state.watched, "{} remembers for nobody", name)
        known = state.subscriptions
        for op in state.ends:
            verdict.expect(op in known, "{} knows where {} ended, which is gone", name, op)
    return verdict
