"""The demo: a workflow log flows through five brokers while its cases change hands, a broker is
killed, and Spark reads, archives, analyses and judges all of it.

Lives here
    overlay     five broker processes on free ports, supervised as by `motet up`; polling for
                conditions
    script      the expected events, known beforehand, and the lots that change hands; pure
    clients     handlers, watchers, listeners to transactions; hand-overs in transactions
    pipeline    the work of Spark, in one session
    story       the acts and their results
    promises    all promises of a story: received events compared with the expected ones
    report      the output: pictures, report.html, report.json

May import: `motet.client`, `motet.spark`, `motet.audit`, `motet.pictures`, `motet.model`,
`motet.errors`, `motet.broker.overlay.topology`, `motet.fleet`, `motet.runtime`, and
`motet_labs.figures`, which describes the machine.

Must never: rely on fixed sleeps. It polls for conditions, with a deadline, and a broken promise
ends it with exit status 1.

Invariants owned here
    - Expected counts are independent of what is judged: events are known from the log before
      anything is published, and compared with those received, attributes included.
    - A promise without a count is not a promise, and a story without promises was not kept.

Test only this room:
`pytest tests/unit/labs/demo tests/integration/test_demo.py tests/spark/test_demo.py`
"""
