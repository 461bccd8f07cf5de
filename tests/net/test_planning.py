"""A book that nobody keeps."""

from atoll.net.planning import Silent


def test_nothing_is_written(database):
    with database.writing() as session:
        book = Silent()
        assert book.note(session, "lease", {}, 0.0) is None
        book.credit(session, "e", "a", 1, "l", "s", 0.0)
        book.forfeit(session, "e", "a", "l", "s", 0.0)
        assert book.escrow(session, "a", "l") == 0
