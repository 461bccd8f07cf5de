"""From one TOML file and `--set section.key=value` to a run."""

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from atoll.config.explain import explain
from atoll.config.paths import anchored
from atoll.config.run import RunConfig
from atoll.errors import ConfigError


def load(path: Path, overrides: Iterable[str] = (), changes: Mapping[str, Any] | None = None) -> RunConfig:
    """Read a recipe, apply `section.key=value` overrides or a tree of changes, and validate the whole."""
    tree = read_toml(path, "no such recipe; see recipes/ for examples")
    if "recipe" in tree and "budget" in tree:
        raise ConfigError(f"{path} is a study, not a recipe; use `atoll study {path}`")
    tree = anchored(tree, path.parent)
    for override in overrides:
        _assign(tree, override)
    tree = merged(tree, plain(changes or {}))
    return validate(anchored(tree, Path.cwd()), str(path))


def plain(value: Any) -> Any:
    """What Python programs write as what TOML has: paths as text, tuples as lists."""
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return str(value) if isinstance(value, Path) else value


def read_toml(path: Path, missing: str) -> dict[str, Any]:
    """The tree in a TOML file; `missing` is what to say where there is none."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: {missing}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read ({error}); give a TOML file") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not TOML: {error}") from None


def assignments(overrides: Iterable[str]) -> dict[str, Any]:
    """The tree that `key=value` settings alone make."""
    tree: dict[str, Any] = {}
    for override in overrides:
        _assign(tree, override)
    return tree


def of_section(section: str, overrides: Iterable[str]) -> dict[str, Any]:
    """Settings of one section, each written with its name, as in a recipe, or without."""
    tree: dict[str, Any] = {}
    for override in overrides:
        key = override.partition("=")[0].strip()
        first, dot, _ = key.partition(".")
        if dot and first != section:
            raise ConfigError(f"--set {override}: this command takes keys of [{section}] alone")
        _assign(tree, override.strip().removeprefix(f"{section}."))
    return tree


def merged(tree: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A tree with the values of another put in their places."""
    result = dict(tree)
    for key, value in changes.items():
        inner = result.get(key)
        deeper = isinstance(inner, Mapping) and isinstance(value, Mapping)
        result[key] = merged(inner or {}, value) if deeper else value
    return result


def validate(tree: Mapping[str, Any], origin: str) -> RunConfig:
    """Turn a tree of plain values into a run, or say in one line what is wrong with it."""
    try:
        return RunConfig.model_validate(tree)
    except ValidationError as error:
        raise ConfigError(f"{origin}: {explain(error, RunConfig)}") from None


def _assign(tree: dict[str, Any], override: str) -> None:
    """Apply one `section.key=value`; the value is TOML, or a bare word for a string."""
    key, equals, text = override.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set {override}: write section.key=value, for example expert.steps=500")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    *sections, leaf = key.strip().split(".")
    for section in sections:
        tree = tree.setdefault(section, {})
        if not isinstance(tree, dict):
            raise ConfigError(f"--set {override}: {section} is a value, not a section")
    tree[leaf] = value
