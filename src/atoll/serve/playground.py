"""The playground: ask for a sample, see it form, see who made it, and what becomes of it without them."""

from typing import Any

from fastapi import APIRouter, Request, Response

from atoll.serve.models import Model
from atoll.serve.service import Service
from atoll.serve.templates import page, tabs

COMPARED = ("full", "top-1", "top-2", "ancestral")
"""Strategies side by side; others can be typed into an address."""
COUNTS = (1, 4, 9, 16)
CURVED = 2
"""Axes of what is drawn as a curve: channels and time."""

router = APIRouter(include_in_schema=False)


@router.get("/")
def playground(http: Request) -> Response:
    """The page; all that it does after that goes by `/v1/samples`."""
    service: Service = http.app.state.service
    first = service.model(None)
    return page(
        "playground.html.j2",
        first=about(first),
        models=[about(model) for model in service.models.values()],
        classes=first.class_names,
        strategies=strategies(first),
        counts=COUNTS,
        limits={"num": service.limits.num, "steps": service.limits.steps},
        tabs=tabs(http.app.state),
        tab="Playground",
    )


def about(model: Model) -> dict[str, Any]:
    """What the page must know of a model."""
    ensemble, defaults = model.sampler.ensemble, model.sampler.defaults
    return {
        "id": model.name,
        "kind": model.kind,
        "curve": len(model.shape) == CURVED,
        "parts": serving(model),
        "names": _names(model),
        "condition": ensemble.kind,
        "steps": defaults.steps,
        "strategy": defaults.strategy,
        "guidance": defaults.guidance,
        "guided": (ensemble.kind != "none" or ensemble.weak is not None) and not ensemble.maps,
        "prompt": defaults.prompts[0] if defaults.prompts else "",
    }


def serving(model: Model) -> list[int]:
    """Numbers of the parts that are there and may be asked."""
    ensemble = model.sampler.ensemble
    return [number for number in range(len(ensemble.experts)) if number not in ensemble.absent]


def _names(model: Model) -> dict[int, str]:
    """Of parts that were added, by number."""
    if model.run is None or model.distilled:
        return {}
    return {member.number: member.name for member in model.run.members.present}


def strategies(model: Model) -> list[str]:
    """Those that make a difference for so many experts, the recipe's own first."""
    experts = len(serving(model))
    if experts == 1:
        return []
    known = [name for name in COMPARED if name != "top-2" or experts > 2]
    return list(dict.fromkeys([model.sampler.defaults.strategy, *known]))
