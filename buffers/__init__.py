"""streamrl's Arrow replay queue: schemas, segments, ledger, index. A part of streamrl."""
