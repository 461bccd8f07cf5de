"""Parts that were added to a run in a store: files under their digest, and in numbered versions who is there.

Of two machines that change the parts of one run at once, one creates the next version; the other one is told
to try again, and has changed nothing.
"""

from collections.abc import Iterable
from pathlib import Path

from atoll.errors import CorruptError, StorageError
from atoll.runs import DONE, Stage, file_digest, replacing
from atoll.runs.components import FOLDER, MEMBERS, SIGNATURE, Member, Members, write_members
from atoll.runs.parsing import validated, versioned
from atoll.runs.records import parse_record
from atoll.storage.mirror import Mirror
from atoll.storage.progress import keyed

VERSIONS = f"{FOLDER}/members-"
ROUTERS = f"{FOLDER}/router-"
KNOWN = f"{FOLDER}/known-"
"""Prototypes of a run's own clusters, by which a router tells them from what was added."""


def download(mirror: Mirror) -> int:
    """The parts of a run as the store has them, and the version of that; 0 where none ever came or went."""
    names = mirror.store.names(FOLDER)
    version = max((_number(name) for name in names if name.startswith(VERSIONS)), default=0)
    if not version:
        (mirror.run.path / MEMBERS).unlink(missing_ok=True)
        return 0
    where = f"{mirror.store.address}/{_version(version)}"
    tree = versioned(mirror.store.read_json(_version(version)), where)
    members = validated(Members, tree, where, "restore it from a backup")
    for member in members.added:
        if member in members.present:
            _download_part(mirror, mirror.run.component(member.number), _folder(member), member.digest)
        else:
            mirror.run.component(member.number).clear()
    if members.router is not None:
        folder = members.router.folder
        _download_part(mirror, mirror.run.refreshed(folder), f"{FOLDER}/{folder}", members.router.digest)
    for name in (name for name in names if name.startswith(KNOWN)):
        _download_known(mirror, name)
    write_members(mirror.run.path, members)
    return version


def _download_part(mirror: Mirror, stage: Stage, folder: str, digest: str) -> None:
    """One component or router, each file checked; what is here already is not asked for."""
    if stage.done and stage.digest == digest:
        return
    stage.clear()
    where = f"{mirror.store.address}/{folder}/{DONE}"
    record = parse_record(mirror.store.read_json(f"{folder}/{DONE}"), where)
    if record.digest != digest:
        raise CorruptError(f"{where} is another component or router than was added; do not trust it")
    for file, sha256 in record.files.items():
        mirror.store.download(f"{folder}/{file}", stage.path / file, sha256)
    signature = mirror.store.read(f"{folder}/{SIGNATURE}")
    if signature is not None:
        with replacing(stage.path / SIGNATURE) as beside:
            beside.write_bytes(signature)
    stage.write(record)


def _download_known(mirror: Mirror, name: str) -> None:
    stem, beginning, suffix = Path(name).name.split(".")
    target = mirror.run.path / FOLDER / f"{stem}.{suffix}"
    if not target.is_file():
        mirror.store.download(name, target, beginning)


def upload(mirror: Mirror, version: int) -> None:
    """What has come and gone since this version; an error if another machine was first."""
    run, store = mirror.run, mirror.store
    members, names = run.members, store.names(FOLDER)
    for member in members.present:
        if f"{_folder(member)}/{DONE}" not in names:
            stage = run.component(member.number)
            _upload_files(mirror, stage.path, _folder(member), stage.record.files)
    if members.router is not None and f"{FOLDER}/{members.router.folder}/{DONE}" not in names:
        router = run.asked_router
        _upload_files(mirror, router.path, f"{FOLDER}/{members.router.folder}", router.record.files)
    for path in sorted((run.path / FOLDER).glob("known-*")):
        store.upload(path, f"{FOLDER}/{keyed(path.name, file_digest(path))}")
    if not store.create(_version(version + 1), members.model_dump_json().encode()):
        raise StorageError(
            f"parts of {store.address} were changed by another machine meanwhile; give the same command again"
        )
    kept = {_folder(member) for member in members.present}
    gone = {_folder(member) for member in members.added} - kept
    asked = None if members.router is None else f"{FOLDER}/{members.router.folder}"
    idle = {name.rpartition("/")[0] for name in names if name.startswith(ROUTERS)} - {asked}
    store.delete(name for name in names if name.rpartition("/")[0] in gone | idle)


def _upload_files(mirror: Mirror, folder: Path, name: str, files: Iterable[str]) -> None:
    """The files of a component and its signature, then its record."""
    for file in files:
        mirror.store.upload(folder / file, f"{name}/{file}")
    for small in (SIGNATURE, DONE):
        if (folder / small).is_file():
            mirror.store.write(f"{name}/{small}", (folder / small).read_bytes())


def _folder(member: Member) -> str:
    return f"{FOLDER}/{member.digest[:16]}"


def _version(number: int) -> str:
    return f"{VERSIONS}{number:06d}.json"


def _number(name: str) -> int:
    return int(name.removeprefix(VERSIONS).removesuffix(".json"))
