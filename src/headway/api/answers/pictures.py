"""From image requests to their pictures: OpenAI's list of images, or its events while they are made."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any, Literal

import msgspec
from starlette.responses import Response

from headway.api.answers.following import Following
from headway.api.answers.never import Wanted
from headway.api.answers.png import png
from headway.api.answers.streams import COMMENT, EventStream
from headway.core.request import ImageRequest, Pictured, Stage
from headway.core.verdict import Never
from headway.front.exchange import Exchange
from headway.front.inbox import Arriving, End, Inbox
from headway.front.models import FrontImageModel
from headway.front.refusals import Refusal
from headway.front.state import Front
from headway.story.tell.explain import deadline_view

_json = msgspec.json.Encoder()
#: From so many pixels on they are compressed in another thread.
_MANY_PIXELS = 128 * 128
Event = Literal["image_generation.partial_image", "image_generation.completed"]


class Pictures(Following):
    """The requests of one exchange, one for each image, and their pixels."""

    def __init__(
        self, front: Front, model: FrontImageModel, news: Sequence[ImageRequest], exchange: Exchange
    ) -> None:
        super().__init__(front, model, exchange)
        self._news = {new.id: new for new in news}
        self._places = {new.id: place for place, new in enumerate(news)}
        self._pixels: dict[str, bytes] = {}
        self._created = int(time.time())
        first = news[0]
        self._width, self._height = (first.width, first.height) if first.width else model.size
        longer = "negative_prompt" if len(first.negative) > len(first.prompt) else "prompt"
        longest = max(len(first.prompt), len(first.negative))
        inboxes = self.submit(news, [Wanted(longest, None, prompt_field=longer)] * len(news))
        self._settling: list[Inbox] = inboxes

    # -- the whole -------------------------------------------------------------------------------------------

    async def whole(self, headers: dict[str, str]) -> Response:
        """All images at once. Raises Refusal when they cannot be given."""
        end = await self.unless_gone(self.collect())
        if end is None:
            return Response(status_code=499)
        if end.stage is not Stage.FINISHED:
            raise self.refusal(end)
        data = [{"b64_json": await self._encoded(self._pixels[id])} for id in self._news]
        body = self._about() | {
            "created": self._created,
            "data": data,
            "usage": self._usage(),
            "headway": self._told(),
        }
        return Response(_json.encode(body), 200, headers | {"headway-timing": self.timing()}, "application/json")

    def take(self, item: Arriving) -> None:
        assert isinstance(item, Pictured), "a diffusion model sends pictures"
        if item.preview is None:
            self._pixels[item.id] = item.pixels

    # -- the stream ------------------------------------------------------------------------------------------

    async def stream(self, headers: dict[str, str]) -> Response:
        """OpenAI's events, as images become visible. Raises Refusal when a request was refused or failed before it
        was queued."""
        if not await self.unless_gone(self._settled()):
            return Response(status_code=499)
        for inbox in self._settling:
            if inbox.refused is not None:
                raise self.refusal(inbox.refused)
        return EventStream(self._frames(), self.unless_gone, headers)

    async def _settled(self) -> bool:
        for inbox in self._settling:
            await inbox.settled.wait()
        return True

    async def _frames(self) -> AsyncIterator[bytes]:
        left = len(self._news)
        while left:
            item = await self.next()
            if item is None:
                yield COMMENT
            elif isinstance(item, End):
                if item.stage is not Stage.FINISHED:
                    yield b"data: " + _json.encode(self.refusal(item).body()) + b"\n\n"
                    return
                left -= 1
            else:
                yield await self._event(item)
        yield b"data: [DONE]\n\n"

    async def _event(self, item: Arriving) -> bytes:
        assert isinstance(item, Pictured), "a diffusion model sends pictures"
        name: Event = "image_generation.completed" if item.preview is None else "image_generation.partial_image"
        body = {"type": name, "b64_json": await self._encoded(item.pixels), "created_at": int(time.time())}
        body |= self._about() | {"quality": "auto", "index": self._places[item.id]}
        if item.preview is None:
            body |= {"usage": self._usage(item.id), "headway": self._told(item.id) | {"timing": self.timing()}}
        else:
            body["partial_image_index"] = item.preview
        return b"event: " + name.encode() + b"\ndata: " + _json.encode(body) + b"\n\n"

    # -- what is told ----------------------------------------------------------------------------------------

    async def _encoded(self, pixels: bytes) -> str:
        """A PNG file in base64."""
        if self._width * self._height < _MANY_PIXELS:
            return self._as_png(pixels)
        return await asyncio.to_thread(self._as_png, pixels)

    def _as_png(self, pixels: bytes) -> str:
        return base64.b64encode(png(self._width, self._height, pixels)).decode()

    def _about(self) -> dict[str, Any]:
        return {"background": "opaque", "output_format": "png", "size": f"{self._width}x{self._height}"}

    def _usage(self, *ids: str) -> dict[str, Any]:
        """Tokens that were evaluated: of the texts, since an image has none."""
        tokens = sum(self._news[id].positions for id in ids or self._news)
        details = {"text_tokens": tokens, "image_tokens": 0}
        return {
            "input_tokens": tokens, "output_tokens": 0, "total_tokens": tokens, "input_tokens_details": details
        }  # fmt: skip

    def _told(self, *ids: str) -> dict[str, Any]:
        """With what each image can be made again, and what became of its deadline."""
        now = self._front.clock.now_ns()
        rows = []
        for id in ids or self._news:
            new = self._news[id]
            row: dict[str, Any] = {"id": id, "seed": new.seed, "steps": new.updates, "guidance": new.guidance}
            deadline = deadline_view(self._front.story.record(id), now)
            rows.append(row if deadline is None else row | {"deadline": deadline})
        return {"images": rows}

    def refusal(self, end: End) -> Refusal:
        verdict = self._front.story.record(end.id).verdict
        if isinstance(verdict, Never) and verdict.rule == "pool":
            text = (
                f"an image of {self._width}x{self._height} keeps {verdict.need} bytes while it is made, and the pool "
                f"has {verdict.limit}. Please reduce size, or raise {verdict.option}."
            )
            return Refusal(400, text, code="never_pool", param="size")
        return super().refusal(end)
