"""Keys: what each key does on the screen; the rest is prompt_toolkit's Emacs keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prompt_toolkit.filters import Condition
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

from refold.tui.commands import completed

if TYPE_CHECKING:
    from refold.tui.screen import Screen


def bindings(screen: Screen) -> KeyBindings:
    keys = KeyBindings()
    talking = Condition(lambda: screen.mode == "talk")
    picking = Condition(lambda: screen.mode == "pick")

    @keys.add("enter")
    def _(_: KeyPressEvent) -> None:
        {"talk": screen.send, "ask": screen.decide, "pick": screen.chosen}[screen.mode]()

    @keys.add("escape", "enter", filter=talking)
    def _(_: KeyPressEvent) -> None:
        screen.draft.insert_text("\n")

    @keys.add("escape")
    def _(_: KeyPressEvent) -> None:
        if screen.mode == "pick":
            screen.chosen(none=True)
        elif screen.board.state not in ("idle", "opening") or screen.board.hint:
            screen.person.stop()

    @keys.add("c-c")
    @keys.add("<sigint>")
    def _(_: KeyPressEvent) -> None:
        if screen.mode == "pick":
            screen.chosen(none=True)
        elif screen.board.state == "idle" and screen.draft.text:
            screen.draft.reset()
        else:
            screen.person.stop()

    @keys.add("c-d", filter=talking & Condition(lambda: not screen.draft.text))
    def _(_: KeyPressEvent) -> None:
        screen.person.leave()

    @keys.add("up", filter=picking)
    def _(_: KeyPressEvent) -> None:
        screen.move(-1)

    @keys.add("down", filter=picking)
    def _(_: KeyPressEvent) -> None:
        screen.move(1)

    @keys.add("tab", filter=talking)
    def _(_: KeyPressEvent) -> None:
        if (text := completed(screen.draft.text)) is not None:
            screen.draft.text = text
            screen.draft.cursor_position = len(text)

    @keys.add("c-l")
    def _(event: KeyPressEvent) -> None:
        event.app.renderer.clear()

    @keys.add("c-z")
    def _(event: KeyPressEvent) -> None:
        event.app.suspend_to_background()

    return keys
