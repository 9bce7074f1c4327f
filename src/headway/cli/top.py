"""`headway top`: watch a running server, or an event log that grows: its steps, its pool, and who waits for what."""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import queue
import select
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import msgspec
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from headway.cli.client import Model, served_models
from headway.cli.console import make_console
from headway.cli.events import Item, Missed, connected, logged, tail
from headway.cli.screen import screen
from headway.core.config import ClientOptions, read_options
from headway.core.config import add_arguments as add_options
from headway.core.errors import HeadwayError
from headway.story.reduce.board import Board
from headway.story.sinks.log import LogFile
from headway.story.tell.boardview import BoardView

_REFRESH_S = 0.25
_RETRY_S = (0.5, 1.0, 2.0, 5.0)
#: A view for the screen has no more than this of each; `--json` has all that a page of `/v1/requests` may have.
_MOST_ROWS, _MOST_IN_JSON = 200, 1000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--log", metavar="FILE", help="read an event log (serve --event-log) instead of a running server"
    )
    parser.add_argument("--once", action="store_true", help="print one screen and end, as without a terminal")
    parser.add_argument("--json", action="store_true", help="print what is on a screen as JSON and end")
    add_options(parser, ClientOptions)


def run(args: argparse.Namespace) -> int:
    """Raises NoServer, LogError, or HeadwayError with the server's own words."""
    options, _ = read_options(ClientOptions, args)
    path = Path(args.log) if args.log is not None else None
    console = make_console()
    if not (args.once or args.json) and sys.stdout.isatty():  # FORCE_COLOR is no terminal
        return watch(console, options, path)
    watching = from_server(options) if path is None else from_log(path)
    if args.json:
        view = watching.view(steps=60, requests=_MOST_IN_JSON, ended=20)
        print(msgspec.json.format(msgspec.json.encode(view), indent=2).decode())
        return 0
    console.print(*watching.lines(*console.size, note=""), sep="\n", soft_wrap=True)
    return 0


# -- what is watched ------------------------------------------------------------------------------------------


class Watching:
    """The board of one source. `where` names it; `clock` is its time now, if it can be known; `models` are served by
    it, in case the events do not go back to their loading."""

    def __init__(self, where: str, models: Sequence[Model] = ()) -> None:
        self.where = where
        self.clock: Callable[[], int] | None = None
        self._missed: Missed | None = None
        self._lost = ""
        self._models = models
        self._begin()

    def _begin(self) -> None:
        loaded = [model.headway for model in self._models if model.headway is not None]
        self.board = Board(model=self._models[0].id if self._models else "", loaded=loaded)

    def take(self, number: int, item: Item) -> None:
        """Fold one event. Where some are missing a story begins anew: the rest of the old one is not known."""
        if isinstance(item, Missed):
            self._missed = item
            self._begin()
        else:
            self.board.fold(number, item)

    def hear(self, news: News) -> None:
        """One of the things that a feed tells. Raises it if it is an error."""
        match news:
            case Opened():
                self._models, self.clock, self._lost = news.models, news.clock, ""
                if not self.board.last:
                    self._begin()
            case Lost(reason=reason):
                self._lost = reason
            case Exception():
                raise news
            case (number, item):
                self.take(number, item)

    def note(self) -> str:
        """The last line of a screen that is followed."""
        note = f"q quits · {f'reconnecting: {self._lost}' if self._lost else 'following'}"
        if self._missed is not None:
            first, last = self._missed.first, self._missed.last
            note += f" · events {first:,} to {last:,} were missed" if last >= first else " · the server was restarted"
        return note

    def now_ns(self) -> int:
        """The source's time; of a log its last event's."""
        return max(self.board.newest_at, self.clock() if self.clock else 0)

    def view(self, *, steps: int, requests: int, ended: int) -> BoardView:
        """As of now, at most so many of each."""
        return self.board.view(self.now_ns(), source=self.where, steps=steps, requests=requests, ended=ended)

    def lines(self, width: int, height: int, note: str) -> list[Text]:
        """The screen now."""
        rows = min(_MOST_ROWS, height)
        view = self.view(steps=max(rows, width), requests=rows, ended=8)
        return screen(view, width, height, self.where, note)


def from_server(options: ClientOptions) -> Watching:
    """All that a server's ring tells, as of now. Raises NoServer, HeadwayError."""
    watching = Watching(options.url, served_models(options))
    with connected(options, until_now=True) as connection:
        watching.clock = connection.now_ns
        for number, item in connection.items():
            watching.take(number, item)
    return watching


def from_log(path: Path) -> Watching:
    """All that a log tells, as of its last event. Raises LogError."""
    log = LogFile.open(path)
    watching = Watching(str(path), (Model(log.head.model),))
    for number, event in logged(log):
        watching.take(number, event)
    return watching


# -- watching it go on ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Opened:
    """Events come now. `clock` is the source's time, if it can be known."""

    models: Sequence[Model]
    clock: Callable[[], int] | None


@dataclass(frozen=True)
class Lost:
    """No events come for now."""

    reason: str


News: TypeAlias = tuple[int, Item] | Opened | Lost | Exception


def watch(console: Console, options: ClientOptions, path: Path | None) -> int:
    """Draw the screen again and again, until `q` or Ctrl-C. Raises what the first connection raises."""
    news = queue.SimpleQueue[News]()
    over = threading.Event()
    if path is None:
        feed = threading.Thread(target=feed_from_server, args=(options, news.put, over), daemon=True)
    else:
        feed = threading.Thread(target=feed_from_log, args=(path, news.put, over), daemon=True)
    feed.start()
    watching = Watching(options.url if path is None else str(path))
    try:
        watching.hear(news.get())
        with keys() as press, Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                with contextlib.suppress(queue.Empty):  # all that came since the last screen
                    while True:
                        watching.hear(news.get_nowait())
                live.update(Group(*watching.lines(*console.size, watching.note())), refresh=True)
                if press(_REFRESH_S) in ("q", "Q"):
                    return 0
    except KeyboardInterrupt:  # as good a way to end it as any
        return 0
    except OSError as error:
        if error.errno != errno.EIO:  # the terminal is gone: nobody looks any more
            raise
        return 0
    finally:
        over.set()


def feed_from_server(options: ClientOptions, tell: Callable[[News], None], over: threading.Event) -> None:
    """Tell what a server tells, again after each loss of it. A first connection that fails is the end."""
    last_id: str | None = None
    opened = False
    waits = iter(_RETRY_S)
    while not over.is_set():
        try:
            known = served_models(options)
            with connected(options, last_id) as connection:
                tell(Opened(known, connection.now_ns))
                opened, waits = True, iter(_RETRY_S)
                for found in connection.items():
                    last_id = connection.last_id
                    tell(found)
                    if over.is_set():
                        return
            reason = "the server ended the stream"
        except HeadwayError as error:
            if not opened:
                tell(error)
                return
            reason = str(error)
        except Exception as error:  # a bug: it must not leave the screen waiting
            tell(error)
            return
        tell(Lost(reason))
        over.wait(next(waits, _RETRY_S[-1]))


def feed_from_log(path: Path, tell: Callable[[News], None], over: threading.Event) -> None:
    """Tell what a log tells, and what is appended to it. A log that cannot be read is the end."""
    try:
        tell(Opened((Model(LogFile.open(path).head.model),), None))
        for found in tail(path, lambda: not over.is_set()):
            if found is not None:
                tell(found)
    except Exception as error:  # nobody else hears of it in this thread
        tell(error)


@contextlib.contextmanager
def keys() -> Iterator[Callable[[float], str]]:
    """A function that waits for so many seconds for a key, and answers it, or "" when none was pressed. A terminal
    that is gone reads as `q`; where there is none (or no termios), no key ever comes."""
    try:
        import termios
        import tty

        terminal = sys.stdin.fileno() if sys.stdin.isatty() else None
    except ImportError:
        terminal = None
    if terminal is None:
        yield _no_key
        return

    def press(seconds: float) -> str:
        if not select.select([terminal], [], [], seconds)[0]:
            return ""
        with contextlib.suppress(OSError):  # the terminal is gone
            return os.read(terminal, 1).decode(errors="replace") or "q"
        return "q"

    before = termios.tcgetattr(terminal)
    tty.setcbreak(terminal)
    try:
        yield press
    finally:
        with contextlib.suppress(termios.error):  # the terminal is gone, and its modes with it
            termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def _no_key(seconds: float) -> str:
    time.sleep(seconds)
    return ""
