"""A headless Chromium, the page in it, and where its pictures go."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium import webdriver
from support.gateway.page_server import PageServer
from support.gateway.page_viewer import Viewer, missing_programs, start_browser

PICTURES = Path(os.environ.get("PAGE_PICTURES", "benchmarks/out/page"))


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    """One browser for all tests; each gets a tab without storage."""
    if missing := missing_programs():
        pytest.skip(f"{missing} not installed: on Debian, apt-get install chromium chromium-driver")
    started = start_browser(tmp_path_factory.mktemp("chromium"))
    yield started
    started.quit()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[PageServer]:
    with PageServer(tmp_path) as one:
        yield one


@pytest.fixture
def page(driver: webdriver.Chrome) -> Iterator[Viewer]:
    PICTURES.mkdir(parents=True, exist_ok=True)
    viewer = Viewer(driver, PICTURES)
    viewer.theme("light")
    viewer.resize(1400, 1000)
    yield viewer
    viewer.leave()
