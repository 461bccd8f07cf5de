"""WebDataset tars, whole or damaged: every sample that is there, and a count of those that are not."""

import json
import tarfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from atoll.data.pictures import PictureError
from atoll.data.reading import BROKEN, Stream, is_transient

BLOCK = 512
SCAN = 2**20
"""Bytes that are searched at once for the next header."""
RECORD = 20 * BLOCK
"""What most programs fill an archive up to with zeros, after two blocks of them that mark its end."""
MAX_MEMBER = 2**30
"""Files in a tar that are larger than this are skipped unread."""
FILES = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE)
LINKS = (tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.GNUTYPE_SPARSE)
"""Members that stand for a file without holding it."""
EXTENDED = (tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE)
"""Headers before a header, for what does not fit into it."""


@dataclass(frozen=True)
class Member:
    """One file of a tar."""

    name: str
    kind: bytes
    offset: int
    """Where its bytes begin."""
    size: int
    data: bytes | None = None
    """Its bytes, where going back to them would be dear."""

    @property
    def end(self) -> int:
        """Where the next header is."""
        return self.offset + -(-self.size // BLOCK) * BLOCK


@dataclass(frozen=True)
class Gap:
    """Bytes in which no header is left."""

    size: int
    members: int
    """Headers in it that can still be told to have been one."""
    header: bool
    """Whether it begins with one; if not, the member before it may be longer than it says."""
    trailing: bool
    """Whether it comes after the mark of the end."""
    bare: int = 0
    """Bytes of it without any such header, which have to be counted by their size."""

    def joined(self, other: "Gap") -> "Gap":
        """This one and the next, with nothing between them."""
        size, members, bare = self.size + other.size, self.members + other.members, self.bare + other.bare
        return Gap(size, members, self.header, self.trailing, bare)


@dataclass(frozen=True)
class End:
    """Where the archive ends, and why that is too early, if it is."""

    problem: str | None = None
    after: Gap | None = None
    """The damaged place before it."""


@dataclass
class Record:
    """The files that make one sample."""

    key: str
    members: dict[str, Member] = field(default_factory=dict)
    """By ending."""
    torn: bool = False
    """Whether not all of it is there, or not for sure."""
    beside: bool = False
    """Whether a damaged place lies before or after it."""
    after: Gap | None = None
    """The damaged place before it."""

    @property
    def size(self) -> int:
        """Bytes of the archive that it takes."""
        return sum(BLOCK + member.end - member.offset for member in self.members.values())


@dataclass(frozen=True)
class Lost:
    """Samples that a damaged place held."""

    count: int
    reason: str
    unknown: bool = False
    """Whether nobody knows how many more are lost."""


@dataclass(frozen=True)
class Survey:
    """What samples of an archive are usually like."""

    size: float | None
    endings: frozenset[str]

    def lost_in(self, gap: Gap, missing: int = 0) -> int:
        """How many samples lay in a damaged place, by its headers or by its size.

        So many of its files are `missing` in the samples before and after it, which count by themselves.
        """
        if gap.trailing and gap.size < 2 * BLOCK:
            return 0  # less than a header and something after it
        each = max(1, len(self.endings))
        by_size = max(1, round(gap.bare / self.size * each) if self.size else 1) if gap.bare else 0
        return max(0, -(-(gap.members + by_size - missing) // each))

    def missing(self, record: Record) -> int:
        """How many files a record lacks that others have."""
        return len(self.endings - record.members.keys())


class Tar:
    """One archive."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.expected = indexed_samples(path)
        """How many samples an index beside it promises."""
        self._survey: Survey | None = None

    def items(self, stream: Stream) -> Iterator[Record | Lost]:
        """Samples and losses in order; as many as the index promises, if there is one."""
        count = 0
        for item in self._found(stream):
            if isinstance(item, Lost) and item.unknown and self.expected is not None:
                break
            yield item
            count += item.count if isinstance(item, Lost) else 1
        if self.expected is not None and count < self.expected:
            yield Lost(self.expected - count, "the index beside the archive has more samples")

    def _found(self, stream: Stream) -> Iterator[Record | Lost]:
        before = 0  # files of the gap that comes next which the record before it lacks
        for item in records(stream):
            if isinstance(item, End):
                lost = 0 if item.after is None else self.survey().lost_in(item.after, before)
                if item.problem is not None:
                    yield Lost(max(1, lost), item.problem, unknown=True)
                elif lost:
                    yield Lost(lost, "the archive is damaged here")
            else:
                lacks = self.survey().missing(item) if item.beside else 0
                if item.after is not None and (lost := self.survey().lost_in(item.after, before + lacks)):
                    yield Lost(lost, "the archive is damaged here")
                before, item.torn = lacks, item.torn or lacks > 0
                yield item

    def survey(self) -> Survey:
        """Read all headers once to see what samples are like, which only a damaged archive needs."""
        if self._survey is None:
            sizes, endings = 0, Counter[frozenset[str]]()
            with Stream(self.path) as stream:
                for item in records(stream, data=False):
                    if isinstance(item, Record):
                        sizes += item.size
                        endings[frozenset(item.members)] += 1
            count = sum(endings.values())
            usual = endings.most_common(1)[0][0] if count else frozenset[str]()
            self._survey = Survey(sizes / count if count else None, usual)
        return self._survey


def records(stream: Stream, *, data: bool = True) -> Iterator[Record | End]:
    """The samples of an archive with the damaged places between them, and its end."""
    current: Record | None = None
    gap: Gap | None = None
    for event in walk(stream, data=data):
        if isinstance(event, Gap):
            gap = event if gap is None else gap.joined(event)
            if current is not None:
                current.beside, current.torn = True, current.torn or not event.header
        elif isinstance(event, End):
            if current is not None:
                current.beside = current.beside or event.problem is not None
                yield current
            yield End(event.problem, gap)
        elif not hidden(event.name):
            key, ending = split_name(event.name)
            if current is None or key != current.key:
                if current is not None:
                    yield current
                current, gap = Record(key, beside=gap is not None, after=gap), None
            elif gap is not None:
                current.torn, gap = True, None
            current.members[ending] = event


def walk(stream: Stream, *, data: bool = True) -> Iterator[Member | Gap | End]:
    """Every member of a tar, found again after each damaged place."""
    position, start = 0, 0
    zeros: int | None = None
    """Where the zeros begin that we are in."""
    long_name: str | None = None
    size: int | None = None
    try:
        while True:
            block = _block(stream, position)
            if len(block) < BLOCK:
                yield End(_problem_of_end(zeros, position, block))
                return
            if not any(block):
                zeros, position = position if zeros is None else zeros, position + BLOCK
                continue
            info = _header(block)
            marked = zeros is not None and _is_mark(zeros - start, position - start, info is not None)
            if zeros is not None and not marked:
                yield _bare(position - zeros)  # a hole, as in a file that was not all written
            start, zeros = position if marked else start, None
            if info is None or _beyond(stream, position + BLOCK + (size or info.size)):
                yield (gap := _damaged(stream, position, block, marked))
                position, long_name, size = position + gap.size, None, None
                continue
            member = Member(long_name or info.name, info.type, position + BLOCK, size or info.size)
            if info.type in EXTENDED:
                long_name, size = extended(read(stream, member), info.type)
            else:
                long_name, size = None, None
                if info.type in FILES + LINKS:
                    whole = read(stream, member) if data and stream.packed else None
                    yield Member(member.name, member.kind, member.offset, member.size, whole)
            position = member.end
    except BROKEN as error:
        if is_transient(error):
            raise
        yield End(f"the archive is damaged ({type(error).__name__}: {error}), what follows is lost")


def _is_mark(begin: int, end: int, followed: bool) -> bool:
    """Whether zeros between these places of an archive mark its end, perhaps `followed` by another one."""
    if end - begin == 2 * BLOCK and followed:
        return True
    return 2 * BLOCK <= end - begin < RECORD + 2 * BLOCK and end % RECORD == 0


def _problem_of_end(zeros: int | None, position: int, rest: bytes) -> str | None:
    """Why a file does not end as an archive should."""
    if zeros is None or any(rest):
        return "the archive ends early, without its end mark"
    if position - zeros >= RECORD + 2 * BLOCK:
        return f"the archive ends in {position - zeros:,} zeros, as a file that was not all written"
    return None


def read(stream: Stream, member: Member) -> bytes:
    """The bytes of a member; fewer where the archive ends."""
    if member.size > MAX_MEMBER:
        return b""
    stream.go_to(member.offset)
    return stream.read(member.size)


def contents(stream: Stream, record: Record) -> dict[str, bytes]:
    """The files of a sample by their endings, or PictureError."""
    if record.torn:
        raise PictureError("part of it lies in a damaged place of the archive")
    files = {}
    for ending, member in record.members.items():
        if member.kind in LINKS:
            raise PictureError(f".{ending} is a link or sparse; pack the file itself")
        if member.size > MAX_MEMBER:
            raise PictureError(f".{ending} is larger than {MAX_MEMBER} bytes")
        files[ending] = read(stream, member) if member.data is None else member.data
        if len(files[ending]) < member.size:
            raise PictureError("the archive ends within it")
    return files


def _block(stream: Stream, position: int) -> bytes:
    if stream.position != position:
        stream.go_to(position)
    return stream.read(BLOCK)


def _header(block: bytes) -> tarfile.TarInfo | None:
    """What a header says, if its checksum is right."""
    try:
        info = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except tarfile.TarError:
        return None
    return info if info.size >= 0 else None


def _beyond(stream: Stream, end: int) -> bool:
    """Whether a member would end after the file does, where that is known."""
    return stream.length is not None and end > stream.length


def _damaged(stream: Stream, position: int, block: bytes, trailing: bool) -> Gap:
    """The damaged place that begins at a position."""
    try:
        size = tarfile.nti(block[124:136])  # type: ignore[attr-defined]
    except tarfile.TarError:
        size = -1
    end = position + BLOCK + -(-size // BLOCK) * BLOCK
    if size >= 0 and not _beyond(stream, end) and _header(_block(stream, end)) is not None:
        return Gap(end - position, 1, True, trailing)  # a header with a flaw, whose size is still right
    end, members, emptied = _search(stream, position)
    members += _was_header(block)
    return Gap(end - position, members, _was_header(block), trailing, emptied if members else end - position)


def _bare(size: int) -> Gap:
    """A damaged place that shows nothing of what was there."""
    return Gap(size, 0, header=False, trailing=False, bare=size)


def _was_header(block: bytes) -> bool:
    return block[257:262] == b"ustar"


def _search(stream: Stream, position: int) -> tuple[int, int, int]:
    """Where the next header or the end is; between: broken headers, and zeros, which may have been some."""
    at, last, broken, zeros, emptied = position + BLOCK, position, 0, 0, 0
    stream.go_to(at)
    while chunk := stream.read(SCAN):
        for start in range(0, len(chunk), BLOCK):
            block = chunk[start : start + BLOCK]
            if not any(block):
                zeros += len(block)
                continue
            emptied, zeros = emptied + zeros, 0
            if len(block) == BLOCK and _header(block) is not None:
                return at + start, broken, emptied
            last, broken = at + start, broken + _was_header(block)
        at += len(chunk)
    return min(last + BLOCK, at), broken, emptied


def extended(raw: bytes, kind: bytes) -> tuple[str | None, int | None]:
    """Name and size that a GNU or a pax header gives the next member."""
    if kind == tarfile.GNUTYPE_LONGNAME:
        return raw.rstrip(b"\0").decode("utf-8", "surrogateescape"), None
    given: dict[bytes, bytes] = {}
    while raw:
        length = raw.partition(b" ")[0]
        if not length.isdigit() or not len(length) < int(length) <= len(raw):
            break
        key, _, value = raw[len(length) + 1 : int(length)].rstrip(b"\n").partition(b"=")
        given[key], raw = value, raw[int(length) :]
    name, size = given.get(b"path"), given.get(b"size", b"")
    return (
        None if name is None else name.decode("utf-8", "surrogateescape"),
        int(size) if size.isdigit() else None,
    )


def split_name(name: str) -> tuple[str, str]:
    """`a/b.seg.png` as key `a/b` and ending `seg.png`, as WebDataset does."""
    folder, slash, base = name.rpartition("/")
    stem, _, ending = base.partition(".")
    return folder + slash + stem, ending.lower()


def hidden(name: str) -> bool:
    """Whether a member is about the archive, and no sample."""
    return any(part.startswith((".", "__")) and part != "." for part in name.split("/"))


def indexed_samples(path: Path) -> int | None:
    """How many samples a tar has by an index beside it: DALI's, img2dataset's or wids'."""
    stem = path.name.removesuffix(".gz").removesuffix(".tgz").removesuffix(".tar")
    try:
        index = path.with_name(f"{stem}.idx")
        if index.is_file():
            with index.open(encoding="utf-8") as file:
                version, _, count = file.readline().partition(" ")
            return int(count) if version.startswith("v1.") else None
        index = path.with_name(f"{stem}_stats.json")
        if index.is_file():
            return int(json.loads(index.read_text(encoding="utf-8"))["successes"])
        index = path.with_name("index.json")
        if index.is_file():
            return _of_wids(json.loads(index.read_text(encoding="utf-8")), path.name)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return None


def _of_wids(index: Mapping[str, object], name: str) -> int | None:
    shards = index.get("shardlist")
    for shard in shards if isinstance(shards, list) else []:
        if str(shard["url"]).rpartition("/")[2] == name:
            return int(shard["nsamples"])
    return None
