"""Seeds that once found a bug. Each was fixed; each stays here with a line on what it was.

A seed means another run when the workload changes. That is why these bugs also live on as
mutations, which a checker must find again. Two do not: `delivery` 700181 was a fault of the
simulator itself and is tested in `test_outdated_processes.py`; `transactions` 700348 is tested by
the scenario `started-again.txt`.
"""

from __future__ import annotations

import pytest

from motet.testing.simulation import simulate

PINNED = [
    # A link that still looked up, because nobody had noticed that its connection was dead, was
    # not resumed when the neighbour said hello on a new one: control was numbered wrongly from
    # then on ("acknowledged what was never sent"), or a new incarnation was refused for ever.
    ("lossy", 3),
    ("crash", 5),
    ("mixed", 4),
    # A publication that was refused, and whose refusal was lost with the connection, was told to
    # the resuming client as accepted.
    ("clients", 0),
    ("clients", 31),
    # An unadvertisement that had waited long for acknowledgements blamed a broker that then had
    # next to no time left to answer.
    ("delivery", 341),
    # The hello of a connection that was given up long ago came late, and looked like one of a
    # neighbour that runs on an old copy of its state.
    ("delivery", 74),
    # Who was away when an advertisement went took the silence that its log had forgotten since
    # for loss.
    ("delivery", 253),
    # A broker on the way that had lost its state was believed to want nothing before the
    # subscriptions behind it had come back: events were acknowledged, and gone.
    ("delivery", 147),
    ("delivery", 427),
    # An event was refused, a later one was logged, and the broker died before it had told either:
    # after the restart the refused one was told to be published.
    ("delivery", 420),
    ("delivery", 846),
    # A start that only the stream had shown to a client in total order, and that its advertisement
    # had taken with it, kept everybody's acknowledgements back for ever.
    ("delivery", 2219),
    # Two questions about the past each took the other's cut answers for its own and asked again.
    ("delivery", 96),
    # A position that nothing was owed any more asked for what the log had forgotten meanwhile.
    ("delivery", 335),
    # A subscription reached back behind what its client had read before, and never got on.
    ("delivery", 411),
    # A pubend went on telling starts that had gone with their advertisement.
    ("delivery", 1029),
    # A start was on its way back when a broker lost its state: the subscription started anew, above
    # what had been published since.
    ("delivery", 465),
    # What a process had received, and was not done with, counted as done when it came back over a
    # new connection; then it ended, and the next process did not get it.
    ("delivery", 1625),
    # While a subscription was lost on the way, its pubend said that it had told all starts.
    ("delivery", 1271),
    # A start that followed the end of the one before in the same frame was ended with it.
    ("delivery", 1444),
    # Of a subscription that reached into the past, whose advertiser left before it was given
    # anything, nobody said that the past was gone.
    ("transactions", 298),
    ("transactions", 1504),
    # An advertisement was called effective before its own pubend had cut for a subscription that
    # was committed meanwhile: events in between missed it.
    ("transactions", 415),
    # A pubend waited with its cut, and with all after it, for a subscription that had begun and
    # ended while the overlay was apart.
    ("transactions", 1866),
    # The root lost its state behind a commit, and then aborted what others had cut for.
    ("transactions", 1867),
    # The simulator's own fault: a process of a durable client noticed only with the probes that its
    # application had begun a newer one, and ended, while checkers took it for a receiver.
    ("delivery", 700181),
    # A mate waited for the acknowledgement of a client of its head that had left, and kept the
    # pubend's log from being done with anything.
    ("cells", 700282),
    # A log dropped ticks because of a fact that was not durable; the crash took the fact, and a
    # client that came back was told that the ticks were lost.
    ("cells", 700114),
    # A start that crossed the removal of its subscription counted, and not the next one: ticks in
    # between, which nobody was owed and the log had dropped, were reported as lost.
    ("transactions", 700348),
    # The root cut before anybody else had its decision, lost its disk, and had it aborted then.
    ("transactions", 700263),
    # A client ended in its own transaction what a plan had ended just before: the second end was
    # committed, and an event before it was never delivered.
    ("transactions", 607124419),
    # The recorder's own fault: a client that had stopped reading published what a plan had
    # advertised for it, and left.
    ("transactions", 228493116),
    # An echo that was sent before its subscription was withdrawn, and came again, counted as the
    # echo of the probe behind it.
    ("crash", 337462025),
    # The start of a subscription in total order was lost with a broker on the way; the subscription
    # started anew, above events that were published meanwhile.
    ("delivery", 914473912),
    ("cells", 327906625),
    # A cut settled a transaction, whose end let in an advertisement: the starts behind the cut were
    # logged and told before it.
    ("transactions", 514243726),
    # An advertisement was over before its pubend had a tick, and looked as if a broker on the way
    # had lost it: merges in total order waited for its start for good.
    ("transactions", 530570578),
    # A client that was about to be told that a past is lost reached back into it with another
    # subscription, and never got on.
    ("cells", 106),
    # A broker had echoed a probe, and did not answer the inquiry that followed: it was blamed.
    ("mixed", 718),
    # The checker's own fault: a subscription was handed over long before the first client read of
    # the decision, and an advertisement in between had not attracted the new side yet.
    ("transactions", 673),
    # The recorder's own fault: a broker carried out a client's part of a plan in a session that was
    # outdone elsewhere, but the part was taken for one of the newer session.
    ("transactions", 593),
    # The recorder's own fault: a start that crossed the withdrawal of its subscription counted for
    # good if no second one followed, because nobody advertised there any more.
    ("transactions", 684),
    # A checker's own fault: a client subscribed again before a log had cut for the end of its first
    # subscription, and got what came before the cut for both.
    ("transactions", 609),
    # A checker's own fault: a stream was handed over to a subscription that an advertisement had
    # attracted which was over; it was withdrawn, and attracted by one that was not effective yet.
    ("transactions", 876),
    # A client followed its session, which was always a move ahead, until its lease had ended.
    ("moves", 740000103),
    ("mobility", 742000457),
    # The loss of events that a log had dropped waited in a merge, its client moved on, and got them
    # out of order, because the log's broker still remembered them.
    ("moves", 743000005),
    # Events that had waited behind a move were given for a subscription that was removed meanwhile.
    ("moves", 743000026),
    # A client reconnected while it had to wait at its new broker, asked for its next move again,
    # and was never answered.
    ("mobility", 746000147),
    # A checker's own fault: a move was refused because an unadvertisement waited for a client that
    # was away.
    ("moves", 740000114),
    # A checker's own fault: a former broker had failed a request and named the one that its client
    # moved to.
    ("mobility", 741000097),
    # A checker's own fault: a client moved, was welcomed and left before events that followed it.
    ("moves", 744000061),
    # A checker's own fault: a session was on its way over a link that was given up.
    ("mobility", 746000187),
    # Several clients were behind, and memory was small: a log read each range again for each piece
    # of any other, thousands of times before the next acknowledgement came.
    ("mobility", 946),
    # A plan ended an advertisement while publications, sent before, waited for their client's move;
    # the move was refused, and so were they.
    ("mobility", 154430170),
    # The recorder's own fault: a plan was carried out and decided in one step of the root, in a
    # session that was outdone elsewhere, and its part was taken for one of the newer session.
    ("mobility", 468254868),
    # A checker's own fault: a clock jumped where a session waited for its client, which asked for
    # the next move only then.
    ("mobility", 929479402),
    # Publications waited for a client's move, a plan ended their advertisement, and at the target
    # only an advertisement that nobody knew yet let them in.
    ("mobility", 577740196),
    # A crash came between the facts that begin the session of a hosted client and its hosting: no
    # broker ever ran it again.
    ("mobility", 188954404),
    # The simulator's own fault: a session left a broker and came back, and the twin of the log
    # forgot after a restart what it had published since.
    ("mobility", 70097104),
    # A container left while a copy was on its way to the broker, which blamed the copy.
    ("mobility", 96577483),
    # A checker's own fault: the links to the log with a publisher's earlier events were given up,
    # and came back.
    ("mobility", 717360528),
    # A checker's own fault: when one client arrived, the log was done with an advertisement that
    # another one had taken back, and this was told beside the path.
    ("mobility", 343065121),
    # The target of a move had restarted, and its client came before any news of its session: it was
    # given a new one.
    ("mobility", 758817561),
    # The recorder's own fault: a root without neighbours decided and settled a plan in one step,
    # and a part of it was taken for one of a newer session elsewhere.
    ("mobility", 32293591),
    # A part of a plan went to and fro between two former brokers of its client for good: each took
    # the other one for the client's broker, because neither had been told of later moves.
    ("mobility", 767461384),
    # The root lost its state, and was told a decision that others had settled: they cut again.
    ("mobility", 148440516),
    # A publisher that had moved advertised anew. A subscriber had started there for another one's
    # advertisement, above the record that names the publisher's earlier events.
    ("mobility", 321904641),
    # A checker's own fault: an answer and the decision of a move left a slow disk together.
    ("mobility", 474559858),
    # A client was fenced while connected, and its next session arrived at once: what it was owed
    # was placed as if the client was still there, from its newest start on.
    ("mobility", 724080417),
    # A client that had moved passed what it had doubts about, below the floor, and its broker died:
    # the log had let go of it, and the client was told of a loss.
    ("mobility", 605),
    # A root broke where a cut was due while it was told of a new neighbour.
    ("mobility", 285833197),
]


@pytest.mark.parametrize(("profile", "seed"), PINNED)
def test_pinned_seeds_show_no_violation(profile: str, seed: int) -> None:
    result = simulate(seed, profile)
    assert not result.violations, "\n".join(result.complaints())
