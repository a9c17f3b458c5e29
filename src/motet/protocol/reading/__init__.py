"""Reading the logs of a broker: the requests of readers, and their answers.

A reader is not a session: it needs no client id and no hello, and does not affect routing or
delivery. Requests are independent of each other, so a reader that lost its connection continues on
another one, and a broker keeps no state for it.

Lives here
    messages   the frames, and the names of columns

May import: `motet.model`.

Must never: make a request depend on the answer to an earlier one, or omit a tick of a range from an
answer without reporting it as lost.

Test only this room: `pytest tests/unit/broker/test_reading.py tests/integration/test_log_reads.py`
"""
