from collections.abc import AsyncIterator

import pytest
from support.environments.opened_pools import OpenPool, opened_pools


@pytest.fixture
async def pool_of() -> AsyncIterator[OpenPool]:
    async with opened_pools() as opens:
        yield opens
