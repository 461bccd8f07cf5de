"""What a person asks for, names of classes and prompts, as what networks are told."""

import difflib
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from atoll.errors import ConfigError
from atoll.models import conditions
from atoll.models.conditions import Kind, TextCondition

Encode = Callable[[Sequence[str]], TextCondition]
"""States of some prompts."""
Asked = str | int | Sequence[str | int]
Prompts = str | Sequence[str]
REMEMBERED = 1024
"""Prompts whose states are kept."""


@dataclass
class Vocabulary:
    """The words that a run understands: the names of its classes, or prompts by way of its text encoder."""

    class_names: tuple[str, ...] = ()
    encode: Encode | None = None
    """The run's own text encoder; it is opened when the first prompt comes."""
    known: dict[str, TextCondition] = field(default_factory=dict)
    """Prompts that were encoded before: each costs one encoding, however often it is asked for."""

    def labels(self, classes: Asked | None, kind: Kind) -> list[int] | None:
        """Classes by number or by name, as numbers."""
        if classes is None:
            return None
        if kind != "class":
            remedy = "say what you want by a prompt" if kind == "text" else "leave the class out"
            raise ConfigError(f"this run is not class-conditional; {remedy}")
        return [self._label(one) for one in _several(classes)]

    def texts(self, prompts: Prompts | None, kind: Kind) -> TextCondition | None:
        """Prompts, each as one row; equal prompts are encoded once."""
        if prompts is None:
            return None
        if kind != "text" or self.encode is None:
            raise ConfigError(f"this run takes no prompts; {self._instead(kind)}")
        wanted = [prompts] if isinstance(prompts, str) else list(prompts)
        if not wanted:
            raise ConfigError("there is no prompt among the prompts; give at least one")
        new = [prompt for prompt in dict.fromkeys(wanted) if prompt not in self.known]
        if new:
            states = self.encode(new)
            self.known.update((prompt, states[row : row + 1]) for row, prompt in enumerate(new))
        texts = conditions.concatenate([self.known[prompt] for prompt in wanted])
        assert isinstance(texts, TextCondition)
        while len(self.known) > REMEMBERED:
            del self.known[next(iter(self.known))]
        return texts

    def name(self, label: int) -> str:
        """The name of a class, or its number where there are no names."""
        return self.class_names[label] if label < len(self.class_names) else str(label)

    def _label(self, label: str | int) -> int:
        """A class by its name, or by its number where no name is a number: typed or given, it is the same."""
        text = label if isinstance(label, str) else str(_number(label))
        if text in self.class_names:
            return self.class_names.index(text)
        numbered = any(name.isdecimal() for name in self.class_names)
        if text.isdecimal() and not numbered and int(text) < (len(self.class_names) or int(text) + 1):
            return int(text)
        near = difflib.get_close_matches(text, self.class_names, n=1)
        remedy = f"did you mean '{near[0]}'?" if near else f"there are {_listed(self.class_names)}"
        raise ConfigError(f"there is no class '{text}'; {remedy}")

    def _instead(self, kind: Kind) -> str:
        if kind == "class":
            return f"it is told classes: give a label, one of {_listed(self.class_names)}"
        if kind == "text":
            return "it knows no text encoder: give the states of texts"
        return "it was trained without captions (condition.kind is 'none'): leave the prompt out"


def _several(labels: Asked) -> Sequence[str | int]:
    """One class or several, however programs hold them: in a list, an array or a tensor."""
    if isinstance(labels, str):
        return [labels]
    several = isinstance(labels, Iterable) and getattr(labels, "ndim", None) != 0
    return list(labels) if several else [_number(labels)]  # type: ignore[arg-type]


def _number(label: Any) -> int:
    """A whole number, numpy's and torch's too."""
    try:
        return operator.index(label)
    except TypeError:
        raise ConfigError(f"a class is a name or a whole number, not {label!r}") from None


def _listed(names: Sequence[str], most: int = 12) -> str:
    if not names:
        return "the numbers of its classes"
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
