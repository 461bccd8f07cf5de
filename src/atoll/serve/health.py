"""`/healthz`, `/readyz`: whether the process lives, and whether it takes requests."""

from fastapi import APIRouter

from atoll.serve import schema
from atoll.serve.api import PROBLEMS, Here
from atoll.serve.service import Refused

router = APIRouter()


@router.get("/healthz", responses=PROBLEMS)
async def healthz() -> schema.State:
    """The process lives."""
    return schema.State(status="ok")


@router.get("/readyz", responses=PROBLEMS)
async def readyz(service: Here) -> schema.State:
    """Requests are taken."""
    if not service.scheduler.alive:
        raise Refused(503, "no requests are taken at present", {"Retry-After": "5"})
    return schema.State(status="ok")
