"""`streamrl sql`: one query over the tables of a run, by DuckDB.

Guarantees: the tables are queried where they are (Arrow, mapped; nothing is inserted anywhere); a query can read
nothing else, neither file nor network nor a variable of ours, and write nothing; its settings are locked. What is
wrong with a query is one message and exit code 2. DuckDB is an extra and is imported here only.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import pyarrow as pa

from streamrl.errors import ConfigError, ResourceError
from streamrl.services.inspect.sql_tables import TABLES, tables_for
from streamrl.services.run.folder import RunFolder

_SETTINGS = {
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    # Else a name in a query could be a variable of this program.
    "python_enable_replacements": "false",
    # What does not fit into memory fails, and is not written beside the run.
    "temp_directory": "",
}
_READS = ("SELECT", "EXPLAIN", "MULTI")
"""Kinds of statements that may run: queries (with DESCRIBE, SHOW, SUMMARIZE), and PIVOT, which is several in one."""


class Answer(NamedTuple):
    """What a query gave. rows: one tuple of Python values each."""

    names: list[str]
    rows: list[tuple[Any, ...]]


def query_run(run: RunFolder, query: str, tell: Callable[[str], None]) -> Answer:
    """The answer of one query over a run. tell: takes a line on what is not in the tables.

    Raises:
        ConfigError: DuckDB is not installed, or the query is wrong, is no query, or is more than one. DataError:
            damage in the run. ResourceError: the query needs more memory than there is.
    """
    return query_tables(query, lambda: tables_for(run, query, tell))


def query_tables(query: str, tables: Callable[[], dict[str, pa.Table]]) -> Answer:
    """The same over tables by name. They are made once the query is known to be one."""
    duckdb = _duckdb()
    with duckdb.connect(":memory:", config=_SETTINGS) as connection:
        try:
            statement = _one_query(connection, query)
            for name, table in tables().items():
                connection.register(name, table)
            connection.execute("set lock_configuration = true")
            result = connection.execute(statement)
            return Answer([column[0] for column in result.description], result.fetchall())
        except duckdb.OutOfMemoryException as error:
            raise ResourceError(f"the query needs more memory than there is: {error}") from error
        except duckdb.InterruptException as error:
            raise KeyboardInterrupt from error
        except duckdb.Error as error:
            raise ConfigError(f"the query was refused: {error}") from error


def _one_query(connection: Any, query: str) -> Any:
    statements = connection.extract_statements(query)
    if len(statements) != 1:
        raise ConfigError(f"give one query, not {len(statements)}; tables are {', '.join(TABLES)}")
    if statements[0].type.name not in _READS:
        raise ConfigError(
            f"a query may only read, and this is {statements[0].type.name}; tables are {', '.join(TABLES)}"
        )
    return statements[0]


def _duckdb() -> Any:
    try:
        import duckdb
    except ImportError as error:
        raise ConfigError("`streamrl sql` needs DuckDB, which is not installed: pip install 'streamrl[sql]'") from error
    return duckdb
