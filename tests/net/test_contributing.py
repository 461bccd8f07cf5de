"""Who made a run: the list is what was accepted, is in the log once, and is signed."""

from atoll.net import contributing, statements
from atoll.net.books import Books
from atoll.runs.contributors import read_contributors, write_contributors
from tests.net.policed import small


def test_the_list_is_of_accepted_work_and_signed(tmp_path, monkeypatch):
    world = small(tmp_path)
    ann, bob, eve = world.machine(), world.machine(), world.machine(false=frozenset({0, 10}))
    assert eve.work().state == "checked"
    world.finish([ann, bob, world.machine()])
    listed = contributing.stated(world.here)
    people = {one.account: one for one in listed.people}
    assert eve.name not in people, "what was false is nobody's contribution"
    makers = [one for one in people.values() if "expert 0" in one.stages]
    assert (len(makers) == 1 and makers[0].account in (ann.name, bob.name)) or makers[0].units
    assert sum(one.audits for one in people.values()) == sum(one.units for one in people.values()) - 2
    statement = statements.opened(listed.statement.encode(), {listed.coordinator})
    assert statement.kind == "contributors" and len(statement.facts["people"]) == len(people)
    assert contributing.stated(world.here) == listed, "once"
    write_contributors(tmp_path, listed)
    assert read_contributors(tmp_path) == listed
    monkeypatch.setattr(contributing, "LONGEST", 10)
    assert contributing.stated(world.here) == listed
    assert isinstance(world.here.book, Books)
    world.database.close()
