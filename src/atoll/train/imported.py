"""An expert that others trained, brought in as a finished stage."""

import tomllib
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from atoll.config import NetworkConfig
from atoll.data import hub
from atoll.data.hub import HUB
from atoll.errors import ConfigError
from atoll.models import convert, foreign
from atoll.models.checkpoint import Blueprint
from atoll.runs import Stage, digest, file_digest
from atoll.runs.records import ImportedContents
from atoll.train import jobs


def bring_in(
    source: str, folder: Path, mapping: Path | None, settings: Iterable[str], *, start_over: bool = False
) -> Stage[ImportedContents]:
    """Convert a foreign checkpoint into the folder of an expert."""
    facts, origin = read_facts(settings), _locate(source)
    tensors, blueprint = convert.convert(origin, mapping, facts)
    files = [origin] if origin.is_file() else sorted(origin.rglob("*.safetensors"))
    made_from = {
        "checkpoint": digest([file_digest(file) for file in files]),
        "settings": digest(blueprint.model_dump(mode="json", exclude_defaults=True)),
    }
    stage = Stage(folder, ImportedContents)
    if not stage.begin(made_from, start_over):
        return stage
    contents = partial(
        ImportedContents,
        recipe=recipe_lines(folder, blueprint),
        parameters=sum(value.numel() for value in tensors.values()),
    )
    jobs.publish(stage, blueprint, tensors, made_from, contents)
    return stage


def read_facts(settings: Iterable[str]) -> foreign.Facts:
    """What is said with --set of a checkpoint."""
    tree: dict[str, Any] = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals:
            raise ConfigError(f"--set {setting}: write key=value, for example heads=16")
        try:
            tree[key.strip()] = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            tree[key.strip()] = text.strip()
    try:
        return foreign.Facts.model_validate(tree)
    except ValidationError as error:
        problem = error.errors()[0]
        known = ", ".join(foreign.Facts.model_fields)
        raise ConfigError(f"--set {problem['loc'][0]}: {problem['msg'].lower()} (known: {known})") from None


def recipe_lines(folder: Path, blueprint: Blueprint) -> str:
    """What a recipe must say to start experts from this one."""
    network = blueprint.network.model_dump(mode="json", exclude_defaults=True, exclude={"size"})
    for key in ("width", "depth", "heads", "patch"):
        network[key] = getattr(blueprint.network, key)
    settings = {key: network[key] for key in NetworkConfig.model_fields if key in network}
    settings |= {"path": blueprint.objective.path, "prediction": blueprint.objective.prediction}
    lines = [f"{key} = {_toml(value)}" for key, value in settings.items()]
    return "\n".join(["[expert]", f'init = "{folder}"', *lines])


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    return str(list(value) if isinstance(value, tuple) else value)


def _locate(source: str) -> Path:
    """A path, or what is fetched from the Hub."""
    if not source.startswith(HUB):
        return Path(source)
    return hub.download(source, patterns=("config.json", "*.safetensors", "transformer/*"))
