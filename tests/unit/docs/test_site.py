"""The documentation as a whole: every page has its place, every path that is named is there, nothing is from elsewhere.

`make docs` checks more, anchors among it; where its environment is, it is run here too.
"""

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.repository import ROOT

DOCS = ROOT / "docs"
MKDOCS = ROOT / ".venvs/docs/bin/mkdocs"
SETTINGS = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
PAGES = sorted(DOCS.rglob("*.md"))
LINK = re.compile(r"\]\((?!https?://|#)([^)#\s]+)(?:#[^)]*)?\)")
NAMES_A_PAGE = ("streamrl", "services", "buffers", "tests", "configs", "benchmarks", "deploy")


def in_the_menu(entries: Any = SETTINGS["nav"]) -> Iterator[str]:
    for entry in entries:
        for where in entry.values():
            if isinstance(where, str):
                yield where
            else:
                yield from in_the_menu(where)


def test_every_page_has_one_place_in_the_menu() -> None:
    assert sorted(in_the_menu()) == [str(page.relative_to(DOCS)) for page in PAGES]


def test_the_menu_has_this_order() -> None:
    chapters = [name for entry in SETTINGS["nav"] for name in entry]
    assert chapters == ["Start", "Tutorials", "How it works", "Guides", "Reference", "Develop"]


def test_no_folder_has_more_than_16_pages() -> None:
    for folder in {page.parent for page in PAGES}:
        assert len(list(folder.glob("*.md"))) <= 16, folder


@pytest.mark.parametrize("page", [*PAGES, *ROOT.glob("*.md")], ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_links_to_is_there(page: Path) -> None:
    missing = [target for target in LINK.findall(page.read_text()) if not (page.parent / target).exists()]
    assert not missing


def test_every_page_that_the_code_names_is_there() -> None:
    named = {
        (str(path.relative_to(ROOT)), page)
        for folder in NAMES_A_PAGE
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".toml", ".md") and path.is_file()
        for page in re.findall(r"\bdocs/[\w/-]+\.md", path.read_text())
    }
    assert len(named) > 10
    assert not [(path, page) for path, page in named if not (ROOT / page).exists()]


def test_the_site_has_no_fonts_or_scripts_of_another_host() -> None:
    assert SETTINGS["theme"]["font"] is False
    assert SETTINGS["strict"] is True
    assert not {"extra_javascript", "extra_css"} & set(SETTINGS)


@pytest.mark.skipif(not MKDOCS.exists(), reason="`make docs` makes what builds the site")
def test_the_site_builds_strictly_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    built = subprocess.run(
        [MKDOCS, "build", "--strict", "--quiet", "--site-dir", tmp_path / "site"],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    loaded = re.compile(r'<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)="?https?://')
    pages = list((tmp_path / "site").rglob("*.html"))
    assert len(pages) > len(PAGES)
    assert not [page for page in pages if loaded.search(page.read_text())]
    assert "streamrl.client.connect" in (tmp_path / "site/python.html").read_text()
