"""Settings of the unit tests."""

import os

from support.memory_folders import free_memory, put_folders_in_memory

put_folders_in_memory(os.environ, free_memory())
