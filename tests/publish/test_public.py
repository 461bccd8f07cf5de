import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll import config
from atoll.publish import public
from atoll.runs.records import ExpertContents, ImportedContents

SECRETS = [
    "data.source='/data/secret/pictures'",
    "data.source='s3://secret-bucket/pictures'",
    "data.source='secret/tars/*.tar'",
    "data.source='~/secret/x.npz'",
    "data.source='hub:/data/secret/pictures'",
    "data.source='hub:~/secret/pictures'",
    "encode.features='/data/secret/dino'",
    "encode.text='./secret/clip'",
    "encode.autoencoder='../secret/a/vae'",
    "launch.store='s3://secret-bucket/run'",
    "launch.slurm={account = 'secret'}",
    "launch.resources={secret = 1}",
    "expert.init='/data/secret/start'",
    "expert.override=[{clusters=[0], init='/data/secret/start'}]",
    "expert.adapter={rank = 2, base = '/data/secret/start'}",
    "expert.override=[{clusters=[0], adapter={rank = 2, base = '/data/secret/network'}}]",
    "partition.like='runs/secret/x'",
    "evaluate.monolith='runs/secret'",
    "evaluate.lpips='/data/secret/alex.npz'",
    "evaluate.clip='/data/secret/clip'",
    "evaluate.features=['/data/secret/dino']",
]


def resolved(*settings: str) -> config.RunConfig:
    return config.validate(config.assignments(["name=a", *settings]), "a test")


@pytest.mark.parametrize("setting", SECRETS)
def test_no_place_bucket_or_account_is_published(setting):
    told = json.dumps(public.config(resolved(setting)).model_dump(mode="json"))
    assert "secret" not in told
    config.validate(json.loads(told), "what was published can be read again")


def test_a_partition_from_a_file_is_told_as_one_that_can_be_read():
    told = public.config(resolved("partition.method=file", "partition.file='secret/a.csv'"))
    assert "secret" not in json.dumps(told.model_dump(mode="json"))


@pytest.mark.parametrize("name", ["fashion-5k", "hub:owner/name"])
def test_what_everybody_can_have_keeps_its_name(name):
    assert public.source(name) == name


def test_models_of_the_hub_keep_their_names():
    assert public.model("facebook/dinov2-base") == "facebook/dinov2-base"
    assert public.model("pixels") == "pixels"
    assert public.model(None) is None


@given(st.text(alphabet="ab/.~:s3*", min_size=1, max_size=20))
def test_a_source_never_shows_a_folder(name):
    assert "/" not in public.source(name) or name.startswith("hub:")
    assert "/" not in public.source(f"hub:/{name}")


def test_a_network_says_how_long_it_was_trained_and_not_from_where():
    imported = ImportedContents(steps=3, recipe="init = '/x'", parameters=7)
    assert public.contents(imported) == ImportedContents(steps=3, recipe="", parameters=7)
    expert = ExpertContents(steps=3, rows=4)
    assert public.contents(expert) == expert
