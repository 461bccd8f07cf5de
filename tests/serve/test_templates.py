import time

from atoll.sampling.provenance import PALETTE
from atoll.serve import static_files, templates


def test_numbers_for_people():
    assert templates.clock(None) == "" and templates.clock(3725) == "1:02:05"
    assert templates.mebibytes(3 * 2**20) == "3 MiB" and templates.mebibytes(5 * 2**29) == "2.5 GiB"
    now = time.time()
    assert templates.moment(now) == time.strftime("%H:%M:%S", time.localtime(now))
    assert templates.moment(0).startswith(time.strftime("%Y-%m-%d", time.localtime(0)))


def test_experts_have_the_colours_of_the_report():
    style = static_files.FILES["serve.css"].data.decode()
    light = style[: style.index("@media")]
    assert [f"--e{index}: {colour};" in light for index, colour in enumerate(PALETTE)] == [True] * len(
        PALETTE
    )
    assert templates.COLOURS == len(PALETTE)


def test_what_is_put_in_is_escaped():
    from atoll.launch.remaining import Whole
    from atoll.serve.view import RunView

    seen = RunView("<script>", "waiting", [], Whole(0, 0, 0, 0.0, None), [], 0, 0, "<b>")
    text = templates.page("state.html.j2", seen=seen).body.decode()
    assert "<script>" not in text and "&lt;script&gt;" in text and "&lt;b&gt;" in text
