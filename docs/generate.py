"""Write the generated parts of README and docs: `make docs`. A test holds them true."""

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from atoll.config import RunConfig, section_of
from atoll.study.settings import StudyConfig

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "atoll"


def rooms() -> str:
    """The rooms and what lies beside them, each with the first line of its docstring."""
    lines = ["src/atoll/"]
    for path in sorted(SOURCE.iterdir(), key=lambda entry: (entry.is_dir(), entry.name)):
        if path.suffix == ".py" and not path.stem.startswith("__"):
            lines.append(_line(path, path.name, 1))
        elif (path / "__init__.py").is_file():
            lines.append(_line(path / "__init__.py", f"{path.name}/", 1))
    return _fenced(lines)


def modules() -> str:
    """A page with every module, room by room."""
    parts = [
        "# Every module",
        "The first line of each, written by `make docs`; [architecture](architecture.md) has the whole.",
    ]
    for room in sorted(folder.parent for folder in SOURCE.glob("*/__init__.py")):
        files = sorted(file for file in room.rglob("*.py") if file.stem != "__init__")
        lines = [_line(file, file.relative_to(room).as_posix(), 0) for file in files]
        parts += [f"## {room.name}/", f"{_idea(room / '__init__.py')}.", _fenced(lines)]
    return "\n\n".join(parts) + "\n"


def _fenced(lines: list[str]) -> str:
    return "```\n" + "\n".join(lines) + "\n```"


def _line(module: Path, name: str, depth: int) -> str:
    return f"{'    ' * depth + name:25} {_idea(module)}"


def _idea(module: Path) -> str:
    """The first line of a docstring, without the full stop."""
    sentence = ast.get_docstring(ast.parse(module.read_text(encoding="utf-8"))) or ""
    return sentence.splitlines()[0].removesuffix(".")


def reference() -> str:
    """Every key of a recipe with its default and its meaning, read off the config."""
    parts = [
        "# Every key of a recipe",
        "Written by `make docs` from `src/atoll/config/`, which is the only place that holds a default.",
        *_sections(RunConfig, "", RunConfig(name="example")),
    ]
    return "\n\n".join(parts) + "\n"


def _sections(model: type[BaseModel], prefix: str, values: BaseModel) -> Iterator[str]:
    title = f"## `[{prefix}]`" if prefix else "## At the top"
    rows, inner = [], []
    for name, field in model.model_fields.items():
        value = getattr(values, name)
        section = section_of(field.annotation)
        if section is not None:
            inner.append((section, f"{prefix}.{name}".lstrip("."), section() if value is None else value))
            continue
        default = "" if field.default is PydanticUndefined else f"`{_toml(value)}`"
        rows.append(f"| `{name}` | {default} | {_cell(field.description or '')} |")
    said = (model.__doc__ or "").strip().splitlines()[0]
    yield "\n".join([title, "", said, "", "| key | default | meaning |", "|---|---|---|", *rows])
    for section, name, value in inner:
        yield from _sections(section, name, value)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _toml(value: object) -> str:
    if value is None:
        return "unset"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    return str(list(value)) if isinstance(value, tuple) else str(value)


def schema(model: type[BaseModel], title: str) -> str:
    """What editors know a file by: every key with its type, range, default and meaning, as JSON Schema."""
    tree = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **model.model_json_schema(),
        "title": title,
    }
    return json.dumps(_without_section_defaults(tree), indent=2, ensure_ascii=False) + "\n"


def _without_section_defaults(node: Any) -> Any:
    """The default of a section is that of its keys, which say it themselves."""
    if isinstance(node, list):
        return [_without_section_defaults(one) for one in node]
    if not isinstance(node, dict):
        return node
    dropped = isinstance(node.get("default"), dict) and "properties" not in node
    return {
        key: _without_section_defaults(one) for key, one in node.items() if not (dropped and key == "default")
    }


def schemas() -> dict[Path, str]:
    """The schema of every kind of file that a person writes, by where it lies."""
    folder = ROOT / "docs"
    return {
        folder / "recipe.schema.json": schema(RunConfig, "A recipe of Atoll"),
        folder / "study.schema.json": schema(StudyConfig, "A study of Atoll"),
    }


def readme() -> str:
    """README with its tree as the rooms are now."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return re.sub(
        r"(<!-- tree -->\n).*?(\n<!-- /tree -->)", lambda m: m[1] + rooms() + m[2], text, flags=re.DOTALL
    )


def pages() -> dict[str, str]:
    """The pages of docs/ that are all generated, by name."""
    return {"reference.md": reference(), "modules.md": modules()}


def main() -> None:
    """Write all."""
    for path, text in schemas().items():
        path.write_text(text, encoding="utf-8")
    (ROOT / "README.md").write_text(readme(), encoding="utf-8")
    for name, text in pages().items():
        (ROOT / "docs" / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
