"""Audit: recorded histories, so that every guarantee can be checked afterwards.

    motet up --history DIR                    brokers and clients record what they do and receive
    motet pipeline audit DIR                  Spark checks it

Lives here
    records     records of what happened, and their rows
    schema      the one schema of histories: tables and columns
    files       rows in Parquet files, each complete or absent; and reading them
    recorder    writes history rows from a background thread
    verdicts    the results of an audit, per guarantee
    excuses     which brokers were cut off from each other because one lost its state; pure
    circles     cycles in relations; pure

The Spark jobs that check histories are in `motet.spark.audit`; `motet.testing.history` writes
simulated runs.

May import: `motet.model`, `motet.errors`; pyarrow only when rows are written.

Must never: make a broker or a client wait for a disk, or fail because a history cannot be written;
leave an incomplete file under a final name.

Test only this room: `pytest tests/unit/audit`
"""
