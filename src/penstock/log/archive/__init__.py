"""The archive: what closed segments hold, as Parquet, for ever; retention waits for it.

    <archive>/manifest.json                          which LSNs are archived, and in which files: the only truth
    <archive>/messages/topic=<t>/day=<d>/*.parquet   messages
    <archive>/records/day=<d>/*.parquet              all other records
    <archive>/.new/*.parquet                         files on their way: of no manifest yet, or not yet in their place

Rows are those of the log, all columns of it, so that a row reads the same from either.  Who writes holds the lock of
the data folder; readers need none.
"""
