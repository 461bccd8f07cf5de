import base64
import io
import re
from html.parser import HTMLParser

import pytest
from PIL import Image

from atoll import report, sample
from atoll.train import student


@pytest.fixture
def page(finished, tmp_path):
    out = tmp_path / "samples"
    sample.sample(finished, out)
    return report.write_report(finished, out).read_text(encoding="utf-8")


def test_the_page_stands_alone(page):
    """Nothing is fetched from anywhere: no address of the web but the names of SVG's own vocabulary."""
    assert not re.findall(r'(?:src|href)="(?!data:|#)', page)
    assert "<script" not in page


def test_every_picture_is_whole(page):
    pictures = re.findall(r'src="data:image/png;base64,([^"]+)"', page)
    assert len(pictures) == 1 + 3  # the grid and one gallery per cluster
    for text in pictures:
        Image.open(io.BytesIO(base64.b64decode(text))).verify()


def test_it_says_what_happened(page, finished):
    sizes = finished.partition.contents["sizes"]
    for size in sizes:
        assert f"{size:,} samples" in page
    assert "expert 2" in page
    assert "velocity loss" in page
    assert "cross-entropy" in page
    assert "source = &#34;fashion-5k&#34;" in page


def test_tags_are_closed(page):
    class Balance(HTMLParser):
        void = frozenset({"meta", "img", "br", "link"})
        stack: list[str]

        def handle_starttag(self, tag, attrs):
            if tag not in self.void:
                self.stack.append(tag)

        def handle_endtag(self, tag):
            assert self.stack.pop() == tag

        def handle_startendtag(self, tag, attrs):
            pass

    parser = Balance()
    parser.stack = []
    parser.feed(page)
    assert parser.stack == []


def test_a_recipe_cannot_put_markup_into_the_page(finished, tmp_path):
    sample.sample(finished, tmp_path / "s")
    (finished.path / "run.toml").unlink()
    (finished.path / "run.toml").write_text("# <script>alert(1)</script>")
    assert "<script" not in report.write_report(finished, tmp_path / "s").read_text(encoding="utf-8")


def test_students_are_told_of(taught, tmp_path):
    run = taught(steps=2)
    student.dense(run)
    sample.sample(run, tmp_path / "samples")
    page = report.write_report(run, tmp_path / "samples").read_text(encoding="utf-8")
    assert "2 steps, in student/" in page
    assert "students in black" in page
