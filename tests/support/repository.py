"""Where the checkout lies, with its configurations, its documentation and its tests."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
