"""The demo: a workflow log flows through five brokers while its cases change hands, a broker is
killed, and Spark reads, archives, looks at and judges all of it.

Lives here
    overlay     five broker processes on free ports, started by `motet up` as anybody would
    script      what is to be published, known beforehand, and the lots that change hands; pure
    cast        the clients: handlers, watchers, and those who listen to transactions
    handing     hand-overs in transactions, round after round
    pipeline    what Spark does, in one session
    story       the acts
    flow        the longest of them: events flow, and a broker dies
    waiting     for what must come true
    chronicle   what happened when
    outcome     what was asked for, and all that it came to
    comparing   what came, compared with what was to be published; pure
    judging     all promises of a story
    promises    a promise, and tables of them; pure
    pictures, layout, page, report   what is left of it: pictures, report.html, report.json

May import: `motet.client`, `motet.spark`, `motet.audit`, `motet.pictures`, `motet.model`,
`motet.errors`, `motet.broker.topology`, `motet.runtime`, and `motet.bench.figures`, which describes
the machine.

Must never: sleep and hope. It polls for what must come true, with a deadline, and a promise
that is not kept ends it with exit status 1.

Invariants owned here
    - What is counted does not come from what is judged: events are known from the log before
      anything is published, and compared with what came, attributes included.
    - A promise with no count against it is none: a story without promises was not kept.

Test only this room:
`pytest tests/unit/demo tests/integration/test_demo.py tests/spark/test_demo.py`
"""
