import re

from atoll.serve import static_files


def test_all_that_pages_load_is_here():
    names = set(static_files.FILES)
    assert {"page.css", "serve.css", "watch.js", "vendor/htmx.min.js", "vendor/uPlot.min.js"} <= names
    pages = (static_files.HERE / "templates").glob("*.j2")
    loaded = {name for page in pages for name in re.findall(r"/static/([\w./-]+)", page.read_text())}
    assert loaded <= names


def test_what_others_wrote_has_its_licence_beside_it():
    vendor = static_files.HERE / "static" / "vendor"
    assert "Zero-Clause BSD" in (vendor / "htmx.LICENSE").read_text()
    assert "MIT" in (vendor / "uPlot.LICENSE").read_text()


def test_nothing_is_loaded_from_elsewhere_and_no_script_is_inline():
    for path in (static_files.HERE / "templates").glob("*.j2"):
        text = path.read_text()
        assert not re.search(r"https?://|<script(?! src=)|\son\w+=|\sstyle=|<style", text), path
    for name, file in static_files.FILES.items():
        if not name.startswith("vendor/") and name.endswith((".js", ".css")):
            text = file.data.decode().replace("http://www.w3.org/2000/svg", "")  # a name, not an address
            assert not re.search(r"https?://|\beval\b|innerHTML", text), name
