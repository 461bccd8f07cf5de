"""From a run here to one that strangers can work on: settings without places, files from outside by name."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atoll.config import EMBEDDED, OWN_FEATURES, LaunchConfig, RunConfig, validate
from atoll.errors import ConfigError
from atoll.net.protocol import MOST_FILES
from atoll.net.shelves import SOURCE
from atoll.runs import Run, graph, safe_name

PINS = {"precision": "float32", "compile": "off"}
"""What every machine has, where the recipe leaves it to the machine."""
JUDGED_BY = ("classifier", "pixels")
"""Features that need no model from elsewhere."""


@dataclass(frozen=True)
class Published:
    """What a stranger is told a run is, and the files that it reads from outside, by their names in it."""

    config: RunConfig
    files: Mapping[str, Path]


def published(run: Run) -> Published:
    """A run as strangers see it; what cannot leave this machine must be finished here before."""
    _check(run)
    config = pinned(run.config).model_copy(update={"launch": LaunchConfig()})
    first = [node for node in graph.made(run) if not node.inputs and not node.kind.adopts]
    source = config.data.source
    if source in EMBEDDED:
        return Published(config, {})
    files = {} if all(node.stage.done for node in first) else dict(_outside(source))
    return Published(_reading(config, f"{SOURCE}/{Path(source).name}"), files)


def located(config: RunConfig, folder: Path) -> RunConfig:
    """A published run's settings for a machine that has its files below a folder."""
    source = config.data.source
    if source in EMBEDDED:
        return config
    name = Path(source).name  # whatever a stranger has published, it is read from this folder
    return _reading(config, str(folder / SOURCE / name))


def _reading(config: RunConfig, source: str) -> RunConfig:
    return config.model_copy(update={"data": config.data.model_copy(update={"source": source})})


def pinned(config: RunConfig) -> RunConfig:
    """The same run with the arithmetic named that machines would choose for themselves, and no trackers."""
    tree = config.model_dump(mode="json")
    # Models that encode are not asked by workers, and what they made must stay as it is known.
    return validate({key: tree[key] if key == "encode" else _pinned(tree[key]) for key in tree}, config.name)


def _pinned(tree: Any) -> Any:
    if isinstance(tree, Mapping):
        pins = {key: value for key, value in PINS.items() if tree.get(key) == "auto"}
        silent: dict[str, Any] = {"tracking": []} if "tracking" in tree else {}
        return {**{key: _pinned(value) for key, value in tree.items()}, **pins, **silent}
    return [_pinned(value) for value in tree] if isinstance(tree, list) else tree


def _check(run: Run) -> None:
    """What workers could not have must be finished: models of encoders, and parts of other runs."""
    config = run.config
    models = [config.encode.autoencoder, config.encode.text]
    if config.encode.features not in OWN_FEATURES:
        models.append(config.encode.features)
    if any(models) and not run.data.done:
        raise ConfigError("[encode] needs models, which workers do not download; `atoll prepare` here first")
    judge = config.evaluate
    elsewhere = [name for name in judge.features if name not in JUDGED_BY] + [judge.monolith, judge.lpips]
    if judge.at_end and any([*elsewhere, judge.clip]):
        raise ConfigError(
            "[evaluate] at_end needs models that workers do not have; leave it out and `atoll evaluate`"
        )
    if (config.partition.file or config.partition.like) and not run.partition.done:
        raise ConfigError("[partition] reads what workers do not have; `atoll partition` here first")
    for node in graph.made(run):
        if node.kind.adopts and not node.stage.done:
            node.make()


def _outside(source: str) -> Iterator[tuple[str, Path]]:
    """The files that a source names, as they lie in a run's folder."""
    if source.startswith("hub:"):
        raise ConfigError(
            f"data.source '{source}' is on the Hub, which workers cannot reach; prepare it here"
        )
    path = Path(source).expanduser()
    root = path if path.is_dir() else path.parent
    place = f"{SOURCE}/{path.name}" if path.is_dir() else SOURCE
    files: list[Path] = graph.resolve("atoll.data.identity:find_files")(source)
    labels: list[Path] = graph.resolve("atoll.data.identity:idx_files")(files)[1]
    if len(files) > MOST_FILES:
        raise ConfigError(
            f"data.source '{source}' has {len(files):,} files, and a unit names at most {MOST_FILES:,}; "
            "pack them into tars or Parquet, or `atoll prepare` here first"
        )
    for file in dict.fromkeys([*files, *labels]):
        yield safe_name(f"{place}/{file.relative_to(root).as_posix()}"), file
