"""Names over the columns of a grid: the class or the prompt that was asked for."""

from collections.abc import Sequence

from PIL import Image, ImageDraw, ImageFont

LINES = 3
"""At most so many lines of a name are written."""
SIZE, LEADING = 10, 11


def headed(sheet: Image.Image, names: Sequence[str], gap: int) -> Image.Image:
    """The grid with a name over each of its columns; without names as it was."""
    if not names:
        return sheet
    width = (sheet.width - gap) // len(names)
    font = ImageFont.load_default(SIZE)
    broken = [wrapped(name, width - gap, font) for name in names]
    height = LEADING * max(len(lines) for lines in broken) + gap
    result = Image.new("RGB", (sheet.width, sheet.height + height), "white")
    result.paste(sheet, (0, height))
    canvas = ImageDraw.Draw(result)
    for column, lines in enumerate(broken):
        middle = gap + column * width + (width - gap) // 2
        first = height - LEADING * len(lines)
        for number, line in enumerate(lines):
            canvas.text((middle, first + LEADING * number), line, "black", font, anchor="mt")
    return result


def wrapped(name: str, width: int, font: ImageFont.FreeTypeFont | ImageFont.ImageFont) -> list[str]:
    """A name in lines that are no wider than this; what is longer ends with an ellipsis."""
    lines: list[str] = [""]
    for word in name.split():
        joined = f"{lines[-1]} {word}".strip()
        if font.getlength(joined) <= width:
            lines[-1] = joined
        else:
            lines.append(word)
    lines = [line for line in lines if line] or [""]
    if len(lines) > LINES:
        lines = [*lines[: LINES - 1], " ".join(lines[LINES - 1 :])]
    return [_cut(line, width, font) for line in lines]


def _cut(line: str, width: int, font: ImageFont.FreeTypeFont | ImageFont.ImageFont) -> str:
    if font.getlength(line) <= width:
        return line
    kept = next(
        (count for count in range(len(line), 0, -1) if font.getlength(f"{line[:count]}…") <= width), 0
    )
    return f"{line[:kept]}…"
