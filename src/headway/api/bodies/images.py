"""The body of `/v1/images/generations`: OpenAI's, and how a diffusion model is to make the image."""

from __future__ import annotations

import re
import secrets

import msgspec

from headway.api.bodies.fields import Range, read_fields
from headway.api.bodies.known import IMAGES
from headway.core.errors import InvalidRequest

#: As in OpenAI's reference. Each image is a request of its own.
IMAGES_AT_ONCE = Range(1, 10)
MOST_PROMPT_CHARACTERS = 32_000
#: Unless it says nothing, or leaves it to the model.
SIZE = re.compile(r"([1-9][0-9]{0,4})x([1-9][0-9]{0,4})")
_OWN_SIZE = "auto"


class ImagesBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """`POST /v1/images/generations`.

    size             WIDTHxHEIGHT in pixels, or `auto`: the model's own
    seed             of the first image; the others have the seeds after it
    steps            updates of the latent; more take longer
    guidance         how far to follow the prompt rather than `negative_prompt`, or no prompt; up to 1 not at all, and
                     then each update is evaluated once in place of twice
    partial_images   of a stream: pictures of the image on the way, at most one after each update but the last
    deadline_ms      from arrival to the complete answer; what cannot be ready by then is refused (422)
    serve_late       with `deadline_ms`: serve it even then
    """

    prompt: str
    model: str | None = None
    n: int | None = None
    size: str | None = None
    seed: int | None = None
    steps: int | None = None
    guidance: float | None = None
    negative_prompt: str | None = None
    response_format: str = "b64_json"
    output_format: str = "png"
    stream: bool = False
    partial_images: int | None = None
    deadline_ms: float | None = None
    serve_late: bool = False
    priority: int = 0

    @property
    def count(self) -> int:
        return self.n or 1

    def pixels(self) -> tuple[int, int]:
        """Width and height; 0 and 0 for the model's own. Raises InvalidRequest."""
        if self.size in (None, _OWN_SIZE):
            return 0, 0
        found = SIZE.fullmatch(self.size or "")
        if not found:
            raise InvalidRequest("size", f"size is {self.size!r}; it is WIDTHxHEIGHT in pixels, or {_OWN_SIZE}")
        return int(found[1]), int(found[2])

    def seeds(self) -> list[int]:
        """One for each image."""
        first = secrets.randbits(32) if self.seed is None else self.seed
        return [first + place for place in range(self.count)]


def read_images(data: bytes) -> tuple[ImagesBody, list[str]]:
    """The body, and the fields that were accepted without effect. Raises InvalidRequest."""
    body, ignored = read_fields(ImagesBody, data, IMAGES)
    if body.n is not None:
        IMAGES_AT_ONCE.check("n", body.n)
    if body.response_format != "b64_json":
        said = f"response_format is {body.response_format!r}"
        raise InvalidRequest("response_format", f"{said}; images are sent as b64_json, and none is kept for a url")
    if body.output_format != "png":
        raise InvalidRequest("output_format", f"output_format is {body.output_format!r}; images are sent as png")
    if body.partial_images and not body.stream:
        raise InvalidRequest("partial_images", "partial_images requires stream: true")
    if body.serve_late and body.deadline_ms is None:
        raise InvalidRequest("serve_late", "serve_late has an effect only with deadline_ms, and there is none")
    for field in ("prompt", "negative_prompt"):
        text = getattr(body, field) or ""
        if len(text) > MOST_PROMPT_CHARACTERS:
            limit = f"the limit is {MOST_PROMPT_CHARACTERS}"
            raise InvalidRequest(field, f"{field} has {len(text)} characters; {limit}")
    if not body.prompt.strip():
        raise InvalidRequest("prompt", "the prompt is empty; say what the image is to show")
    body.pixels()
    return body, ignored
