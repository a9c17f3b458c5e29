"""The command line: `motet up`, `overlay`, `broker`, `journal`, `log`, `pub`, `sub`, `tx`,
`status`; for experiments `sim`, `chaos`, `bench`, `experiment`, `demo`; and `pipeline`, jobs on
Spark.

What lives here
    main          the list of commands, and the one place where errors become exit codes
    one file per command, named after it; `…_run` files hold the work of commands whose imports are
                  slow: chaos_run, sim_run, demo_run, experiment_run, experiment_tx_run
    pipeline      the commands that use Spark
    console       printing: lines and tables for people, or one JSON value per line; exit codes, and
                  an error as one line and a hint
    options       options that several commands have; the brokers that they talk to
    notation      events as `name=value` words and as JSON lines, both ways
    interrupt     handling of Ctrl-C and SIGTERM

May import: everything; of `motet.testing` only what it exports. No room imports this one.

Must never: hold logic that a program would want; that belongs into the rooms. Never print a
traceback unless asked with `--debug`, never leave a process behind.

Invariants owned here
    - Exit status 0: success; 1: something failed or a guarantee is violated; 2: misuse.
    - Standard output carries results only, line by line as they come; everything else goes to
      standard error. With `--json` every line of standard output is one JSON value.
    - Processes started by a command never outlive it, however it ends: brokers, Spark's JVM and its
      workers. Exit status 130 if the user interrupted it.

Test only this room: `pytest tests/unit/cli tests/integration/test_cli.py`
"""
