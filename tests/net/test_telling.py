"""What is said: news always, what is being done when it is something else."""

import io
import logging

from rich.console import Console

from atoll.net.telling import Lines, Screen, telling


def test_lines_say_what_is_new(caplog):
    caplog.set_level(logging.INFO, "atoll")
    lines = Lines()
    for sentence in ("training expert 0: step 1", "training expert 0: step 2", "uploading: 3 MB"):
        lines.now(sentence)
    lines.news("expert 0 @ 0..4: accepted")
    assert [record.getMessage() for record in caplog.records] == [
        "training expert 0: step 1",
        "uploading: 3 MB",
        "expert 0 @ 0..4: accepted",
    ]


def test_lines_say_the_same_again_after_a_while(caplog):
    """Whoever reads a log sees that it goes on, and is not flooded by what asks every second."""
    caplog.set_level(logging.INFO, "atoll")
    now = [0.0]
    lines = Lines(lambda: now[0])
    for second in range(700):
        now[0] = float(second)
        lines.now(f"no work (it waits): asking again in {second} s")
    assert len(caplog.records) == 3, "at 0, 300 and 600 seconds"


def test_a_terminal_keeps_the_news_and_shows_no_markup():
    output = io.StringIO()
    console = Console(file=output, force_terminal=True, width=80)
    with console.status("starting") as status:
        screen = Screen(status, console)
        screen.now("asking [bold]for work")
        assert str(status.status) == "asking (bold]for work"
        screen.news("data / 0: [red]received")
    assert "[red]received" in output.getvalue()


def test_without_a_terminal_there_are_lines(monkeypatch):
    monkeypatch.setattr("sys.stderr", io.StringIO())
    with telling() as teller:
        assert isinstance(teller, Lines)
