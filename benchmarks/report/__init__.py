"""What every benchmark does with its figures: a table, a record, an exit code.

It imports rich. Nothing that is measured.
"""

from report.figures import OUT, Report, Row, machine, turn_ns

__all__ = ["OUT", "Report", "Row", "machine", "turn_ns"]
