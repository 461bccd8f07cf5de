"""A component joins a run or a part leaves it: one file says so at the end, and nothing else is touched."""

import shutil
from collections.abc import Callable
from pathlib import Path

from atoll.components import calibrating, checking, gate, refreshing
from atoll.errors import ConfigError, CorruptError
from atoll.runs import DONE, Run
from atoll.runs.components import FOLDER, SIGNATURE, Member, Members, Weighed, write_members
from atoll.runs.locks import alone
from atoll.train.prototypes import Labelled

MOST = 1000
"""Parts that are ever added to one run."""


def add(
    run: Run,
    folder: Path,
    signed_by: str | None = None,
    *,
    home: Callable[[], Labelled] | None = None,
    allow_worse: bool = False,
) -> Member:
    """Take a component into a run; it is refused or wholly there, and serves at once.

    `home` gives samples of its own on which it is weighed as well. One that makes the run worse is refused,
    unless somebody wants it all the same.
    """
    with alone(run.path / FOLDER, "changed"):
        members = run.members
        stage = checking.check(folder, run, signed_by)
        if len(members.added) >= MOST:
            raise ConfigError(f"{run.path} has been given {MOST} components; start a new run")
        member = Member(
            number=members.count(run.config.partition.clusters), name=stage.contents.name, digest=stage.digest
        )
        target = run.component(member.number)
        target.clear()  # of somebody who was stopped here
        try:
            target.path.mkdir(parents=True)
            for name in [*stage.record.files, *([SIGNATURE] if (folder / SIGNATURE).is_file() else [])]:
                shutil.copyfile(folder / name, target.path / name)
            shutil.copyfile(folder / DONE, target.path / DONE)
            for name in stage.record.files:
                target.verify(name)
            if target.digest != member.digest:
                raise CorruptError(f"{folder} has changed while it was taken in; add it again")
            grown = members.model_copy(update={"added": (*members.added, member)})
            betas = calibrating.inverse_temperatures(run, grown)
            grown = grown.model_copy(update={"betas": betas})
            weighed = gate.weighed(run, grown, target, None if home is None else home())
            member = _admitted(member, weighed, folder, allow_worse)
            write_members(run.path, grown.model_copy(update={"added": (*members.added, member)}))
        except BaseException:
            target.clear()
            raise
    facts = {"number": member.number, "name": member.name, "digest": member.digest}
    run.event("part added", **facts, checked=member.mark)
    return member


def _admitted(member: Member, weighed: Weighed, folder: Path, allow_worse: bool) -> Member:
    """The member with what the gate found; an error if that speaks against it."""
    against = gate.refusal(weighed)
    if against is not None and not allow_worse:
        raise ConfigError(
            f"{folder} makes this run worse: {against}; ask its owner, or add it all the same with "
            "--allow-worse"
        )
    return member.model_copy(update={"weighed": weighed.model_copy(update={"against": against})})


def drop(run: Run, number: int) -> Members:
    """Let a part serve no longer; of one that was added nothing stays."""
    with alone(run.path / FOLDER, "changed"):
        members, own = run.members, run.config.partition.clusters
        serving = members.serving(own)
        if number not in serving:
            raise ConfigError(f"there is no part {number} here; there are {', '.join(map(str, serving))}")
        if len(serving) == 1:
            raise ConfigError(f"part {number} is the only one; a run without parts draws nothing")
        left = members.model_copy(update={"dropped": (*members.dropped, number)})
        if number >= own and number in members.known(own):  # it has learnt from what the part drew
            left = refreshing.undone(run, left)
        write_members(run.path, left)
        refreshing.tidy(run)
        if number >= own:
            run.component(number).clear()
    run.event("part dropped", number=number)
    return left
