"""The labs: programs that measure Motet and show what it does. No application imports them.

What lives here
    bench         benchmarks: figures beside their floors and goals (`motet bench`)
    experiments   the evaluations of the papers, repeated on Motet (`motet experiment`)
    demo          a workflow, five brokers and Spark (`motet demo`)
    figures       `Figure`, the shape of every result; rounds; the machine it was measured on
    processes     brokers under test and their temporary folders; workers that generate load

May import: `motet.errors`, `motet.matching`, `motet.runtime`, `motet.fleet`; the rooms below have
their own cards.

Must never: be imported by a room that applications use; leave a process behind.

Test this room: `pytest tests/unit/labs tests/integration/test_benchmarks.py`
"""
