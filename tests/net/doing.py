"""Units done one after the other in folders of their own, as if each were on another machine."""

import shutil
from pathlib import Path

from atoll.net import units, work
from atoll.net.protocol import File
from atoll.runs import Run

RUN = "a" * 64
PINNED = [
    "data.part=2000",
    "expert.precision='float32'",
    "expert.compile='off'",
    "router.precision='float32'",
    "router.compile='off'",
]


class Network:
    """A table of files, and the files by their hashes."""

    def __init__(self, config, folder, **sizes):
        self.run = Run(Path("nowhere"), config)
        self.config, self.folder = config, folder
        self.table: dict[str, File] = {}
        self.names: list[str] = []
        self.roles: dict[str, str] = {}
        self.chains: dict[str, tuple[str, ...]] = {}
        self.sizes = units.Sizes(run=RUN, **{"segment": 4, "every": 2, "quorum": 1, **sizes})
        (folder / "files").mkdir(parents=True)

    def read(self, file):
        return (self.folder / "files" / file.sha256).read_bytes()

    def ready(self):
        return units.ready(self.run, self.table, self.read, self.sizes)

    def lay_out(self, files, folder):
        for file in files:
            path = folder / file.path
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(self.folder / "files" / file.sha256, path)

    def keep(self, folder, files):
        for file in files:
            shutil.copy(folder / file.path, self.folder / "files" / file.sha256)

    def do(self, unit):
        """On a machine of its own."""
        folder = self.folder / "machines" / f"{len(self.names):03d}" / "run"
        self.lay_out(unit.inputs, folder)
        run = Run(folder, self.config)
        chain = folder.parent / work.CHAIN
        work.work(unit, run, chain)
        self.accept(unit, folder, work.links_of(unit, work.read_chain(chain)))

    def accept(self, unit, folder, chain=()):
        outputs, removed = work.made_files(unit, Run(folder, self.config))
        self.keep(folder, outputs)
        for path in removed:
            del self.table[path]
        self.table |= {file.path: file for file in outputs}
        self.names.append(unit.name)
        self.roles[unit.stage] = unit.role
        self.chains[unit.name] = chain

    def finish(self):
        while ready := self.ready():
            for unit in ready:
                self.do(unit)
        self.lay_out(units.folder(self.table).values(), self.folder / "finished")
        return Run(self.folder / "finished", self.config)
