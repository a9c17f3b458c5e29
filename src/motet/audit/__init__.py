"""Audit: what happened, written down, so that every guarantee can be judged afterwards.

    motet up --history DIR                    brokers and clients write what they do and get
    motet pipeline audit DIR                  Spark judges it

Lives here
    schema      the one schema of histories: tables and columns
    writing     rows as Parquet files, each complete or not there; and read again
    recording   the same behind the back of a running process
    verdicts    what an audit says, guarantee by guarantee
    excuses     who was cut off from whom, because somebody lost what it knew; pure
    circles     circles among relations; pure

Jobs of Spark that judge are in `motet.spark.audit`; simulated runs are written by
`motet.testing.histories`.

May import: `motet.model`, `motet.errors`; pyarrow only when something is written.

Must never: make a broker or a client wait for a disk, or fail because a history cannot be written;
leave a file that is not whole under the name of one that is.

Test only this room: `pytest tests/unit/audit`
"""
