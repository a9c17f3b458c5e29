"""The command line: `motet up`, `overlay`, `broker`, `journal`, `log`, `pub`, `sub`, `tx`,
`status`, and for trying things out `sim`, `chaos`, `bench`, `experiment`, `demo`; and `pipeline`,
jobs on Spark.

What lives here
    main          the list of commands, and the one place where errors become exit statuses
    one file per command, named after it
    voice         how anything is printed: for people, or one JSON value per line
    interrupt     what happens if somebody has had enough; offspring: nobody is left behind
    ending        exit statuses; errors as one clear line and a hint
    notation      events as `name=value` words and as JSON lines, both ways
    supervisor    the broker processes of `motet up`: started, watched, restarted, stopped
    changes       what has to happen so that a running overlay becomes another one
    running       who keeps an overlay up in a folder, and how far it is
    trials        the seeds and mutations of `motet sim`, over processes
    storms        one run of `motet chaos`: its folder, its progress, its tables
    trial_runs    one run of `motet experiment`: its progress, its table; tx_runs: of transactions
    demo_run      one run of `motet demo`: what it says, its table
    options       options that several commands have
    traces        what an overlay that cannot be started leaves in its folder: nothing new
    pipeline_runs `motet pipeline audit`: progress, and what it has found
    looking       what brokers say of their links
    overview      the tables of `motet status`
    pipeline      the group of commands that use Spark; pipeline_flow has some of them,
                  pipeline_jobs does their work, pipeline_bars shows how far it is

May import: everything but `motet.testing`'s internals (only what it exports). Nothing imports it.

Must never: hold logic that a program would want; that belongs into the rooms. Never print a
traceback unless asked with `--debug`, never leave a process behind.

Invariants owned here
    - Exit status 0: fine; 1: something failed or a promise is broken; 2: misuse.
    - Standard output carries results only, line by line as they come; everything else goes to
      standard error. With `--json` every line of standard output is one JSON value.
    - Processes of ours never outlive the command that started them, however it ends: brokers,
      Spark's JVM and its workers. Exit status 130 if somebody did not want to wait for the end.

Test only this room: `pytest tests/unit/cli tests/integration/test_cli.py`
"""
