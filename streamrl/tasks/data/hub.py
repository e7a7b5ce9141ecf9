"""Rows of a data set of the hub, streamed by `datasets` (extra `data`)."""

from collections.abc import Iterator

from streamrl.errors import ConfigError
from streamrl.tasks.data.addresses import SPLITS, Hub
from streamrl.tasks.data.readers import RawRow


def read_hub(hub: Hub, use: str) -> Iterator[RawRow]:
    """The rows of a split, in the hub's order. Raises ConfigError where `datasets` is missing, or cannot have them."""
    try:
        import datasets  # here and not above: few have it, and it takes a second
    except ImportError as error:
        raise ConfigError(
            f"data hf:{hub.name} needs the package datasets: pip install 'streamrl[data]', or download the files and "
            "give their path"
        ) from error
    try:
        names = datasets.get_dataset_split_names(hub.name, hub.config)
        split = hub.split or next((name for name in SPLITS[use] if name in names), "")
        if split not in names:
            raise ConfigError(f"data hf:{hub.name} has no split {split or use!r}; it has {', '.join(names)}")
        rows = datasets.load_dataset(hub.name, hub.config, split=split, streaming=True)
        for number, row in enumerate(rows, 1):
            yield RawRow(number, row, filled=True)
    except ConfigError:
        raise  # it is a ValueError, too
    except (OSError, ValueError, RuntimeError) as error:
        raise ConfigError(f"data hf:{hub.name}: datasets cannot have it: {error}") from error
