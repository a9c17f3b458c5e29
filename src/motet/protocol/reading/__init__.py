"""Reading the logs of a broker: what a reader asks, and what it is told.

A reader is not a session: it needs no client id and no hello, and nothing it does touches routing
or delivery. Every request stands for itself, so a reader that lost its connection goes on with
another one, and a broker keeps nothing for it.

Lives here
    messages   the frames, and the names of columns

May import: `motet.model`.

Must never: need an answer before the next request makes sense, or leave a tick of a range out of
an answer without saying that it is lost.

Test only this room: `pytest tests/unit/broker/test_reading.py tests/integration/test_log_reads.py`
"""
