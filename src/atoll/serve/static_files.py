"""The files that pages load: all of them read once, so that no name from a request touches the disk."""

import hashlib
from pathlib import Path
from typing import NamedTuple

from fastapi import APIRouter, HTTPException, Request, Response

HERE = Path(__file__).parent
MEDIA = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}


class StaticFile(NamedTuple):
    """A file as it is sent."""

    data: bytes
    media: str
    tag: str


def _read(path: Path) -> StaticFile:
    data = path.read_bytes()
    return StaticFile(data, MEDIA[path.suffix], f'"{hashlib.sha256(data).hexdigest()[:16]}"')


def read_files() -> dict[str, StaticFile]:
    """All files by the name that they are asked for; the style of a report is that of all pages."""
    folder = HERE / "static"
    paths = [path for path in folder.rglob("*") if path.suffix in MEDIA]
    files = {path.relative_to(folder).as_posix(): _read(path) for path in paths}
    return {**files, "page.css": _read(HERE.parent / "pages" / "page.css")}


FILES = read_files()
router = APIRouter(include_in_schema=False)


@router.get("/static/{name:path}")
async def static(name: str, http: Request) -> Response:
    """One file; a browser that has it is told so."""
    file = FILES.get(name)
    if file is None:
        raise HTTPException(404, "there is no such file")
    headers = {"ETag": file.tag, "Cache-Control": "no-cache"}
    if http.headers.get("if-none-match") == file.tag:
        return Response(status_code=304, headers=headers)
    return Response(file.data, media_type=file.media, headers=headers)
