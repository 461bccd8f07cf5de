"""A component joins a run or a part leaves it: one file says so at the end, and nothing else is touched."""

import shutil
from pathlib import Path

from atoll.components import calibrating, checking, refreshing
from atoll.errors import ConfigError, CorruptError
from atoll.runs import DONE, Run
from atoll.runs.components import FOLDER, SIGNATURE, Member, Members, write_members
from atoll.runs.locks import alone

MOST = 1000
"""Parts that are ever added to one run."""


def add(run: Run, folder: Path, signed_by: str | None = None) -> Member:
    """Take a component into a run; it is refused or wholly there, and serves at once."""
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
            write_members(run.path, grown.model_copy(update={"betas": betas}))
        except BaseException:
            target.clear()
            raise
    run.event("part added", number=member.number, name=member.name, digest=member.digest)
    return member


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
