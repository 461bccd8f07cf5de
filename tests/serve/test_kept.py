from atoll.serve.kept import Kept


def test_what_is_kept_is_found_by_its_name_alone():
    kept = Kept(100)
    name = kept.put(b"picture")
    assert len(name) >= 32
    assert kept.get(name) == b"picture"
    assert kept.get("picture") is None


def test_the_oldest_go_where_there_is_no_room():
    kept = Kept(10)
    names = [kept.put(b"1234") for _ in range(3)]
    assert [kept.get(name) for name in names] == [None, b"1234", b"1234"]
    assert kept.size == 8
    kept.put(b"12345678901")
    assert kept.size == 0


def test_a_name_holds_one_thing():
    kept = Kept(10)
    kept.put(b"12345678", "a")
    kept.put(b"123", "a")
    assert (kept.get("a"), kept.size) == (b"123", 3)
