"""Models of a replica, brought to where they can run."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from headway.compute.executor import Executor, LatentExecutor, Sketch
from headway.core.collecting import importing
from headway.core.errors import ConfigError
from headway.engine.served import ServedModel
from headway.memory.bytes import BytePool
from headway.memory.pool import BlockPool
from headway.memory.reserve import StateMemory
from headway.patterns.embed.pattern import embed_model
from headway.patterns.image.pattern import image_model
from headway.patterns.text.pattern import text_model
from headway.patterns.text.ports import Watcher
from headway.policy.drafts import lookup_drafts
from headway.replica.durations import KeptDurations
from headway.replica.grammars import Grammars, Trial
from headway.replica.messages import Loading, ReadyModel, ToFront
from headway.replica.options import ModelOptions, ReplicaOptions
from headway.replica.tiers import OpenTiers, open_tiers

#: What the extra `images` brings, to be typed in a shell whichever way Headway was installed.
_DIFFUSERS = "'diffusers>=0.42,<0.50'"


@dataclass(frozen=True)
class LoadedModel:
    """A model as the engine serves it, what compiles its grammars, if its answers can be held to one, where its
    durations are kept between runs, if they are, what shows the latent of a slot, if it has latents, and its state
    tiers, if it has any."""

    served: ServedModel
    options: ModelOptions
    grammars: Grammars | None = None
    durations: KeptDurations | None = None
    sketch: Callable[[int], Sketch | None] | None = None
    tiers: OpenTiers | None = None

    def ready(self) -> ReadyModel:
        """What the front is told of it."""
        served, is_text = self.served, self.options.pattern == "text"
        space = served.pattern.space
        return ReadyModel(
            name=served.name,
            facts=served.executor.facts,
            blocks=space.total if is_text else 0,
            block_tokens=self.options.block_tokens if is_text else 0,
            max_context=served.limits.context,
            seats=served.options.seats,
            step_tokens=served.options.step_tokens,
            gap_ms=served.options.gap_ms if is_text else None,
            pool_bytes=0 if is_text else space.total,
            tiers=self.tiers.books.levels() if self.tiers is not None else (),
        )


def hosted_text(
    executor: Executor,
    blocks: int,
    options: ModelOptions,
    watcher: Watcher,
    grammars: Grammars | None = None,
    tiers: OpenTiers | None = None,
) -> LoadedModel:
    """A text model over an executor that has `blocks` state blocks."""
    own = (None, ()) if tiers is None else (tiers.books, tiers.elsewhere)
    pool = BlockPool(blocks, options.block_tokens, *own)
    memory = StateMemory(pool, prefix_cache=options.prefix_cache)
    served = text_model(
        executor,
        memory,
        options.engine,
        drafters=lookup_drafts(options.draft),
        watcher=watcher,
        name=options.name,
        weight=options.weight,
    )
    return LoadedModel(served, options, grammars or Grammars(None), tiers=tiers)


def hosted_encoder(executor: Executor, options: ModelOptions) -> LoadedModel:
    """An encoder: nothing of its requests is kept."""
    served = embed_model(executor, options.engine, name=options.name, weight=options.weight)
    return LoadedModel(served, options)


def hosted_images(
    executor: LatentExecutor, options: ModelOptions, durations: KeptDurations | None = None
) -> LoadedModel:
    """A diffusion model, with memory for the latents of all seats, unless that is more than it may have."""
    most = options.engine.seats * executor.most_state_bytes
    pool = BytePool(most if options.memory_bytes is None else min(most, options.memory_bytes), executor.forget)
    served = image_model(
        executor,
        pool,
        executor.state_bytes,
        options.engine,
        name=options.name,
        weight=options.weight,
        durations=None if durations is None else durations.known,
    )
    return LoadedModel(served, options, durations=durations, sketch=executor.sketch)


def load(options: ReplicaOptions, say: Callable[[ToFront], None]) -> list[LoadedModel]:
    """All models, one after the other. Raises HeadwayError, and whatever torch or the files raise."""
    loaders = {"text": _load_text, "embed": _load_encoder, "image": _load_images}
    return [loaders[model.pattern](model, options, say) for model in options.models]


def _load_text(model: ModelOptions, options: ReplicaOptions, say: Callable[[ToFront], None]) -> LoadedModel:
    with importing():
        from headway.artifacts import resolve
        from headway.artifacts.cache import Cache
        from headway.compute.models.spec import DecoderSpec
        from headway.compute.text.executor import TextExecutor
        from headway.replica.trials import text_trial
        from headway.text.answer import AnswerTexts
        from headway.text.grammar.guide import GrammarCompiler
        from headway.text.tokenizer import Tokenizer

    files = resolve(model.model, cache=Path(options.cache), offline=True, progress=lambda done, total: None)
    spec = DecoderSpec.from_config(files.config, files.name)
    _refuse_long(model, spec.max_context)
    vocabulary = files.tokenizer, files.eos_ids, spec.vocab
    beside = ThreadPoolExecutor(1)  # while the weights are packed
    tokenizer = beside.submit(lambda: Tokenizer(files))
    grammars = beside.submit(lambda: Grammars(GrammarCompiler(*vocabulary), Trial(*vocabulary)))
    beside.shutdown(wait=False)
    executor = TextExecutor.load(
        files,
        cache=Cache.at(Path(options.cache)).converted,
        blocks=model.blocks,
        memory_bytes=model.memory_bytes,
        block_tokens=model.block_tokens,
        weights=model.weights,
        state=model.state,
        threads=options.threads,
        max_step_positions=model.engine.step_tokens,
        native=options.native,
        progress=lambda done, total: say(Loading(f"converting the weights of {model.served_name}", done, total)),
        trial=text_trial(tokenizer.result, lambda: say(_measuring(model))),
    )
    tiers = open_tiers(executor, model)
    return hosted_text(executor, executor.blocks, model, AnswerTexts(tokenizer.result()), grammars.result(), tiers)


def _load_encoder(model: ModelOptions, options: ReplicaOptions, say: Callable[[ToFront], None]) -> LoadedModel:
    with importing():
        from headway.artifacts import resolve
        from headway.artifacts.cache import Cache
        from headway.compute.embed.executor import EncoderExecutor
        from headway.replica.trials import encoder_trial
        from headway.text.tokenizer import Tokenizer

    files = resolve(model.model, cache=Path(options.cache), offline=True, progress=lambda done, total: None)
    executor = EncoderExecutor.load(
        files,
        cache=Cache.at(Path(options.cache)).converted,
        weights=model.weights,
        threads=options.threads,
        max_step_positions=model.engine.step_tokens,
        native=options.native,
        progress=lambda done, total: say(Loading(f"converting the weights of {model.served_name}", done, total)),
        trial=encoder_trial(lambda: Tokenizer(files), lambda: say(_measuring(model))),
    )
    _refuse_long(model, executor.facts.max_context)
    return hosted_encoder(executor, model)


def _load_images(model: ModelOptions, options: ReplicaOptions, say: Callable[[ToFront], None]) -> LoadedModel:
    from headway.artifacts import resolve
    from headway.artifacts.cache import Cache

    try:
        with importing():
            from headway.compute.image.executor import DiffusionExecutor
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "diffusers":
            raise
        needs = f"needs diffusers (the extra images): pip install {_DIFFUSERS}"
        raise ConfigError("--model", f"{model.model} is a diffusion model, which {needs}") from error
    cache = Cache.at(Path(options.cache))
    files = resolve(model.model, cache=Path(options.cache), offline=True, progress=lambda done, total: None)
    say(Loading(f"reading the weights of {model.served_name}", 0, files.weights_bytes))
    executor = DiffusionExecutor.load(
        files, cache=cache.converted, weights=model.weights, native=options.native, threads=options.threads
    )
    _refuse_long(model, executor.facts.max_context)
    durations = KeptDurations.open(cache.converted / files.revision, options.threads)
    return hosted_images(executor, model, durations)


def _measuring(model: ModelOptions) -> Loading:
    return Loading(f"measuring what int8 costs {model.served_name} in quality (once)", 0, 0)


def _refuse_long(model: ModelOptions, limit: int) -> None:
    if model.max_context is not None and model.max_context > limit:
        raise ConfigError("--max-context", f"{model.max_context} is more than the {limit} positions of {model.model}")
