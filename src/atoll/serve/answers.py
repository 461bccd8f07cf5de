"""Samples as bytes: pictures that say what they are, arrays, sound, JSON."""

import base64
import io
import wave
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from atoll.errors import ConfigError
from atoll.sampling import gallery
from atoll.sampling.request import Request
from atoll.serve import schema
from atoll.serve.models import Model
from atoll.serve.tickets import Made, Progress, Provenance, Ticket

SHOWN = 16
"""At most so many samples are shown as they form."""
LOUDEST = 32767


def pixels(model: Model, x_0: torch.Tensor) -> NDArray[np.uint8]:
    """A picture of each sample; whoever has an autoencoder is called in the model's thread."""
    if model.contents is None:
        raise ConfigError("nobody knows what these samples look like; ask for format 'npz' or 'json'")
    return gallery.to_pixels(x_0, model.contents)


def about(ticket: Ticket, made: Made, index: int) -> dict[str, str]:
    """What one sample says of itself."""
    expert = str(int(made.shares[index].argmax()))
    return {
        **ticket.request.about(index),
        "expert": expert,
        "strategy": made.strategy,
        "model": ticket.model.name,
    }


def png(shown: NDArray[np.uint8], about: dict[str, str], size: tuple[int, int] | None = None) -> bytes:
    """One picture as a file."""
    image, out = gallery.picture(shown), io.BytesIO()
    if size is not None and size != image.size:
        image = image.resize(size, Image.Resampling.LANCZOS)
    image.save(out, format="PNG", pnginfo=gallery.described(about))
    return out.getvalue()


def sheet(ticket: Ticket, made: Made, shown: NDArray[np.uint8]) -> bytes:
    """The picture of one sample, or a grid of several."""
    if len(shown) == 1:
        return png(shown[0], about(ticket, made, 0))
    out = io.BytesIO()
    gallery.grid(shown, made.shares.argmax(1).tolist()).save(out, format="PNG")
    return out.getvalue()


def npz(model: Model, made: Made) -> bytes:
    """Arrays: samples as networks see them, in the unit of the data, and who made them."""
    arrays: dict[str, Any] = {"samples": made.x_0.numpy(), "shares": made.shares}
    if model.contents is not None:
        arrays["values"] = gallery.to_values(made.x_0, model.contents)
    if made.provenance is not None:
        arrays["times"] = np.array(made.provenance.times, np.float32)
        arrays |= {"weights": made.provenance.weights, "disagreement": made.provenance.disagreement}
        arrays["moved"] = made.provenance.moved
    out = io.BytesIO()
    np.savez(out, **arrays)
    return out.getvalue()


def check_wav(model: Model, request: Request) -> None:
    """Refuse, before any work is done, what cannot be heard."""
    if len(model.shape) != 2:
        raise ConfigError(f"samples of shape {list(model.shape)} cannot be heard; ask for format 'npz'")
    if request.num != 1:
        raise ConfigError("a wav holds one sample; ask for num 1, or for format 'npz'")


def wav(model: Model, made: Made, rate: int) -> bytes:
    """One series as sound, 16 bits; what is louder than 1 is turned down as a whole."""
    values = made.x_0.numpy() if model.contents is None else gallery.to_values(made.x_0, model.contents)
    loud = values[0] / max(1.0, float(np.abs(values[0]).max()))
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(loud.shape[0])
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(np.rint(loud.T * LOUDEST).astype("<i2").tobytes())
    return out.getvalue()


def as_json(ticket: Ticket, made: Made, shown: NDArray[np.uint8] | None) -> schema.SamplesAnswer:
    """All of it; pictures where `shown` has them, numbers where samples are not pictures."""
    return schema.SamplesAnswer(
        id=ticket.id,
        model=ticket.model.name,
        kind=ticket.model.kind,
        strategy=made.strategy,
        certainty=made.certainty,
        steps=ticket.request.settings.steps,
        seconds=round(made.seconds, 6),
        samples=[_one(ticket, made, index, shown) for index in range(ticket.request.num)],
        provenance=None if made.provenance is None else _way(made.provenance),
    )


def _one(ticket: Ticket, made: Made, index: int, shown: NDArray[np.uint8] | None) -> schema.OneSample:
    seed, number = ticket.request.origin(index)
    return schema.OneSample(
        index=index,
        seed=seed,
        number=number,
        asked=ticket.request.asked(index),
        expert=int(made.shares[index].argmax()),
        shares=_numbers(made.shares[index]),
        png=None if shown is None else b64(png(shown[index], about(ticket, made, index))),
        values=_values(ticket.model, made.x_0[index : index + 1]),
    )


def _values(model: Model, x_0: torch.Tensor) -> list[Any] | None:
    """The numbers of what is no picture."""
    if model.kind not in ("series", "numbers"):
        return None
    values = x_0.numpy() if model.contents is None else gallery.to_values(x_0, model.contents)
    return _numbers(values[0], 9)


def _way(way: Provenance) -> schema.Way:
    return schema.Way(
        times=list(way.times),
        weights=_numbers(way.weights.swapaxes(0, 1)),
        disagreement=_numbers(way.disagreement.T),
        moved=_numbers(way.moved),
    )


def progress(ticket: Ticket, event: Progress) -> dict[str, Any]:
    """One event of a stream; previews are of the first samples."""
    facts: dict[str, Any] = {"step": event.step, "steps": event.steps, "done": event.done}
    if event.preview is not None and event.shares is not None:
        facts["shares"] = _numbers(event.shares[:SHOWN], 4)
        if ticket.model.contents is not None:
            shown = gallery.to_preview(event.preview[:SHOWN], ticket.model.contents)
            facts["previews"] = [b64(png(one, {})) for one in shown]
    return facts


def _numbers(values: NDArray[np.float32], digits: int = 6) -> list[Any]:
    """Numbers as JSON has them, which knows no infinity."""
    numbers: list[Any] = np.nan_to_num(values.astype(float)).round(digits).tolist()
    return numbers


def b64(content: bytes) -> str:
    """Bytes as text."""
    return base64.b64encode(content).decode("ascii")
