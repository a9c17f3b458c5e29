"""After quiet no broker keeps anything of a transaction: no undecided operation, no ended
subscription, no unsettled decision, no wait. Outcomes stay, and so do the records of pubends."""

from __future__ import annotations

from collections.abc import Mapping

from motet.testing.checkers.result import BrokerState, CheckResult

KEPT = ("locals", "coordinations", "asked", "reads", "bases", "floods", "active", "staged")
KEPT_BESIDES = ("blocks", "queue", "questions", "opened", "held")


def check(cores: Mapping[str, BrokerState]) -> CheckResult:
    verdict = CheckResult("convergence")
    for name, core in cores.items():
        durable = core.durable
        if not durable.transactions.root:
            continue
        image = durable.transactions.image()
        for kind in (*KEPT, *KEPT_BESIDES):
            left = getattr(image, kind)
            verdict.expect(not left, "{} still has {}: {}", name, kind, left)
        state, starts, marks = durable.routing.state, durable.routing.starts, durable.marks
        for table in (state.advertisements, state.subscriptions):
            for entry in table:
                verdict.expect(not entry.tx, "{} at {} is undecided", entry.id, name)
                verdict.expect(
                    not entry.ended, "{} at {} has ended, but was not removed", entry.id, name
                )
        verdict.expect(not starts.tentative, "{} waits for cuts: {}", name, starts.tentative)
        verdict.expect(not marks.ghosts, "{} still keeps the ghosts {}", name, marks.ghosts)
        verdict.expect(
            not marks.watched, "{} keeps ghosts without an open isolated transaction", name
        )
        known = state.subscriptions
        for op in starts.ends:
            verdict.expect(
                op in known, "{} still knows where {} ended, although it was removed", name, op
            )
    return verdict
