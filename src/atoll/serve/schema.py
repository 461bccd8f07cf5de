"""What is said over HTTP: requests and answers as types, from which the OpenAPI document is made."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from atoll.config import STRATEGY

Seed = Annotated[int, Field(ge=0, le=2**53)]
Words = Annotated[str, Field(min_length=1, max_length=4096)]
Name = Annotated[str, Field(max_length=256)]
ClassNumber = Annotated[int, Field(ge=0, le=2**31)]
MANY = 4096
"""No list in a request is longer."""


def _like(*examples: dict[str, Any]) -> ConfigDict:
    """What an answer looks like, for those who read the document."""
    return ConfigDict(json_schema_extra={"examples": list(examples)})


class Asked(BaseModel):
    """A request; what it does not say is as the run's recipe says."""

    model_config = ConfigDict(extra="forbid", strict=True)


class SamplesRequest(Asked):
    """Samples, by everything that a sampler takes."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"num": 1, "seed": 7, "steps": 20},
                {"seeds": [3, 5], "strategy": "full", "provenance": True, "format": "json"},
                {"num": 4, "solver": "heun", "steps": 10, "stream": True, "preview_every": 2},
            ]
        }
    )
    model: Name | None = Field(None, description="One of /v1/models; by default the first.")
    num: Annotated[int, Field(ge=1)] | None = Field(None, description="How many samples; by default one.")
    seed: Seed | None = Field(None, description="Sample i depends on this and on i alone.")
    seeds: list[Seed] | None = Field(
        None, min_length=1, max_length=MANY, description="A seed for each sample, by which it is made again."
    )
    strategy: str | None = Field(
        None, pattern=STRATEGY, max_length=32, description="full, top-K, ancestral, auto, …"
    )
    steps: Annotated[int, Field(ge=1)] | None = Field(None, description="Steps from noise to data.")
    solver: Literal["euler", "heun", "dpm++"] | None = None
    shift: Annotated[float, Field(ge=0.001, le=1000)] | None = Field(
        None, description="More steps near the noise."
    )
    entry: Literal["auto"] | Annotated[float, Field(ge=0.001, le=1)] | None = Field(
        None, description="The time at which samples enter the networks' flow; 1 is noise."
    )
    guidance: Annotated[float, Field(ge=1, le=1000)] | None = Field(None, description="1 is none.")
    guided: Annotated[list[float], Field(min_length=2, max_length=2)] | None = Field(
        None, description="The interval of t in which guidance acts."
    )
    experts: list[ClassNumber] | None = Field(
        None, min_length=1, max_length=MANY, description="Which experts serve; all by default."
    )
    temperature: Annotated[float, Field(ge=0.01, le=1000)] | None = Field(None, description="Of the router.")
    rest: Literal["experts", "start"] | None = Field(
        None, description="Who stands for experts that top-K leaves out: those that it keeps, or the start."
    )
    protect: bool | None = Field(
        None, description="Average two halves of the experts that share no sample: fewer copies."
    )
    label: ClassNumber | Words | list[ClassNumber | Words] | None = Field(
        None, description="Class by number or name; several are taken in turn."
    )
    prompt: Words | list[Words] | None = Field(None, description="What to show; several are taken in turn.")
    cluster: list[ClassNumber] | None = Field(
        None, min_length=1, max_length=MANY, description="The expert of each sample, for the strategy oracle."
    )
    band: bool | None = Field(None, description="Ask the router only where it can change its mind.")
    provenance: bool | None = Field(None, description="Also tell the weights of the experts along the way.")
    format: Literal["json", "png", "npz", "wav"] = Field("json", description="Of the answer.")
    rate: Annotated[int, Field(ge=1, le=1_000_000)] = Field(
        16_000, description="Of a wav, in samples per second."
    )
    stream: bool = Field(
        False, description="Answer with server-sent events: accepted, progress, done, failed."
    )
    preview_every: Annotated[int, Field(ge=1, le=1000)] = Field(
        5, description="With stream, so many steps apart samples are shown as they form."
    )
    user: Name = Field("", description="On whose behalf; users share the server evenly.")


class OneSample(BaseModel):
    """One sample and who made it."""

    index: int
    seed: int
    number: int
    """Its number under the seed: (seed, number) is all that its random numbers depend on."""
    asked: dict[str, str]
    expert: int
    shares: list[float]
    png: str | None = None
    """A picture of it, base64."""
    values: list[Any] | None = None
    """Its numbers, (channels, *grid) in the unit of the data, where it is not a picture."""


class Way(BaseModel):
    """The weights of the experts along the way."""

    times: list[float]
    weights: list[list[list[float]]]
    """(sample, time, expert)"""
    disagreement: list[list[float]]
    """(sample, time)"""
    moved: list[list[float]]
    """(sample, expert): how much of the way from noise to sample each expert's velocity went; signed."""


class SamplesAnswer(BaseModel):
    """Samples as JSON."""

    model_config = _like(
        {
            "id": "5f0c9a3be1d24c7f8a6b0d1e2f3a4b5c",
            "model": "fashion",
            "kind": "image",
            "strategy": "top-1",
            "certainty": 0.93,
            "steps": 50,
            "seconds": 0.162,
            "samples": [
                {
                    "index": 0,
                    "seed": 7,
                    "number": 0,
                    "asked": {},
                    "expert": 1,
                    "shares": [0.0, 1.0],
                    "png": "iVBORw0KGgo…",
                }
            ],
        }
    )
    id: str
    model: str
    kind: str
    strategy: str
    certainty: float | None
    steps: int
    seconds: float
    samples: list[OneSample]
    provenance: Way | None = None


class ImagesRequest(BaseModel):
    """Pictures as OpenAI's images API asks for them; what it has beyond this is accepted and ignored."""

    model_config = ConfigDict(
        extra="ignore",
        strict=True,
        json_schema_extra={"examples": [{"prompt": "Sneaker", "n": 1, "response_format": "b64_json"}]},
    )
    prompt: Annotated[str, Field(max_length=4096)] = Field(
        description="A text, or the name of a class where experts are told classes."
    )
    model: Name | None = None
    n: Annotated[int, Field(ge=1)] | None = Field(None, description="How many; by default one.")
    size: Annotated[str, Field(pattern=r"^(auto|[1-9][0-9]{0,3}x[1-9][0-9]{0,3})$")] | None = Field(
        None, description="Pictures are drawn at the model's size and scaled to this one; auto leaves them."
    )
    response_format: Literal["b64_json", "url"] | None = None
    user: Name | None = None
    seed: Seed | None = Field(None, description="Not of OpenAI; by default another one every time.")


class ImageData(BaseModel):
    """One picture."""

    b64_json: str | None = None
    url: str | None = None
    revised_prompt: str | None = None


class ImagesAnswer(BaseModel):
    """Pictures as OpenAI's images API gives them."""

    model_config = _like({"created": 1760000000, "data": [{"b64_json": "iVBORw0KGgo…"}]})
    created: int
    data: list[ImageData]


class MakersRequest(Asked):
    """A sample, whoever made it: a picture or its numbers."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"png": "iVBORw0KGgo…"}, {"values": [[0.5, 0.25]], "label": "walk"}]}
    )
    model: Name | None = Field(None, description="One of /v1/models; by default the first.")
    png: Annotated[str, Field(max_length=2**24)] | None = Field(
        None, description="A picture, base64, as /v1/samples gives it."
    )
    values: list[Any] | None = Field(
        None, max_length=MANY, description="Instead: (channels, *grid) in the unit of the data."
    )
    label: ClassNumber | Words | None = Field(None, description="What experts were told, if they were.")
    prompt: Words | None = None


class Nearest(BaseModel):
    """A training sample near to one that was given."""

    id: str
    distance: float
    """In the features by which the data were clustered."""
    png: str | None = None
    """Itself, base64; only where the server was told to show its data."""


class MakersAnswer(BaseModel):
    """Which parts would make a sample; what that does and does not show is in the sentence."""

    model_config = _like(
        {
            "model": "fashion",
            "expert": 1,
            "calibrated": True,
            "posterior": [0.02, 0.98],
            "bits_per_value_worse": [0.01, 0.0],
            "times": [0.1, 0.5],
            "weights": [[0.1, 0.9], [0.4, 0.6]],
            "nearest": [[{"id": "train/12", "distance": 3.2}], [{"id": "train/7", "distance": 1.4}]],
            "sentence": "…",
        }
    )
    model: str
    expert: int
    calibrated: bool
    """Whether what a part is worse by at everything was taken off, as `atoll credit` fitted it."""
    posterior: list[float]
    """The probability of each part, by the likelihood of the sample."""
    bits_per_value_worse: list[float | None]
    """How much worse each part explains it than the best one; null for one that is gone."""
    times: list[float]
    weights: list[list[float]]
    """(time, expert): whom the router would ask about the sample at this much noise."""
    nearest: list[list[Nearest]] | None
    """Of each part its nearest training samples; null where the data are not at hand."""
    near: list[float] | None = None
    """How many of the nearest fifteen training samples of all are of each part, as shares."""
    display: list[float] | None = None
    """What each part says beyond a base along what all say; null where no base is known."""
    sentence: str


class PartsAnswer(BaseModel):
    """The parts that a model has now."""

    model_config = _like({"model": "fashion", "parts": [0, 1, 2], "seconds": 0.8})
    model: str
    parts: list[int]
    """Numbers of those that can be asked."""
    seconds: float
    """What it took to load what is new."""


_CARD: dict[str, Any] = {
    "id": "fashion",
    "created": 1760000000,
    "kind": "image",
    "shape": [1, 28, 28],
    "experts": 8,
    "condition": "none",
    "classes": [],
    "steps": 50,
    "strategy": "auto",
}


class ModelCard(BaseModel):
    """One model, as OpenAI lists them, with what its samples are."""

    model_config = _like(_CARD)
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "atoll"
    kind: str
    shape: list[int]
    experts: int
    condition: Literal["none", "class", "text"]
    classes: list[str]
    steps: int
    strategy: str


class ModelList(BaseModel):
    """All models."""

    model_config = _like({"data": [_CARD]})
    object: Literal["list"] = "list"
    data: list[ModelCard]


class Problem(BaseModel):
    """What went wrong."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class Refusal(BaseModel):
    """An answer that is not one, as OpenAI's clients read it."""

    model_config = _like(
        {
            "error": {
                "message": "steps is at most 1000 here, not 5000; ask for less",
                "type": "invalid_request_error",
            }
        }
    )
    error: Problem


class State(BaseModel):
    """Whether the server is well."""

    model_config = _like({"status": "ok"})
    status: Literal["ok", "loading", "stopping"]


class Cancelled(BaseModel):
    """A request that was dropped."""

    model_config = _like({"id": "5f0c9a3be1d24c7f8a6b0d1e2f3a4b5c", "cancelled": True})
    id: str
    cancelled: bool
