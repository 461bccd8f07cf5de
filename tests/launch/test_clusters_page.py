"""What docs/clusters.md tells people to write and to type exists, and means what it says."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from atoll import config
from atoll.cli.options import app
from atoll.storage.store import check_address

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "clusters.md").read_text(encoding="utf-8")
FENCED = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, flags=re.DOTALL | re.MULTILINE)
YAML = dict(zip(("sky", "kubernetes", "ray"), (text for name, text in FENCED if name == "yaml"), strict=True))
BLOCKS = {name: yaml.safe_load(text) for name, text in YAML.items()}


def typed():
    """Every command line of `atoll` on the page, in blocks, in sentences and in YAML."""
    blocks = [text.replace("\\\n", " ") for language, text in FENCED if not language]
    lines = [line.strip() for block in blocks for line in block.splitlines()]
    lines += re.findall(r"`(atoll [^`]+)`", PAGE)
    lines += [BLOCKS["sky"]["run"]]
    lines += [BLOCKS["kubernetes"]["spec"]["template"]["spec"]["containers"][0]["command"][-1]]
    found = [re.search(r"\batoll (?!\[).*", line) for line in lines if "pip install" not in line]
    return [shlex.split(one[0])[1:] for one in found if one]


def test_every_command_line_is_one():
    """A command that there is, options that it has, settings that a recipe takes."""
    program: Any = typer.main.get_command(app)
    assert len(typed()) >= 6
    for words in typed():
        known = program.commands[words[0]]
        options = {name for parameter in known.params for name in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= options, words
        sets = [words[place + 1] for place, word in enumerate(words) if word == "--set"]
        loaded = config.load(ROOT / "recipes" / "fashion.toml", sets)
        if loaded.launch.store:
            check_address(loaded.launch.store)


def test_every_key_of_launch_on_the_page_exists():
    keys = set(re.findall(r"launch\.(\w+)", PAGE))
    assert keys and keys <= config.LaunchConfig.model_fields.keys()


@pytest.mark.parametrize("name", ["sky", "kubernetes"])
def test_they_are_about_ten_lines(name):
    assert len(YAML[name].splitlines()) <= 10


def test_kubernetes_numbers_its_pods():
    spec = BLOCKS["kubernetes"]["spec"]
    assert spec["completionMode"] == "Indexed" and spec["completions"] == spec["parallelism"]
    pod = spec["template"]["spec"]
    assert pod["restartPolicy"] == "Never", "which backoffLimitPerIndex demands"
    mounted = {mount["name"] for one in pod["containers"] for mount in one["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod["volumes"]}


def test_the_cluster_of_spot_machines_is_one_to_ray():
    """By Ray's own schema; and its image has a Python that we run on."""
    from ray.autoscaler._private.util import prepare_config, validate_config

    validate_config(prepare_config(BLOCKS["ray"]))
    version = re.search(r"-py3(\d+)-", BLOCKS["ray"]["docker"]["image"])
    wanted = re.search(
        r'requires-python = ">=3\.(\d+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    )
    assert version and wanted and int(version[1]) >= int(wanted[1])


def test_ray_job_submit_has_these_options():
    line = next(line for line in PAGE.splitlines() if line.startswith("ray job submit"))
    from ray.dashboard.modules.job import cli

    known = [option for parameter in cli.submit.params for option in parameter.opts]
    options = re.findall(r"--[a-z-]+", line.split(" -- ")[0])
    assert options and set(options) <= set(known)
