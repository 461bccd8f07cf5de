import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from atoll.config import SampleConfig
from atoll.sampling.request import OPENING
from atoll.serve.schema import ImagesRequest, SamplesRequest


def test_everything_that_a_sampler_can_do_can_be_asked_for():
    left = {
        "batch",
        "prompts",
        "guidances",
        "extrapolations",
    }  # the server's own matter; said by `prompt`; chosen by the run
    assert set(SampleConfig.model_fields) - set(OPENING) - left <= set(SamplesRequest.model_fields)
    assert {"label", "prompt", "cluster", "seeds"} <= set(SamplesRequest.model_fields)


@pytest.mark.parametrize("kind", [SamplesRequest, ImagesRequest])
def test_examples_are_what_they_are_examples_of(kind):
    for example in kind.model_config["json_schema_extra"]["examples"]:
        kind.model_validate(example)


@settings(max_examples=40)
@given(
    st.dictionaries(
        st.sampled_from(sorted(SamplesRequest.model_fields)),
        st.none() | st.text() | st.floats() | st.lists(st.integers()),
    )
)
def test_whatever_is_said_is_understood_or_refused(said):
    try:
        SamplesRequest.model_validate(said)
    except ValidationError as error:
        assert error.errors()
