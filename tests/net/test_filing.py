"""The run's files: put in place, and put back."""

from atoll.net import filing
from atoll.net.protocol import File, Numerics, Result


def result(outputs, removed=()):
    files = tuple(File(path=path, sha256=digit * 64, size=1) for path, digit in outputs)
    return Result(unit="0" * 64, outputs=files, removed=removed, numerics=Numerics())


def there(session):
    return {path: file.sha256[0] for path, file in filing.table_of(session).items()}


def test_files_are_put_in_place_and_what_was_there_is_put_back(database):
    with database.writing() as session:
        first = filing.apply(session, result([("a", "1"), ("b", "2")]))
        assert first == {"a": None, "b": None}
    with database.writing() as session:
        second = filing.apply(session, result([("a", "3"), ("c", "4")], removed=("b",)))
        assert second == {
            "a": {"sha256": "1" * 64, "size": 1},
            "b": {"sha256": "2" * 64, "size": 1},
            "c": None,
        }
    with database.reading() as session:
        assert there(session) == {"a": "3", "c": "4"}
    with database.writing() as session:
        filing.put_back(session, second)
        assert there(session) == {"a": "1", "b": "2"}
        filing.put_back(session, first)
        assert there(session) == {}
