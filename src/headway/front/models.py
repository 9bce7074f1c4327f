"""What the front knows of each served model: files, tokenizer, chat template, and what the replica said of it."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property

from headway.artifacts.files import ModelFiles, Modules
from headway.core.errors import InvalidRequest, TemplateBound
from headway.core.request import Pattern
from headway.replica.messages import ReadyModel
from headway.replica.options import ModelOptions
from headway.text.answer import AnswerTexts
from headway.text.chat.probing import Probes
from headway.text.chat.template import ChatTemplate
from headway.text.tokenizer import Tokenizer
from headway.text.tools.format import ToolFormat


class FrontModel:
    """One served model. `ready` is None until the replica has it; another replica says it anew."""

    def __init__(self, files: ModelFiles, options: ModelOptions) -> None:
        self.files = files
        self.options = options
        self.name = options.served_name
        self.created = int(time.time())
        self.ready: ReadyModel | None = None
        self.tokenizer = Tokenizer(files.pipeline.text if files.pipeline else files)

    @property
    def pattern(self) -> Pattern:
        return self.options.pattern

    @property
    def max_context(self) -> int | None:
        """Most positions of a request; None before the model is loaded."""
        return self.ready.max_context if self.ready else None

    @property
    def output(self) -> str:
        """What a caller can use of it."""
        return self.ready.facts.output if self.ready else self.files.output

    def close(self) -> None:
        """Nothing is asked of it any more."""


class FrontTextModel(FrontModel):
    """A text model: how chats become prompts, and tokens become answers. `rendering` are the threads in which its
    chat template is rendered."""

    def __init__(self, files: ModelFiles, options: ModelOptions, *, most_bytes: int) -> None:
        super().__init__(files, options)
        self.answer_texts = AnswerTexts(self.tokenizer)
        self.template = ChatTemplate(files, most_bytes=most_bytes)
        self.probes = Probes(self.template)
        self.rendering = ThreadPoolExecutor(self.template.renderers.most, thread_name_prefix="rendering")

    @property
    def tool_format(self) -> ToolFormat:
        """How the model writes tool calls. Raises InvalidRequest for one that does not."""
        if isinstance(self._tool_format, str):
            raise InvalidRequest("tools", self._tool_format)
        return self._tool_format

    @cached_property
    def _tool_format(self) -> ToolFormat | str:
        """Or why there is none."""
        try:
            return ToolFormat.of(self.template)
        except TemplateBound:  # a busy machine may have been the cause
            raise
        except InvalidRequest as error:
            return str(error)

    def close(self) -> None:
        """Nothing is rendered any more."""
        self.template.close()
        self.rendering.shutdown(wait=False, cancel_futures=True)


class FrontEncoder(FrontModel):
    """A model that evaluates an input once: how texts become inputs. Raises UnsupportedModel for special tokens that
    are not known."""

    def __init__(self, files: ModelFiles, options: ModelOptions) -> None:
        super().__init__(files, options)
        self.modules = files.modules or Modules()
        self.frame = self.tokenizer.frame

    def input_ids(self, text: str, *, special: bool = True) -> list[int]:
        """The text as the model reads it, with the `special` tokens around it or without."""
        tokens = self.tokenizer.encode(self.written(text), add_bos=False)
        return list(self.frame.single(tokens)) if special else tokens

    def written(self, text: str) -> str:
        """A text as it goes to the tokenizer."""
        return text.lower() if self.modules.lowercase else text


class FrontImageModel(FrontModel):
    """A diffusion model: how prompts become tokens, and what an image gets that does not say."""

    def __init__(self, files: ModelFiles, options: ModelOptions) -> None:
        super().__init__(files, options)
        assert files.pipeline is not None, "the files are a diffusion model's"
        self.steps, self.guidance = files.pipeline.steps, files.pipeline.guidance
        self.unconditional = files.pipeline.unconditional

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of its own size; it is loaded."""
        assert self.ready is not None and self.ready.facts.images is not None
        return self.ready.facts.images.width, self.ready.facts.images.height

    def check(self, width: int, height: int, steps: int) -> None:
        """Raises InvalidRequest for an image that it does not make, whatever its prompt; a width of 0 is its own."""
        assert self.ready is not None and self.ready.facts.images is not None
        images = self.ready.facts.images
        if width and not images.takes(width, height):
            raise InvalidRequest("size", f"size is {width}x{height}; {self.name}: {images.sizes}")
        if steps > images.most_updates:
            text = f"steps is {steps}; {self.name} makes from 1 to {images.most_updates} ({images.noise})"
            raise InvalidRequest("steps", text)

    def encode(self, prompt: str) -> tuple[int, ...]:
        """Its tokens, with the special ones around them."""
        return tuple(self.tokenizer.encode_with_special(prompt)[0])


def front_model(files: ModelFiles, options: ModelOptions, *, most_bytes: int) -> FrontModel:
    """The front's side of a model. Raises UnsupportedModel for a tokenizer that is not known. `most_bytes` bounds
    what a chat template may be given."""
    if options.pattern == "text":
        return FrontTextModel(files, options, most_bytes=most_bytes)
    if options.pattern == "image":
        return FrontImageModel(files, options)
    return FrontEncoder(files, options)
