"""streamrl's Arrow replay queue: schemas, segments, ledger and index. Part of streamrl, not a package of its own."""
