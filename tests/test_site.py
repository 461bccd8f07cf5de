"""The site is built without a warning, has its pictures and formulas, and loads nothing from elsewhere."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    return folder


def test_every_page_is_there(site):
    for page in (ROOT / "docs").glob("*.md"):
        assert (site / f"{page.stem}.html").is_file(), page
    home = (site / "index.html").read_text(encoding="utf-8")
    assert "many islands of compute" in home
    assert '<img alt="Sixty-four pieces of clothing' in home
    assert "<math" in home and "$$" not in home
    assert (site / "pictures" / "fashion.png").is_file()
    assert (site / "recipe.schema.json").is_file()


def test_what_pages_link_to_can_be_read(site):
    assert "clusters = 8" in re.sub(r"<[^>]+>", "", (site / "files/recipes/fashion.toml.html").read_text())
    assert "atoll.run(" in re.sub(
        r"<[^>]+>", "", (site / "files/examples/two-experts.ipynb.html").read_text()
    )


def test_every_address_on_a_page_is_there(site):
    """Pictures, pages and scripts; strict building checks only what is written in Markdown."""
    missing, elsewhere = [], []
    for page in site.rglob("*.html"):
        for kind, address in re.findall(r'\s(src|href)="([^"#?]*)[^"]*"', page.read_text(encoding="utf-8")):
            if "://" in address or address.startswith(("mailto:", "data:")):
                elsewhere += [(page.name, address)] if kind == "src" else []
            elif address and page.name != "404.html":
                target = (page.parent / address).resolve()
                missing += [] if target.exists() else [(str(page.relative_to(site)), address)]
    assert missing == []
    assert elsewhere == []
