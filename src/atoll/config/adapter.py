"""Adapters: experts that are a small update of a network that they share, [expert] `adapter`."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from atoll.config.digest import ELSEWHERE
from atoll.config.section import Section

START = "start"
"""The base of a run that trains its own."""


class AdapterSettings(Section):
    """What an adapter is, whatever it is an adapter of."""

    rank: int = Field(16, ge=0)
    """Rank of the update of each layer (LoRA); 0 for learnt tokens alone."""
    targets: Literal["attention", "mlp", "attention+mlp", "attention+mlp+modulation"] = "attention+mlp"
    """Layers of the blocks that are updated: of attention, to the sample and to a text; of the MLP; and those
    that turn time and condition into scales, shifts and gates."""
    scale: float = Field(1.0, gt=0)
    """Factor of the update; LoRA's alpha / rank."""
    tokens: int = Field(0, ge=0)
    """Learnt tokens that every block asks besides those of the sample: with `rank` = 0, the smallest kind."""
    biases: bool = False
    """Whether it learns what every layer of the blocks adds, too, those of time and condition among them: a
    few numbers for each layer, whatever `targets` are."""

    @model_validator(mode="after")
    def _is_something(self) -> Self:
        if not self.rank and not self.tokens and not self.biases:
            raise ValueError("adapter: rank = 0 and tokens = 0 is nothing; give one of them, or set biases")
        return self


class AdapterConfig(AdapterSettings):
    """An adapter, and the network that it is an adapter of."""

    base: Annotated[str, ELSEWHERE] = START
    """`start` for the network of [start]; a folder with an expert, or an export of one; or `hub:o/name`."""
