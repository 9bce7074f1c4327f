"""The replica process: loaded models, one engine, one loop.

    python -m headway.replica.process SOCKET OPTIONS FRONT

It loads the models, says `Ready`, and then steps for as long as anything is alive. Messages are taken between steps
and between a step's run and its commit, so a cancellation never waits for more than one step. The process ends when
it is told to, or when the front (the process FRONT) is gone. SOCKET is the number of its end of their socket.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence

import msgspec
import psutil

from headway.core.clock import RealClock
from headway.core.collecting import spare_what_is_loaded
from headway.core.errors import (
    DuplicateRequest,
    HeadwayError,
    InvalidRequest,
    ProtocolError,
    StalledError,
    UnknownRequest,
    error_words,
)
from headway.core.events import AnyEvent, Stepped
from headway.core.request import AnyEmission, NewRequest, Stage, TextRequest
from headway.engine.loop import Engine, Ports
from headway.replica.channel import Channel
from headway.replica.grammars import Grammars
from headway.replica.loading import LoadedModel, load
from headway.replica.messages import (
    STARTING,
    Cancel,
    LoadFailed,
    Loading,
    Look,
    Looked,
    Ready,
    Rejected,
    Stop,
    Submit,
    ToFront,
    Told,
    ToReplica,
    TurnedAway,
    decode_to_replica,
    encode,
)
from headway.replica.options import ReplicaOptions

_IDLE_POLL_MS = 500
#: When nothing else is to be done than to wait for a grammar, or for a disk.
_AWAITING_POLL_MS = 2
#: When requests wait and nothing moves: what held is judged again after so long.
_STALLED_POLL_MS = 100
#: How long the end may take.
_LAST_COPIES_S = 5.0


class Replica:
    """The loop around one engine, and its end of the channel."""

    def __init__(self, channel: Channel, models: Sequence[LoadedModel], *, max_slowdown: float | None = None) -> None:
        self._channel = channel
        self.models = {model.served.name: model for model in models}
        self._events: list[AnyEvent] = []
        self._stopped = False
        self._step_after_ms = 0
        self._going_on: list[tuple[str, int, str]] = []
        # the plan's story is told before it runs, and messages are taken before its result is entered
        ports = Ports(planned=self._tell_plan, ran=lambda: self._take(0))
        served = [model.served for model in models]
        self.engine = Engine(served, RealClock(), emit=self._events.append, ports=ports, slowdown=max_slowdown)

    def loop(self, front_alive: Callable[[], bool]) -> None:
        """Serve until `Stop`, or until `front_alive` says that nobody is listening."""
        while not self._stopped:
            if self.engine.idle:
                self._keep()
            idle_ms = _AWAITING_POLL_MS if self.engine.awaiting else _IDLE_POLL_MS
            self._take(idle_ms if self.engine.idle else self._step_after_ms)
            if self.engine.idle:
                self._tell()
            else:
                self._step()
            if not front_alive():
                break
        self._keep()
        self._finish_copies()

    def _finish_copies(self) -> None:
        """What was computed last goes to the disk tiers too, as far as there is time."""
        until = time.monotonic() + _LAST_COPIES_S
        while not self.engine.busy and not self.engine.idle and time.monotonic() < until:
            steps = self.engine.steps
            self.engine.step()
            if self.engine.steps == steps:
                time.sleep(_AWAITING_POLL_MS / 1000)
        for model in self.models.values():
            if model.tiers is not None:
                model.tiers.close(max(0.0, until - time.monotonic()))

    def _step(self) -> None:
        """One step. Where nothing moves, the next try is a little later; the story has told why."""
        before = self.engine.steps
        try:
            self._tell(tuple(self.engine.step()))
        except StalledError:
            self._tell()
        waits_ms = _AWAITING_POLL_MS if self.engine.awaiting else _STALLED_POLL_MS
        self._step_after_ms = 0 if self.engine.steps > before else waits_ms

    def _keep(self) -> None:
        """Write down what was measured since the last time that nothing was to be done."""
        for model in self.models.values():
            if model.durations is not None:
                model.durations.save()

    def _take(self, timeout_ms: int) -> None:
        """Take every message that is there; wait up to `timeout_ms` for the first."""
        while not self._stopped and self._channel.poll(timeout_ms):
            timeout_ms = 0
            try:
                self._obey(decode_to_replica(self._channel.recv()))
            except ProtocolError as error:
                print(f"headway replica: {error}", file=sys.stderr)
        self._supply()

    def _obey(self, message: ToReplica) -> None:
        match message:
            case Submit(request=new, others=others):
                for each in (new, *others):
                    self._add(each)
            case Cancel(id=request_id, by=by):
                for grammars in self._grammars():
                    grammars.drop(request_id)
                try:
                    self.engine.cancel(request_id, by)
                except UnknownRequest:
                    return  # it ended while the message was on its way
            case Look(id=request_id):
                self._say(self._look(request_id))
            case TurnedAway(model=model, requests=requests):
                self.engine.turned_away(model, requests)
            case Stop():
                self._stopped = True

    def _look(self, request_id: str) -> Looked:
        request = self.engine.requests.get(request_id)
        model = None if request is None else self.models[request.model]
        if request is None or model is None or model.sketch is None:
            return Looked(request_id)
        grant = request.progress.grant
        return Looked(request_id, request.progress.done, None if grant is None else model.sketch(grant.slot))

    def _add(self, new: NewRequest) -> None:
        try:
            self._refuse_other_pattern(new)
            request = self.engine.add(new)
            if isinstance(new, TextRequest) and new.grammar is not None and request.stage is Stage.WAITING:
                self._compile(new, request.model)
        except InvalidRequest as error:
            self._say(Rejected(new.id, error.field, str(error)))
        except DuplicateRequest as error:
            self._say(Rejected(new.id, "id", str(error)))

    def _refuse_other_pattern(self, new: NewRequest) -> None:
        model = self.models.get(new.model)
        asked = new.__struct_config__.tag
        if model is not None and asked != model.options.pattern:
            raise InvalidRequest("model", f"{new.model} serves {model.options.pattern} requests; this one is {asked}")

    def _supply(self) -> None:
        """Hand the grammars that are compiled to their requests, and take in what the disk tiers did."""
        for grammars in self._grammars():
            for request_id, outcome in grammars.finished():
                if isinstance(outcome, str):
                    self.engine.fail(request_id, outcome)
                else:
                    self.engine.supply(request_id, "grammar", outcome)
        self.engine.collect()

    def _grammars(self) -> Iterator[Grammars]:
        return (model.grammars for model in self.models.values() if model.grammars is not None)

    def _compile(self, new: TextRequest, model: str) -> None:
        grammars = self.models[model].grammars
        assert grammars is not None and new.grammar is not None, "a text model has what compiles grammars"
        grammars.start(new.id, new.grammar, new.n)

    def _tell_plan(self) -> None:
        """What a step is about to do. Where the same go on with the same, as for most tokens, that is told with its
        result: each message wakes the front, which may share a core with the step."""
        before, self._going_on = self._going_on, []
        match self._events:
            case [Stepped(waits=waits, members=members)] if not waits:
                self._going_on = [(member.id, member.index, member.doing) for member in members]
        if not self._going_on or self._going_on != before:
            self._tell()

    def _tell(self, emissions: tuple[AnyEmission, ...] = ()) -> None:
        if self._events or emissions:
            self._say(Told(tuple(self._events), emissions))
            self._events.clear()

    def _say(self, message: ToFront) -> None:
        self._channel.send(encode(message))


def ready(models: Sequence[LoadedModel], load_ms: float) -> Ready:
    """What the start panel shows."""
    import torch

    return Ready(
        models=tuple(model.ready() for model in models),
        threads=torch.get_num_threads(),
        load_ms=load_ms,
        resident_bytes=psutil.Process().memory_info().rss,
    )


def main(descriptor: int, options_json: str, front: int) -> int:
    """Run the process. Returns its exit status: 0 when told to stop, 1 when the model could not be loaded."""
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, signal.SIG_IGN)  # the front receives these too, and says when to stop
    options = msgspec.json.decode(options_json, type=ReplicaOptions)
    channel = Channel(socket.socket(fileno=descriptor))
    started = time.monotonic()

    def say(message: ToFront) -> None:
        channel.send(encode(message))

    try:
        say(Loading(STARTING, 0, 0))
        try:
            models = load(options, say)
            replica = Replica(channel, models, max_slowdown=options.max_slowdown)
        except Exception as error:  # whatever it is, another try would end the same way
            text = str(error) if isinstance(error, HeadwayError) else error_words(error)
            say(LoadFailed(type(error).__name__, text))
            return 1
        spare_what_is_loaded()
        say(ready(models, (time.monotonic() - started) * 1e3))
        replica.loop(lambda: os.getppid() == front and not channel.gone)
        return 0
    finally:
        channel.close(linger_s=1.0)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
