"""Who may have which parts asked: a token for each user, and a rule over the cards of parts."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import Field, ValidationError

from atoll.config import Section, explain, read_toml
from atoll.errors import ConfigError
from atoll.runs import rights
from atoll.runs.components import Card
from atoll.runs.rights import Rule

EVERYBODY = ""
"""The user who has no token of their own: whoever knows the server's, or comes where there is none."""


class UserConfig(Section):
    """One user: [users.NAME]."""

    token: str = Field(min_length=8)
    """What they send: Authorization: Bearer TOKEN."""
    allow: str | None = None
    """A rule over cards, as "licence in {cc0, cc-by}"; by default all that are open to them."""


class PoliciesConfig(Section):
    """A file of users."""

    users: dict[str, UserConfig] = Field(min_length=1)
    everybody: str | None = None
    """The rule for whoever has no token of their own."""


@dataclass(frozen=True)
class Policies:
    """Tokens of users, and the rules for them; without any, only access lists of parts count."""

    tokens: Mapping[str, str] = field(default_factory=dict)
    """The user of each token."""
    rules: Mapping[str, Rule] = field(default_factory=dict)

    def allowed(self, cards: Mapping[int, Card], user: str) -> list[int]:
        """The parts that a user may have asked; an error if there is none."""
        return rights.allowed(dict(cards), self.rules.get(user), user or None)


def read(path: Path) -> Policies:
    """The policies in a TOML file; every rule is read now, so that none fails when it is needed."""
    try:
        config = PoliciesConfig.model_validate(read_toml(path, "there is no such file of users"))
    except ValidationError as error:
        raise ConfigError(f"{path}: {explain(error, PoliciesConfig)}") from None
    tokens = {user.token: name for name, user in config.users.items()}
    if len(tokens) < len(config.users) or EVERYBODY in config.users:
        raise ConfigError(f"{path} gives two users one token, or a user no name; every user has their own")
    texts = {EVERYBODY: config.everybody, **{name: user.allow for name, user in config.users.items()}}
    return Policies(tokens, {name: rights.parse(text) for name, text in texts.items() if text is not None})
