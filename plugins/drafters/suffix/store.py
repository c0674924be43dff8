"""What the server has written, so that it is found when it is written again."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import sys
import threading
from collections.abc import Callable, Sequence as Seq

from tandem.plugins.drafters.suffix.files import Folder
from tandem.plugins.drafters.suffix.layout import FIRST, FRAME, WORD, Refused, document, documents, log_header
from tandem.plugins.drafters.suffix.order import Run
from tandem.plugins.drafters.suffix.segment import Segment

log = logging.getLogger("tandem.drafters.suffix")

SEGMENTS = 8
"""A full store is this many logs. Half of them are forgotten at once, so the oldest half goes between documents."""
LEAST = SEGMENTS * 64
"""The smallest store, in words."""


class Store:
    """A bounded log of documents, in segments, with the places of each in order.

    A thread of its own does all the work: reading files, writing documents, sorting. `add` hands it a document and
    returns; `view` is replaced, never changed, so whoever holds one may search it as long as they like.
    """

    def __init__(
        self,
        folder: Folder | None,
        vocabulary: bytes,
        max_words: int,
        report: Callable[[str], None] = log.warning,
    ) -> None:
        """Without a `folder`, or where it may only be read, what is added lives as long as the process."""
        if max_words < LEAST:
            raise ValueError(f"a store has at least {LEAST} tokens, not {max_words}")
        self.view: tuple[Run, ...] = ()
        """The sorted runs of everything that is known. Read by any thread."""
        self._folder = folder
        self._vocabulary = vocabulary
        self._max_words = max_words
        self._capacity = max_words // SEGMENTS
        self._report = report
        self._full: list[Segment] = []
        self._growing: Segment | None = None
        self._next = 1
        self._queue: queue.SimpleQueue[list[int] | threading.Event | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="suffix-store", daemon=True)
        self._thread.start()

    def add(self, tokens: Seq[int]) -> None:
        """Remember a document. Returns at once; after `close` nothing happens."""
        if self._thread.is_alive():
            self._queue.put(list(tokens))

    def settle(self, timeout: float | None = None) -> bool:
        """Wait until all that was added so far can be found; False when that took too long."""
        done = threading.Event()
        self._queue.put(done)
        while self._thread.is_alive():
            if done.wait(timeout if timeout is not None else 1.0):
                return True
            if timeout is not None:
                return False
        return done.is_set()

    def close(self, timeout: float = 5.0) -> None:
        """Finish what was added, and let another process write. Safe to call twice."""
        self._queue.put(None)
        if threading.current_thread() is not self._thread:  # whoever collects garbage may be the one to call this
            self._thread.join(timeout)

    def documents(self) -> list[list[int]]:
        """Everything that is known, oldest first. Only while nothing is added."""
        return [text for segment in self._all() for text in documents(segment.text[: segment.words * WORD])]

    @property
    def words(self) -> int:
        """Ids in the store, the documents' frames included."""
        return sum(segment.words for segment in self._all())

    def _all(self) -> list[Segment]:
        return [*self._full, self._growing] if self._growing is not None else list(self._full)

    # ------------------------------------------------------------------------------------------- on the thread

    def _work(self) -> None:
        if sys.platform == "linux":  # where a thread has a priority of its own: the model's threads go first
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
        try:
            self._load()
            while self._serve():
                pass
        except Exception as error:
            self.view = ()
            log.exception("the store's thread ended")
            self._report(f"the suffix store is off: {error}")
        finally:
            if self._folder is not None:
                self._folder.close()

    def _serve(self) -> bool:
        """Take all that waits, and make it findable. False at the end."""
        waiting = [self._queue.get()]
        with contextlib.suppress(queue.Empty):
            while True:
                waiting.append(self._queue.get_nowait())
        for item in waiting:
            if isinstance(item, list):
                self._append(item)
        self._publish()
        for item in waiting:
            if isinstance(item, threading.Event):
                item.set()
        return None not in waiting

    def _publish(self) -> None:
        if self._growing is not None:
            self._growing.sort_new()
        self.view = tuple(run for segment in self._all() for run in segment.runs)

    def _append(self, tokens: list[int]) -> None:
        most = self._capacity - FIRST - FRAME
        for start in range(0, len(tokens), most):
            piece = document(tokens[start : start + most])
            segment = self._segment_for(len(piece) // WORD)
            if self._writes:
                self._guarded(lambda piece=piece: self._folder.append(piece))  # type: ignore[misc, union-attr]
            segment.append(piece)

    def _segment_for(self, words: int) -> Segment:
        """The growing segment, with room for a document of so many words."""
        if self._growing is not None and self._growing.words + words > self._growing.capacity:
            self._seal(self._growing)
            self._growing = None
        needed = words if self._growing is not None else FIRST + words
        if self.words + needed > self._max_words:
            self._forget()
        if self._growing is None:
            self._growing = self._begin()
        return self._growing

    def _begin(self) -> Segment:
        number, self._next = self._next, self._next + 1
        if self._writes:
            self._guarded(lambda: self._folder.create(number))  # type: ignore[union-attr]
        return Segment.growing(number, self._capacity, log_header(number, self._vocabulary))

    def _seal(self, segment: Segment) -> None:
        """The segment is full: one order over all of it, and from now on read from its files."""
        segment.sort_all()
        self._full.append(segment)
        if self._writes:
            self._guarded(lambda: self._move_to_files(segment))

    def _move_to_files(self, segment: Segment) -> None:
        assert self._folder is not None
        self._folder.stop_growing()
        self._folder.keep_order(segment.number, segment.order_bytes())
        with contextlib.suppress(Refused):  # else it stays in memory
            self._full[self._full.index(segment)] = self._read(segment.number)

    def _forget(self) -> None:
        """Let go of the oldest half."""
        while self._full and self.words > self._max_words // 2:
            oldest = self._full.pop(0)
            if self._writes:
                self._guarded(lambda oldest=oldest: self._folder.forget(oldest.number))  # type: ignore[misc, union-attr]

    @property
    def _writes(self) -> bool:
        return self._folder is not None and self._folder.writer

    def _guarded(self, write: Callable[[], object]) -> None:
        """What can't be written is kept in memory, and so is all that comes after it."""
        try:
            write()
        except OSError as error:
            folder, self._folder = self._folder, None
            self._report(f"the suffix store can't write, and keeps what is new in memory only: {error}")
            if folder is not None:
                folder.close()

    # ------------------------------------------------------------------------------------------------- reading

    def _load(self) -> None:
        """Read what is there, the newest first: a part of it serves already while the rest is read."""
        folder = self._folder
        if folder is None:
            return
        numbers = folder.numbers()
        self._next = max(numbers, default=0) + 1
        for number in reversed(numbers):
            try:
                segment = self._read(number) if self._all() else self._read_last(number)
            except (Refused, OSError) as error:
                self._report(f"{folder.name(number)} {_what(error)}; it is left alone")
                continue
            if segment is not self._growing:
                self._full.insert(0, segment)
            self._publish()
        if self.words > self._max_words:
            self._forget()
            self._publish()

    def _read_last(self, number: int) -> Segment:
        """The newest log, in memory; the one who writes goes on with it while it has room."""
        assert self._folder is not None
        segment = Segment.growing(number, self._capacity, self._folder.copy(number))
        if self._writes and segment.words + FRAME < self._capacity:
            with contextlib.suppress(OSError):  # else the next document begins another log
                self._folder.grow(number, segment.words)
                self._growing = segment
        segment.sort_all()
        return segment

    def _read(self, number: int) -> Segment:
        """A full log, mapped, with its order; that is made anew when it is missing or not right."""
        assert self._folder is not None
        text, words = self._folder.log(number)
        segment = Segment(number, text, words)
        try:
            segment.take_order(self._folder.order(number))
        except (Refused, OSError):
            segment.sort_all()
            if self._writes:
                with contextlib.suppress(OSError):  # else it is sorted again at the next start
                    self._folder.keep_order(number, segment.order_bytes())
        return segment


def _what(error: Exception) -> str:
    return str(error) if isinstance(error, Refused) else f"can't be read ({error})"
