"""Every exception that Headway raises on purpose.

    HeadwayError
    ├── ConfigError            an option has a value that cannot work; names it, the need and the limit
    ├── ArtifactError          a model could not be obtained
    │   ├── ModelNotFound      no such alias, folder, file or package
    │   ├── ChecksumMismatch   the bytes are not the ones that were pinned
    │   └── UnsupportedModel   the model needs a feature that is not implemented; names the feature
    ├── InvalidRequest         a field of a request cannot be served as given; names the field
    │   └── TemplateBound      the chat template exceeded a limit on time, memory or length; says which, and how much
    ├── BoundCrossed           work in a separate process exceeded its time or memory
    ├── ProcessEnded           a separate process could not be started, or ended by itself
    ├── GrammarError           a grammar or schema cannot be compiled; says what is wrong with it
    ├── LogError               a file is not an event log, or of another version, or damaged; names the file
    ├── UnknownRequest         no live or remembered request has this id
    ├── DuplicateRequest       a live request already has this id
    ├── IllegalMove            a request was asked to make a stage change that its table forbids
    ├── InvariantError         the engine's books do not balance (a bug, never a user's fault)
    │   └── StalledError       requests wait, and nothing moves, for reasons that do not change
    └── ReplicaError           the replica process is not serving
        ├── ReplicaDied        it ended while work was in flight
        └── ProtocolError      it said something that is not a known message

A request that cannot go *now* is not an exception: it is a `Wait` (see `verdict.py`).
"""

from __future__ import annotations


class HeadwayError(Exception):
    """Base of all."""


class ConfigError(HeadwayError):
    """An option cannot work. `option` is its command-line name, e.g. `--seats`."""

    def __init__(self, option: str, message: str) -> None:
        super().__init__(f"{option}: {message}")
        self.option = option


class ArtifactError(HeadwayError):
    """A model could not be obtained."""


class ModelNotFound(ArtifactError):
    """No such alias, folder, file or package."""


class ChecksumMismatch(ArtifactError):
    """Downloaded bytes differ from the pinned ones."""

    def __init__(self, name: str, expected: str, found: str) -> None:
        super().__init__(
            f"{name}: sha256 is {found}, expected {expected}; the file was discarded. "
            "Try again; if this repeats, the package has changed at its source."
        )
        self.expected = expected
        self.found = found


class UnsupportedModel(ArtifactError):
    """The model uses `feature`, which is not implemented; it is refused at load rather than served wrongly."""

    def __init__(self, model: str, feature: str) -> None:
        super().__init__(f"{model} uses {feature}, which Headway does not support")
        self.feature = feature


class InvalidRequest(HeadwayError):
    """A field cannot be served as given. `field` is its name in the request body."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


class TemplateBound(InvalidRequest):
    """Rendering the messages crosses a bound on time, memory or length."""


class BoundCrossed(HeadwayError):
    """Work in a separate process exceeded a limit: `bound` is "processor", "clock" or "memory"."""

    def __init__(self, bound: str) -> None:
        super().__init__(f"it exceeds its limit ({bound})")
        self.bound = bound


class ProcessEnded(HeadwayError):
    """A separate process could not be started, or ended by itself, with the exit status `status`."""

    def __init__(self, what: str, status: int | None = None) -> None:
        super().__init__(f"the process {what}")
        self.status = status


class GrammarError(HeadwayError):
    """A grammar or schema is malformed, cannot be satisfied, requires what is not supported, or exceeds a limit."""


class LogError(HeadwayError):
    """A file is not an event log that can be read."""

    def __init__(self, path: object, reason: str) -> None:
        super().__init__(f"{path}: {reason}")


class UnknownRequest(HeadwayError):
    """No live or remembered request has this id. `where` says where else to look."""

    def __init__(self, request_id: str, where: str = "") -> None:
        super().__init__(f"no request {request_id!r} is live or among the last 1,000 that ended{where}")
        self.request_id = request_id


class DuplicateRequest(HeadwayError):
    """A live request already has this id."""

    def __init__(self, request_id: str) -> None:
        super().__init__(f"a live request already has the id {request_id!r}")
        self.request_id = request_id


class IllegalMove(HeadwayError):
    """A stage change that the table in `request.py` forbids."""


class InvariantError(HeadwayError):
    """The books do not balance: a bug in Headway."""


class StalledError(InvariantError):
    """Requests wait, nothing moves, and that was so again and again for the same reason, which the message names."""


class ReplicaError(HeadwayError):
    """The replica process is not serving."""


class ReplicaDied(ReplicaError):
    """The replica ended while work was in flight."""


class ProtocolError(ReplicaError):
    """A message between front and replica could not be understood."""


def error_words(error: BaseException) -> str:
    """An exception's class and message, as text that any message or file can hold."""
    return f"{type(error).__name__}: {error}".encode(errors="replace").decode()
