"""Which parts may be asked: a rule over their cards, as `licence in {cc0, cc-by} and not medical in tags`.

A rule is read by the few lines below and by nothing else: it has words, sets, `and`, `or`, `not` and
brackets, neither names of Python nor calls. What a card does not say matches nothing.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from atoll.config import RunConfig
from atoll.errors import ConfigError
from atoll.runs.components import Card

LONGEST = 2000
"""Characters of a rule."""
DEEPEST = 50
"""Brackets and negations inside each other."""
Field = Literal["licence", "owner"]
FIELDS: tuple[Field, ...] = ("licence", "owner")
KEYWORDS = frozenset({"and", "or", "not", "in", "tags", *FIELDS})
TOKEN = re.compile(r"""\s*(?:(==|!=|[(){},])|"([^"\\\n]*)"|'([^'\\\n]*)'|([A-Za-z0-9][A-Za-z0-9._+@-]*))""")
EXAMPLE = 'write one as "licence in {cc0, cc-by} and not medical in tags"'


@dataclass(frozen=True)
class OneOf:
    """Whether a field of a card is one of some words, or a tag is among its tags."""

    field: Literal["licence", "owner", "tags"]
    words: tuple[str, ...]

    def allows(self, card: Card) -> bool:
        """Whether this card passes; letters are alike, large or small."""
        wanted = {word.lower() for word in self.words}
        held = card.tags if self.field == "tags" else (getattr(card, self.field) or "",)
        return any(value and value.lower() in wanted for value in held)

    def __str__(self) -> str:
        quoted = [f'"{word}"' for word in self.words]
        return f"{quoted[0]} in tags" if self.field == "tags" else f"{self.field} in {{{', '.join(quoted)}}}"


@dataclass(frozen=True)
class Not:
    """The opposite of a rule."""

    rule: "Rule"

    def allows(self, card: Card) -> bool:
        """Whether this card does not pass the rule inside."""
        return not self.rule.allows(card)

    def __str__(self) -> str:
        return f"not ({self.rule})"


@dataclass(frozen=True)
class Several:
    """Rules of which all must hold, or any."""

    word: Literal["and", "or"]
    rules: tuple["Rule", ...]

    def allows(self, card: Card) -> bool:
        """Whether this card passes."""
        return (all if self.word == "and" else any)(rule.allows(card) for rule in self.rules)

    def __str__(self) -> str:
        return f" {self.word} ".join(f"({rule})" for rule in self.rules)


Rule = OneOf | Not | Several


def parse(text: str) -> Rule:
    """The rule that a text says; ConfigError in one line where it says none."""
    if len(text) > LONGEST:
        raise ConfigError(f"a rule has at most {LONGEST} characters, not {len(text)}")
    reader = _Reader(_tokens(text))
    rule = reader.either(0)
    if reader.rest:
        raise reader.unexpected()
    return rule


def _tokens(text: str) -> list[tuple[str, bool]]:
    """The words of a rule, and whether each was in quotes."""
    tokens, at = list[tuple[str, bool]](), 0
    while text[at:].strip():
        match = TOKEN.match(text, at)
        if match is None:
            raise ConfigError(f"{text[at:].strip()[:20]!r} says nothing in a rule; {EXAMPLE}")
        sign, double, single, word = match.groups()
        quoted = double if double is not None else single
        tokens.append((quoted, True) if quoted is not None else (sign or word, False))
        at = match.end()
    return tokens


class _Reader:
    """Reads tokens from the left; one method for each kind of phrase."""

    def __init__(self, tokens: Sequence[tuple[str, bool]]) -> None:
        self.rest = list(tokens)

    def either(self, depth: int) -> Rule:
        """Rule := every (or every)*."""
        return self._several("or", depth)

    def _several(self, word: Literal["and", "or"], depth: int) -> Rule:
        def one() -> Rule:
            return self._several("and", depth) if word == "or" else self._single(depth)

        rules = [one()]
        while self._next(word):
            rules.append(one())
        return rules[0] if len(rules) == 1 else Several(word, tuple(rules))

    def _single(self, depth: int) -> Rule:
        """Single := not single | (rule) | test."""
        if depth > DEEPEST:
            raise ConfigError(f"a rule has at most {DEEPEST} brackets inside each other")
        if self._next("not"):
            return Not(self._single(depth + 1))
        if self._next("("):
            rule = self.either(depth + 1)
            self._require(")")
            return rule
        for field in FIELDS:
            if self._next(field):
                return self._of_field(field)
        word = self._word()
        negated = self._next("not")
        self._require("in")
        self._require("tags")
        test = OneOf("tags", (word,))
        return Not(test) if negated else test

    def _of_field(self, field: Field) -> Rule:
        """Field == word | field != word | field [not] in {word, …}."""
        for sign in ("==", "!="):
            if self._next(sign):
                test = OneOf(field, (self._word(),))
                return test if sign == "==" else Not(test)
        negated = self._next("not")
        self._require("in")
        self._require("{")
        words = [self._word()]
        while self._next(","):
            words.append(self._word())
        self._require("}")
        test = OneOf(field, tuple(words))
        return Not(test) if negated else test

    def _next(self, sign: str) -> bool:
        """Take a sign or keyword, if it comes next."""
        if self.rest and self.rest[0] == (sign, False):
            self.rest.pop(0)
            return True
        return False

    def _require(self, sign: str) -> None:
        if not self._next(sign):
            raise self.unexpected(f", not '{sign}'")

    def _word(self) -> str:
        """A word that is none of the rule's own; in quotes it may be any."""
        if self.rest:
            word, quoted = self.rest[0]
            if quoted or (word not in KEYWORDS and word[0].isalnum()):
                self.rest.pop(0)
                return word
        raise self.unexpected(", not a word")

    def unexpected(self, wanted: str = "") -> ConfigError:
        """What came instead."""
        where = f"'{self.rest[0][0]}'" if self.rest else "its end"
        return ConfigError(f"a rule has {where} at this place{wanted}; {EXAMPLE}")


def own_card(config: RunConfig) -> Card:
    """The card of experts that a run trained itself: what its recipe says in [component]."""
    return Card.model_validate({key: getattr(config.component, key) for key in Card.model_fields})


def allowed(cards: dict[int, Card], rule: Rule | None, user: str | None = None) -> list[int]:
    """The parts that a user may have asked: open to them, and within the rule; an error if there is none."""
    open_to = {number: card for number, card in cards.items() if not card.access or user in card.access}
    numbers = [number for number, card in open_to.items() if rule is None or rule.allows(card)]
    if not numbers:
        licences = ", ".join(sorted({card.licence for card in cards.values()}))
        raise ConfigError(f"no part may be asked by this rule; the licences here are: {licences}")
    return numbers
