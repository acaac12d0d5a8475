"""Screen: a terminal with an input line at its bottom; what is finished goes to the terminal's own scrollback above it.

Nothing is drawn full-screen: text is selected and scrolled as any other, over ssh, too. While nothing happens, nothing
is drawn. Rows above the input line hold what is not finished yet (`Board`), the row below it is the toolbar.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncGenerator, Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias

from prompt_toolkit.application import Application
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.data_structures import Size
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.history import History
from prompt_toolkit.layout import BufferControl, ConditionalContainer, FormattedTextControl, HSplit, Layout, Window
from prompt_toolkit.layout.dimension import Dimension
from prompt_toolkit.output.color_depth import ColorDepth
from prompt_toolkit.output.vt100 import Vt100_Output
from prompt_toolkit.styles import Style

from refold.tui.board import Board, live_rows, toolbar
from refold.tui.choice import fitting, row
from refold.tui.history import SaidBefore
from refold.tui.keys import bindings
from refold.tui.marks import Marks
from refold.tui.style import RULES, Row, classes, escaped
from refold.tui.surface import Person

if TYPE_CHECKING:
    from prompt_toolkit.formatted_text import StyleAndTextTuples

    from refold.core.permissions import Question, Verdict
    from refold.rollout.catalogue import Summary

Mode: TypeAlias = Literal["talk", "ask", "pick"]

INPUT_ROWS = 10  # of a longer input the rows around the cursor are shown
PICK_ROWS = 8
QUIET_SECONDS = 0.3  # a question takes answers once nobody has typed for so long: it may have come in mid-word
REDRAW_SECONDS = 0.02  # a fast answer comes in more pieces than a person sees
ESCAPE_SECONDS = 0.1  # how long an Esc waits for the rest of a key, or for the Enter of an Alt-Enter


class Past(History):
    """What was said before; it is known once the folder of the chat is."""

    def __init__(self) -> None:
        super().__init__()
        self._file: SaidBefore | None = None
        self._known = asyncio.Event()

    def found(self, file: SaidBefore) -> None:
        before = file.entries()
        for text in reversed(self._loaded_strings):
            file.add(text)
        self._file = file
        self._loaded_strings += before[::-1]  # said before what was said meanwhile
        self._known.set()

    async def load(self) -> AsyncGenerator[str, None]:
        await self._known.wait()
        for text in self._loaded_strings:
            yield text

    def load_history_strings(self) -> list[str]:
        return []

    def store_string(self, string: str) -> None:
        if self._file is not None:
            self._file.add(string)


class Screen:
    """Mutable: what is still to be printed, what the person is asked, and the application that draws."""

    def __init__(self, board: Board, *, colours: bool) -> None:
        self.board = board
        self.mode: Mode = "talk"
        self.past = Past()
        self.draft = Buffer(history=self.past, multiline=True)
        self.answer = Buffer(multiline=False)
        self.words = Buffer(multiline=False, on_text_changed=lambda _: self._choose(0))
        self.person: Person
        self._colours = colours
        self._pending: list[str] = []
        self._marks = Marks()
        self._question: Question | None = None
        self._verdict: asyncio.Future[Verdict] | None = None
        self._found: Sequence[Summary] = ()
        self._chosen = 0
        self._picked: asyncio.Future[Summary | None] | None = None
        self._last_key = 0.0
        self._painted = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self.app = self._application()

    def _application(self) -> Application[None]:
        output = Vt100_Output.from_pty(sys.stdout, term=None, enable_bell=False)
        output.enable_cpr = False  # no round trips, and no answers among the keys
        windows = [self._input(mode, buffer) for mode, buffer in self._buffers().items()]
        app: Application[None] = Application(
            layout=Layout(HSplit([self._live(), *windows, self._toolbar()]), focused_element=self.draft),
            key_bindings=bindings(self),
            style=Style.from_dict(RULES) if self._colours else None,
            color_depth=None if self._colours else ColorDepth.DEPTH_1_BIT,
            include_default_pygments_style=False,
            erase_when_done=True,
            min_redraw_interval=REDRAW_SECONDS,
            terminal_size_polling_interval=None,
            before_render=lambda _: self._print(),
            after_render=lambda _: self._painted.set(),
            output=output,
        )
        app.ttimeoutlen = app.timeoutlen = ESCAPE_SECONDS
        app.key_processor.after_key_press += lambda _: self._note_key()
        return app

    def _buffers(self) -> dict[Mode, Buffer]:
        return {"talk": self.draft, "ask": self.answer, "pick": self.words}

    # --- what is drawn -------------------------------------------------------------------------------------------

    def _input(self, mode: Mode, buffer: Buffer) -> ConditionalContainer:
        def prefix(line: int, wrap_count: int) -> StyleAndTextTuples:
            return classes(self._prompt() if line == wrap_count == 0 else [("", "  ")])

        window = Window(
            BufferControl(buffer, focusable=True),
            height=Dimension(min=1, max=INPUT_ROWS),
            wrap_lines=True,
            get_line_prefix=prefix,
            dont_extend_height=True,
        )
        return ConditionalContainer(window, Condition(lambda: self.mode == mode))

    def _prompt(self) -> Row:
        match self.mode:
            case "ask":
                assert self._question is not None
                from refold.views.questions import choices

                return [("yellow", f"{choices(self._question)} › ")]
            case "pick":
                return [("yellow", "go on with › ")]
            case "talk":
                return [("bold", "› ")]

    def _live(self) -> ConditionalContainer:
        content = FormattedTextControl(lambda: _lines(self._live_rows()))
        window = Window(content, height=lambda: Dimension.exact(len(self._live_rows())), dont_extend_height=True)
        return ConditionalContainer(window, Condition(lambda: bool(self._live_rows())))

    def _live_rows(self) -> list[Row]:
        size = self._size()
        if self.mode == "pick":
            return self._pick_rows(size.columns, max(1, min(PICK_ROWS, size.rows - 4)))
        most = max(1, size.rows - 4)
        return live_rows(self.board, time.monotonic(), size.columns, most)

    def _pick_rows(self, width: int, most: int) -> list[Row]:
        found = fitting(self._found, self.words.text)
        start = max(0, self._chosen - most + 1)
        rows: list[Row] = []
        for number, one in enumerate(found[start : start + most], start):
            chosen = number == self._chosen
            rows.append([("cyan" if chosen else "", f"{'▸' if chosen else ' '} {row(one, width - 3)}")])
        about = f"  {len(found)} of {len(self._found)} sessions: type to filter, Enter goes on, Esc leaves the list"
        return [*rows, [("dim", about[: width - 1])]]

    def _toolbar(self) -> Window:
        def text() -> StyleAndTextTuples:
            return classes(toolbar(self.board, time.monotonic(), self._size().columns))

        return Window(FormattedTextControl(text), height=1)

    def _size(self) -> Size:
        return self.app.output.get_size()

    def _print(self) -> None:
        """What is finished goes where the input line was, and the input line below it."""
        if not self._pending:
            return
        lines, self._pending = "".join(self._pending), []
        self.app.renderer.erase(leave_alternate_screen=False)
        self.app.output.write_raw(lines)

    def _add(self, line: Row) -> None:
        self._pending.append(escaped(line, colours=self._colours) + "\n")

    def _tick(self) -> None:
        self._timer = None
        if self.board.is_timed:
            self.changed()

    # --- Surface ---------------------------------------------------------------------------------------------------

    def changed(self) -> None:
        self.app.invalidate()
        if self.board.is_timed and self._timer is None and self.app.is_running:
            self._timer = asyncio.get_running_loop().call_later(1.0, self._tick)

    def say(self, text: str, look: str = "") -> None:
        from refold.views.shown import clean

        for line in clean(text).split("\n"):
            self._add([(look, line)])
        self.app.invalidate()

    def said(self, text: str) -> None:
        self.say("› " + text.replace("\n", "\n  "), "green")

    def part(self, text: str) -> None:
        *whole, tail = (self.board.tail + text).split("\n")
        for line in whole:
            self._add(self._marks.row(line))
        self.board.tail = tail
        self.app.invalidate()

    def end_part(self) -> None:
        if self.board.tail:
            self._add(self._marks.row(self.board.tail))
        self.board.tail = ""
        self._marks.reset()
        self.app.invalidate()

    def remember(self, file: SaidBefore) -> None:
        self.past.found(file)

    async def painted(self) -> None:
        await self._painted.wait()

    async def listen(self, person: Person) -> None:
        self.person = person
        try:
            await self.app.run_async(set_exception_handler=False)
        except EOFError:  # the terminal is gone
            person.leave()

    def close(self) -> None:
        if self.app.is_running and not self.app.is_done:
            self.app.exit()

    # --- questions -------------------------------------------------------------------------------------------------

    async def ask(self, question: Question) -> Verdict:
        from refold.views.questions import asked_lines

        for text, look in asked_lines(question):
            self.say(text, look)
        await self._until_nobody_types()
        self._question, self._verdict = question, asyncio.get_running_loop().create_future()
        self.answer.reset()
        self._turn_to("ask")
        try:
            given = await self._verdict
        finally:
            self._verdict = None
            self._turn_to("talk")
        self.say("  allowed" if given.allowed else "  not allowed", "green" if given.allowed else "red")
        return given

    def decide(self) -> None:
        """Enter in a question."""
        assert self._question is not None
        from refold.views.questions import AGAIN, verdict

        given = verdict(self.answer.text, self._question)
        if given is None:
            self.say(AGAIN, "yellow")
        elif self._verdict is not None and not self._verdict.done():
            self._verdict.set_result(given)
        self.answer.reset()

    async def pick(self, found: Sequence[Summary]) -> Summary | None:
        self._found, self._picked = found, asyncio.get_running_loop().create_future()
        self.words.reset()
        self._choose(0)
        self._turn_to("pick")
        try:
            return await self._picked
        finally:
            self._picked = None
            self._turn_to("talk")

    def chosen(self, *, none: bool = False) -> None:
        """Enter in the list; or it is left."""
        found = fitting(self._found, self.words.text)
        if self._picked is not None and not self._picked.done() and (found or none):
            self._picked.set_result(None if none else found[self._chosen])

    def move(self, rows: int) -> None:
        """Another session of the list."""
        self._choose(self._chosen + rows)

    def _choose(self, number: int) -> None:
        self._chosen = max(0, min(number, len(fitting(self._found, self.words.text)) - 1))

    def _turn_to(self, mode: Mode) -> None:
        self.mode = mode
        self.app.layout.focus(self._buffers()[mode])
        self.app.invalidate()

    # --- the draft -------------------------------------------------------------------------------------------------

    def send(self) -> None:
        """Enter in the draft: a backslash at its end asks for one more line."""
        text = self.draft.text
        if text.endswith("\\") and self.draft.document.is_cursor_at_the_end:
            self.draft.document = Document(text[:-1] + "\n")
            return
        self.draft.reset(append_to_history=bool(text.strip()))
        self.person.entered(text)

    async def _until_nobody_types(self) -> None:
        """Until then keys go on to the draft."""
        wait = QUIET_SECONDS
        while wait > 0:
            await asyncio.sleep(wait)
            wait = QUIET_SECONDS - (time.monotonic() - self._last_key)

    def _note_key(self) -> None:
        self._last_key = time.monotonic()


def _lines(rows: list[Row]) -> StyleAndTextTuples:
    return classes([part for number, one in enumerate(rows) for part in ([("", "\n")] if number else []) + [*one]])
