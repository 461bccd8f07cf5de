import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll import config
from atoll.errors import ConfigError
from atoll.runs import rights
from atoll.runs.components import Card
from atoll.runs.rights import Not, OneOf, Several

ALICE = Card(owner="alice", licence="cc-by", tags=("medical", "grey"))
BOB = Card(owner="bob", licence="cc0")
NOBODY = Card()


@pytest.mark.parametrize(
    ("text", "passes"),
    [
        ("licence in {cc0, cc-by}", [ALICE, BOB]),
        ("licence == cc0", [BOB]),
        ("licence != cc0", [ALICE, NOBODY]),
        ("licence not in {cc0, unknown}", [ALICE]),
        ("owner == alice or owner == bob", [ALICE, BOB]),
        ("medical in tags", [ALICE]),
        ("medical not in tags and owner in {alice, bob}", [BOB]),
        ("not (licence == cc0 or medical in tags)", [NOBODY]),
        ("LICENCE".lower() + " == 'CC-BY'", [ALICE]),
        ('owner == "and"', []),
        ("owner == alice or owner == bob and medical in tags", [ALICE]),  # `and` binds closer
    ],
)
def test_a_rule_means_what_it_says(text, passes):
    rule = rights.parse(text)
    assert [card for card in (ALICE, BOB, NOBODY) if rule.allows(card)] == passes


@pytest.mark.parametrize(
    "text",
    [
        "",
        "licence",
        "licence in",
        "licence in {}",
        "licence in {cc0,}",
        "licence in cc0",
        "licence = cc0",
        "cc0",
        "medical in owners",
        "(licence == cc0",
        "licence == cc0)",
        "licence == cc0 licence == cc0",
        "not",
        "and in tags",
        "__import__('os').system('x') in tags",
        "licence == cc0; drop",
        "x" * 3000,
        "(" * 200 + "licence == cc0" + ")" * 200,
        "not " * 200 + "licence == cc0",
        'licence == "a\nb"',
        "licence == \\u0041",
    ],
)
def test_whatever_is_no_rule_is_refused_in_one_line(text):
    with pytest.raises(ConfigError) as refused:
        rights.parse(text)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 300


@given(st.text(max_size=200))
def test_any_text_is_a_rule_or_is_refused(text):
    try:
        rule = rights.parse(text)
    except ConfigError:
        return
    assert rule.allows(ALICE) in (True, False)


WORDS = st.text(st.characters(blacklist_characters='"\\\n', max_codepoint=0x2FF), max_size=12)
TESTS = st.one_of(
    st.builds(
        OneOf, st.sampled_from(["licence", "owner"]), st.lists(WORDS, min_size=1, max_size=3).map(tuple)
    ),
    st.builds(lambda word: OneOf("tags", (word,)), WORDS),
)
RULES = st.recursive(
    TESTS,
    lambda inner: st.one_of(
        st.builds(Not, inner),
        st.builds(
            Several, st.sampled_from(["and", "or"]), st.lists(inner, min_size=2, max_size=3).map(tuple)
        ),
    ),
    max_leaves=6,
)
CARDS = st.builds(Card, owner=st.none() | WORDS, licence=WORDS, tags=st.lists(WORDS, max_size=2).map(tuple))


@given(RULES, CARDS)
def test_a_rule_that_is_written_down_is_read_as_the_same(rule, card):
    """Brackets are kept, so that only their nesting may differ; every card is judged alike."""
    assert rights.parse(str(rule)).allows(card) == rule.allows(card)


@given(RULES, RULES, CARDS)
def test_words_between_rules_are_those_of_logic(left, right, card):
    a, b = left.allows(card), right.allows(card)
    assert rights.parse(f"({left}) and ({right})").allows(card) == (a and b)
    assert rights.parse(f"({left}) or ({right})").allows(card) == (a or b)
    assert rights.parse(f"not ({left})").allows(card) == (not a)


def test_access_lists_come_before_rules():
    secret = Card(licence="cc0", access=("carol",))
    cards = {0: ALICE, 1: BOB, 2: secret}
    rule = rights.parse("licence == cc0")
    assert rights.allowed(cards, None) == [0, 1]
    assert rights.allowed(cards, rule, "carol") == [1, 2]
    assert rights.allowed(cards, rule, "dave") == [1]
    with pytest.raises(ConfigError, match="no part may be asked .* cc-by, cc0"):
        rights.allowed(cards, rights.parse("licence == mit"))


def test_own_experts_have_the_card_of_the_recipe():
    tree = {
        "name": "x",
        "component": {"owner": "alice", "licence": "mit", "tags": ["a"], "about": "pictures"},
    }
    card = rights.own_card(config.validate(tree, "a test"))
    assert card == Card(owner="alice", licence="mit", tags=("a",), about="pictures")
