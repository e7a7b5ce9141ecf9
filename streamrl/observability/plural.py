"""Numbers in the sentences that people read."""


def how_many(number: int, one: str, many: str) -> str:
    """The number with its noun.

    Example:
        how_many(1200, "row", "rows")   # "1,200 rows"
    """
    return f"{number:,} {one if number == 1 else many}"
