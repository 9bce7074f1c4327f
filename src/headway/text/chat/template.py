"""A model's chat template: messages to the text of a prompt.

It is read and rendered in other processes, within bounds (`rendering.py`): no template can hold up or take the
memory of the process that asks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headway.artifacts.files import ModelFiles
from headway.core.errors import InvalidRequest, InvariantError, TemplateBound, UnsupportedModel
from headway.text.bounded import Bounds
from headway.text.chat.outcomes import BoundExceeded, Names, ParseFailed, Rendered, RenderFailed
from headway.text.chat.renderers import Renderers

#: As long as a body may be, unless `--max-body` says otherwise.
_MOST_BYTES = 32 << 20


class ChatTemplate:
    """The template of one model.

    Raises UnsupportedModel if Jinja cannot parse it, or not within the bounds, and ProcessEnded if there is no
    process to parse it. A prompt may have at most `most_bytes` bytes.
    """

    def __init__(
        self, files: ModelFiles, *, most_bytes: int = _MOST_BYTES, renderers: Renderers | None = None
    ) -> None:
        self.name = files.name
        self.renderers = renderers or Renderers()
        self._special = files.special
        self._source = files.chat_template
        self._most_bytes = most_bytes
        self._names = None if self._source is None else self._read(self._source)

    @property
    def names(self) -> Names:
        """What the template names. Raises InvalidRequest for a model without one."""
        if self._names is None:
            raise InvalidRequest(
                "messages", f"{self.name} has no chat template; send a plain prompt to /v1/completions"
            )
        return self._names

    @property
    def special(self) -> frozenset[str]:
        """Variables whose values come with the model."""
        return frozenset(self._special)

    def render(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True, **variables: Any
    ) -> str:
        """The prompt's text, special tokens spelled out (encode it with `add_bos=False`).

        With `add_generation_prompt` the text ends where the assistant's answer begins. `variables` reach the template
        under their names (`tools`, …). Raises InvalidRequest for what the template refuses or cannot handle,
        TemplateBound when it takes more than it may, and ProcessEnded.
        """
        assert self.names is not None and self._source is not None
        given = {"messages": messages, "add_generation_prompt": add_generation_prompt}
        names = {"tools": None, "documents": None, **self._special, **variables, **given}
        try:
            outcome, bounds = self.renderers.render(self._source, names, self._most_bytes)
        except RecursionError as error:
            raise InvalidRequest("messages", "the messages or tools are nested too deeply to be rendered") from error
        match outcome:
            case Rendered(text=text):
                return text
            case RenderFailed(message=message) | ParseFailed(message=message):
                raise InvalidRequest("messages", f"the chat template refused them: {message}")
            case BoundExceeded(bound=bound):
                raise TemplateBound("messages", f"the chat template of {self.name} {self._exceeded(bound, bounds)}")
        raise InvariantError(f"asked to render, the process answered with {type(outcome).__name__}")

    def close(self) -> None:
        """End the processes."""
        self.renderers.close()

    def _read(self, source: str) -> Names:
        outcome, bounds = self.renderers.names(source)
        match outcome:
            case Names():
                return outcome
            case ParseFailed(message=message):
                raise UnsupportedModel(self.name, f"a chat template that Jinja cannot parse ({message})")
            case BoundExceeded(bound=bound):
                raise UnsupportedModel(self.name, f"a chat template that {self._exceeded(bound, bounds)}")
        raise InvariantError(f"asked for names, the process answered with {type(outcome).__name__}")

    def _exceeded(self, bound: str, bounds: Bounds) -> str:
        return {
            "length": f"renders a prompt of more than {self._most_bytes} bytes (--max-body)",
            "processor": f"takes more than {bounds.processor_s:.3g} s of CPU time (the limit)",
            "memory": f"takes more than {bounds.memory} of memory (the limit)",
            "clock": f"did not finish within {bounds.clock_s:.3g} s (the limit on a busy machine)",
        }[bound]
