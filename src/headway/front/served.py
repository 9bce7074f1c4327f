"""The models that are served, by name: which one is asked, and whether it does what it is asked for."""

from __future__ import annotations

from typing import Literal

from headway.front.models import FrontEncoder, FrontImageModel, FrontModel, FrontTextModel
from headway.front.refusals import Refusal

#: What a model can be asked for instead, by pattern.
_ABILITIES = {
    "text": "it continues prompts (/v1/chat/completions, /v1/completions)",
    "embed": "it evaluates an input once (/v1/embeddings, /v1/rerank)",
    "image": "it makes images (/v1/images/generations)",
}

_MAKES = {
    "vector": "it is a bi-encoder, which makes a vector of each text (/v1/embeddings)",
    "score": "it is a cross-encoder, which scores a query beside a document (/v1/rerank)",
}


class ServedModels(dict[str, FrontModel]):
    """By served name, in the order in which they were named."""

    def named(self, name: str) -> FrontModel:
        """Raises Refusal (404) for the name of a model that is not served here."""
        if name in self:
            return self[name]
        served = f"{', '.join(map(repr, self))} {'are' if len(self) > 1 else 'is'}"
        text = f"the model {name!r} is not served here; {served}"
        raise Refusal(404, text, code="model_not_found", param="model")

    def text_model(self, name: str) -> FrontTextModel:
        """A model that continues prompts. Raises Refusal: 404 when it is not served, 400 when it does not."""
        model = self.named(name)
        if isinstance(model, FrontTextModel):
            return model
        raise Refusal(
            400, f"{name} does not generate text: {_ABILITIES[model.pattern]}", code="wrong_pattern", param="model"
        )

    def encoder(self, name: str, output: Literal["vector", "score"]) -> FrontEncoder:
        """A model that makes that of an input. Raises Refusal: 404 when it is not served, 400 when it makes something
        else, with the models that do."""
        model = self.named(name)
        if isinstance(model, FrontEncoder) and model.output == output:
            return model
        does = _MAKES[model.output] if isinstance(model, FrontEncoder) else _ABILITIES[model.pattern]
        others = [each.name for each in self.values() if isinstance(each, FrontEncoder)]
        others = [each for each in others if self[each].output == output]
        instead = f"; {' and '.join(others)} {'do' if len(others) > 1 else 'does'}" if others else ""
        what = {"vector": "embeddings", "score": "relevance scores"}[output]
        text = f"{name} makes no {what}: {does}{instead}"
        raise Refusal(400, text, code="wrong_pattern", param="model")

    def image_model(self, name: str | None) -> FrontImageModel:
        """A model that makes images; without a name the first. Raises Refusal: 404 when it is not served, 400 when it
        does something else, or none makes images."""
        makers = [model for model in self.values() if isinstance(model, FrontImageModel)]
        if name is None and makers:
            return makers[0]
        model = self.named(name or next(iter(self)))
        if isinstance(model, FrontImageModel):
            return model
        instead = f"; {makers[0].name} does" if makers else ""
        text = f"{model.name} makes no images: {_ABILITIES[model.pattern]}{instead}"
        raise Refusal(400, text, code="wrong_pattern", param="model")
