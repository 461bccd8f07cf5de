"""A group of settings that is frozen and refuses keys it does not know."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A frozen group of settings that refuses keys it does not know."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, strict=True)
