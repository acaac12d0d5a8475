"""The outline of a history: what each section tells, how a budget is shared, and that nothing odd stops it."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from refold.core.compaction.outline import outline
from refold.core.compaction.outline.page import HEADINGS
from refold.core.fragments import SUMMARY_MARK
from refold.core.history import Entry, entry
from refold.core.items import Item, message

THREAD = "019be65b-1d89-77d0-8feb-712a8b5ae816"


def history(*items: Item | tuple[str, Item], thread: str = "T") -> list[Entry]:
    """Entries with ordinals from 1; (turn, item) says which turn an item belongs to."""
    pairs = [item if isinstance(item, tuple) else (None, item) for item in items]
    return [entry(item, f"{thread}:{number}", turn) for number, (turn, item) in enumerate(pairs, 1)]


def user(text: str) -> Item:
    return message("user", [text])


def said(text: str) -> Item:
    return message("assistant", [text])


def call(name: str, arguments: Any, call_id: str = "c") -> Item:
    return {"type": "function_call", "name": name, "arguments": json.dumps(arguments), "call_id": call_id}


def output(text: Any, call_id: str = "c") -> Item:
    return {"type": "function_call_output", "call_id": call_id, "output": text}


def exited(code: int, body: str = "", call_id: str = "c") -> Item:
    head = f"Chunk ID: 1\nWall time: 0.1 seconds\nProcess exited with code {code}\nOriginal token count: 1\nOutput:\n"
    return output(head + body, call_id)


def ran(command: str, code: int = 0, body: str = "", **arguments: Any) -> list[Item]:
    return [call("exec_command", {"cmd": command, **arguments}), exited(code, body)]


def patch(text: str, answer: str = "Success.") -> list[Item]:
    asked = {"type": "custom_tool_call", "name": "apply_patch", "input": text, "call_id": "c"}
    return [asked, {"type": "custom_tool_call_output", "call_id": "c", "output": answer}]


def section(text: str, heading: str) -> list[str]:
    """The lines of one section; empty when it is not there."""
    lines = text.split("\n")
    if f"## {heading}" not in lines:
        return []
    rest = lines[lines.index(f"## {heading}") + 1 :]
    end = next((i for i, line in enumerate(rest) if line in HEADINGS), len(rest))
    return rest[:end]


def told(heading: str, *items: Item | tuple[str, Item], budget: int = 4_000) -> list[str]:
    return section(outline(history(*items), budget), heading)


def tokens(text: str) -> int:
    return -(-len(text.encode()) // 4)


# --- goals and steers ----------------------------------------------------------------------------------------


def test_goals_are_the_typed_messages_in_the_order_of_the_log() -> None:
    items = [user("Fix the   test\nplease"), said("Done."), user("<environment_context>x"), user("Now the docs")]
    assert told("Goals", *items) == ["[T:1] Fix the test please", "[T:4] Now the docs"]


def test_what_is_typed_later_in_the_same_turn_is_a_steer() -> None:
    items = [("a", user("Go")), ("a", said("ok")), ("a", user("only billing/")), ("b", user("Next"))]
    assert told("Goals", *items) == ["[T:1] Go", "[T:4] Next"]
    assert told("Steers", *items) == ["[T:3] only billing/"]


def test_the_task_that_another_agent_gives_is_a_goal_and_its_report_is_none() -> None:
    def of(kind: str) -> Item:
        text = f"Message Type: {kind}\nPayload:\nlook at it"
        return {"type": "agent_message", "author": "a", "recipient": "b", "content": [{"type": "text", "text": text}]}

    assert told("Goals", of("NEW_TASK"), of("FINAL_ANSWER")) == ["[T:1] Message Type: NEW_TASK Payload: look at it"]


def test_the_first_and_the_newest_goal_are_kept_longest() -> None:
    items = [user(f"goal {number} " + "x" * 60) for number in range(30)]
    lines = told("Goals", *items, budget=200)
    assert lines[0].startswith("[T:1] goal 0 ")
    assert re.fullmatch(r"\(\d+ more\)", lines[1])
    assert lines[-1].startswith("[T:30] goal 29 ")
    assert len(lines) - 1 + int(lines[1][1:].split()[0]) == 30


# --- files -----------------------------------------------------------------------------------------------------


def test_files_of_patches_are_named_once_the_newest_first() -> None:
    first = patch("*** Begin Patch\n*** Update File: a.py\n@@\n*** Add File: b.py\n+x\n*** End Patch")
    second = patch("*** Begin Patch\n*** Update File: a.py\n*** Move to: c d.py\n*** Delete File: e\n*** End Patch")
    assert told("Files touched", *first, *second) == [
        "[T:3] a.py (patch: update)",
        "[T:3] c d.py (patch: move)",
        "[T:3] e (patch: delete)",
        "[T:1] b.py (patch: add)",
    ]


def test_a_patch_that_failed_touched_nothing() -> None:
    text = "*** Begin Patch\n*** Update File: a.py\n*** End Patch"
    items = patch(text, "apply_patch verification failed: no such lines")
    assert told("Files touched", *items) == []
    assert told("Last errors", *items)[0].startswith("[T:2] apply_patch *** Begin Patch")
    assert told("Last errors", *items, *patch(text)) == []


@pytest.mark.parametrize(
    ("command", "files"),
    [
        ("echo x > out.txt 2>&1", ["out.txt (>)"]),
        ("make 2>err.log >>log", ["err.log (>)", "log (>)"]),
        ("cat > 'a b.md' <<'EOF'\nrm -rf everything > not-this\nEOF\nrm old", ["a b.md (>)", "old (rm)"]),
        ("ls | tee -a x y", ["x (tee)", "y (tee)"]),
        ("sed -i 's/a/b/' ./x.py && sed -n 1p y.py", ["x.py (sed -i)"]),
        ("sed -i -e s/a/b/ x.py", ["x.py (sed -i)"]),
        ("perl -pi -e 's/a/b/' x.py", ["x.py (perl -i)"]),
        ("mv a b; cp c d/", ["a (mv)", "b (mv)", "d/ (cp)"]),
        ("FOO=1 sudo mkdir -p x/y", ["x/y (mkdir)"]),
        ("git add a.py -A . && git status", ["a.py (git add)"]),
        ("if true; then touch z; fi", ["z (touch)"]),
        ("apply_patch <<'EOF'\n*** Begin Patch\n*** Add File: n.py\n+x\n*** End Patch\nEOF", ["n.py (patch: add)"]),
        ("cat a > /dev/null; echo $x > $HOME/f; awk '$1 > 3' t; [[ a > b ]]; grep '>' q; f() -> g", []),
        ("cat < in.txt; wc -l rm mv", []),
    ],
)
def test_files_are_the_paths_that_a_command_surely_writes(command: str, files: list[str]) -> None:
    assert told("Files touched", *ran(command)) == [f"[T:1] {file}" for file in files]


# --- commands and errors -----------------------------------------------------------------------------------------


def test_commands_are_told_newest_first_once_with_their_newest_end_and_a_count() -> None:
    items = [*ran("pytest -q", 1, "E\n2 failed\n"), *ran("ls"), *ran("pytest  -q"), *ran("pytest -q")]
    assert told("Commands", *items) == [
        "[T:7] pytest -q -> exit 0 (x2)",
        "[T:5] pytest -q -> exit 0",
        "[T:3] ls -> exit 0",
    ]


def test_a_failed_command_shows_its_last_line_and_another_folder() -> None:
    items = [*ran("ls", workdir="/w"), *ran("make", 2, "cc x\nerror: no x.c\n\n", workdir="/v")]
    # The home is the folder of the newest command.
    assert told("Commands", *items) == [
        "[T:3] make -> exit 2; last line: error: no x.c",
        "[T:1] ls -> exit 0 (in /w)",
    ]


OLD_FORM = json.dumps({"output": "gone\n", "metadata": {"exit_code": 3, "duration_seconds": 0.1}})


@pytest.mark.parametrize(
    ("asked", "answer", "line"),
    [
        (call("shell", {"command": ["bash", "-lc", "ls x"]}), output(OLD_FORM), "ls x -> exit 3; last line: gone"),
        (call("shell_command", {"command": "ls"}), output("Exit code: 4\nWall time: 1 s\nOutput:\nno"), "ls -> exit 4"),
        (call("shell", {"command": ["git", "status"]}), output("clean"), "git status -> answered"),
        (call("exec_command", {"cmd": "ls"}), output("exec command rejected by user"), "ls -> failed"),
        (call("exec_command", {"cmd": "ls"}), exited(0, "Process exited with code 5\n"), "ls -> exit 0"),
        (
            call("exec_command", {"cmd": "ls"}),
            output("Command: sh -c 'x\nExit code: 3\n'\nProcess exited with code 7\nOutput:\n"),
            "ls -> exit 7",
        ),
        (call("exec_command", {"cmd": "ls"}), output([{"type": "input_text", "text": "Exit code: 6"}]), "ls -> exit 6"),
        (
            {"type": "local_shell_call", "call_id": "c", "action": {"type": "exec", "command": ["pwd"]}},
            exited(0),
            "pwd -> exit 0",
        ),
    ],
)
def test_every_generation_of_calls_and_outputs_is_read(asked: Item, answer: Item, line: str) -> None:
    assert told("Commands", asked, answer)[0].startswith(f"[T:1] {line}")


def test_a_script_tells_the_calls_that_it_makes() -> None:
    script = 'const r = await tools.exec_command({"cmd":"rm a"});\nawait tools.shell_command( {"command":"ls"} )'
    items: list[Item] = [
        {"type": "custom_tool_call", "name": "exec", "input": script, "call_id": "c"},
        {"type": "custom_tool_call_output", "call_id": "c", "output": "Script completed\nOutput:\n"},
    ]
    assert told("Commands", *items) == ["[T:1] rm a -> answered", "[T:1] ls -> answered"]
    assert told("Files touched", *items) == ["[T:1] a (rm)"]


def test_a_command_that_went_on_ends_as_the_wait_for_it_tells() -> None:
    running = output("Wall time: 1 seconds\nProcess running with session ID 7\nOutput:\n")
    begun = [call("exec_command", {"cmd": "make"}), running]
    wait = [call("write_stdin", {"session_id": 7, "chars": ""}), exited(2, "boom")]
    assert told("Commands", *begun) == ["[T:1] make -> running"]
    assert told("Commands", *begun, *wait) == ["[T:1] make -> exit 2; last line: boom"]
    assert told("Last errors", *begun, *wait) == ["[T:4] make -> exit 2: boom"]


def test_errors_that_a_later_run_made_obsolete_are_left_out() -> None:
    items = [*ran("make", 1, "a\nb\nc\nd\n"), *ran("pytest", 1, "x"), *ran("make")]
    assert told("Last errors", *items) == ["[T:4] pytest -> exit 1: x"]
    assert told("Last errors", *items[:2]) == ["[T:2] make -> exit 1: b / c / d"]


def test_a_failed_tool_that_is_no_command_is_an_error() -> None:
    items = [call("search", {"q": "x"}), output("Error: no index")]
    assert told("Last errors", *items) == ['[T:2] search {"q": "x"} -> failed: Error: no index']
    assert told("Last errors", call("search", {"q": "x"}), output("The errors are listed below")) == []


# --- decisions, plan, last -------------------------------------------------------------------------------------


def test_decisions_are_sentences_that_say_what_was_chosen_or_why() -> None:
    text = (
        "The file is long. I decided to split it. Shall I go on instead?\n- We'll keep `a.py` because b needs it.\n"
        "If you want, I will add tests.\n```\nwe will not quote code because\n```\n"
        "这个文件很长。我们决定改用新的解析器。"
    )
    assert told("Decisions stated", said(text), user("ok"), said("It goes. I decided to split it.")) == [
        "[T:3] I decided to split it.",
        "[T:1] We'll keep `a.py` because b needs it.",
        "[T:1] 我们决定改用新的解析器。",
    ]
    assert told("Decisions stated", said('{"why": "chosen because of it"}'), user("I decided on it.")) == []


def test_the_plan_is_what_the_newest_plan_leaves_open() -> None:
    def plan(*steps: tuple[str, str]) -> Item:
        return call("update_plan", {"plan": [{"step": step, "status": status} for step, status in steps]})

    old, new = plan(("old", "pending")), plan(("a", "completed"), ("b", "in_progress"), ("c", "pending"))
    assert told("Open plan items", old, new, output("Plan updated")) == ["[T:2] in_progress: b", "[T:2] pending: c"]
    assert told("Open plan items", new, plan(("a", "completed"))) == []


def test_lines_of_a_checklist_are_open_until_they_are_checked() -> None:
    items = [said("Plan:\n- [ ] one\n* [ ] two\n- [x] three"), said("- [x] one"), user("- [ ] not the model's")]
    assert told("Open plan items", *items) == ["[T:1] [ ] two"]


def test_what_was_being_done_last_is_the_last_text_and_the_call_without_output() -> None:
    items = [said("First."), *ran("ls"), said("Now make."), call("exec_command", {"cmd": "make"})]
    assert told("Doing last", *items) == ["[T:4] said: Now make.", "[T:5] called: make (no output)"]


# --- the page ----------------------------------------------------------------------------------------------------


def rich(turns: int, thread: str = THREAD) -> list[Entry]:
    """A history with something for every section."""
    items: list[Item | tuple[str, Item]] = []
    for n in range(turns):
        script = call("exec_command", {"cmd": f"make {n} > out/{n}.log"}, f"c{n}")
        items += [(f"t{n}", user(f"Goal {n}: 修好它")), (f"t{n}", user(f"steer {n}"))]
        items += [said(f"I decided on way {n}.\n- [ ] item {n}"), script, exited(n % 2, f"line {n}\nlast", f"c{n}")]
    return history(*items, call("exec_command", {"cmd": "wait"}, "last"), thread=thread)


def test_sections_stand_in_a_fixed_order_under_a_line_that_explains_the_threads() -> None:
    lines = outline(rich(8), 3_000, earlier="A summary.").split("\n")
    assert lines[1] == f"Threads: 019be65b = {THREAD}"
    assert [line for line in lines if line.startswith("## ")] == list(HEADINGS)
    assert all(re.match(r"\[019be65b:\d+\] |\(\d+\+? more\)$|## |A summary", line) for line in lines[2:])


def test_threads_that_begin_alike_get_names_that_differ() -> None:
    other = THREAD[:10] + "ffff-77d0-8feb-712a8b5ae816"
    text = outline([*history(user("a"), thread=THREAD), *history(user("b"), thread=other)], 500)
    assert section(text, "Goals") == ["[019be65b:1] a", f"[{other[:11]}:1] b".replace(other[:11], "019be65b-")]
    assert f"Threads: 019be65b = {THREAD}, 019be65b- = {other}" in text


def test_an_empty_history_and_one_that_says_nothing_have_no_outline() -> None:
    assert outline([], 1_000) == ""
    assert outline(history({"type": "reasoning", "summary": []}), 1_000) == ""
    assert outline(rich(3), 0) == ""
    assert outline(rich(3), -5) == ""


def test_nothing_of_a_share_is_lost_when_other_sections_are_empty() -> None:
    items = [item for n in range(200) for item in ran(f"command number {n}")]
    text = outline(history(*items), 500)
    lines = section(text, "Commands")
    assert 500 - tokens(text) < 10
    assert lines[0] == "[T:399] command number 199 -> exit 0"
    assert lines[-1].endswith("more)")


@pytest.mark.parametrize("budget", [30, 60, 100, 200, 500, 1_000, 5_000])
def test_an_outline_is_within_its_budget_and_uses_most_of_it(budget: int) -> None:
    text = outline(rich(300), budget, earlier="An older line.\n" * 400)
    assert tokens(text) <= budget
    assert budget < 200 or tokens(text) > budget * 0.8
    assert tokens("\n".join(section(text, "Earlier"))) <= budget // 3


def test_what_has_no_room_in_one_line_is_cut_in_its_middle_and_keeps_its_end() -> None:
    (line,) = told("Commands", *ran("echo " + "漢" * 2_000, 9, "bad"), budget=300)
    assert line.startswith("[T:1] echo 漢")
    assert line.endswith("漢 -> exit 9; last line: bad")
    assert "…" in line


# --- earlier -------------------------------------------------------------------------------------------------------


def test_a_summary_stands_first_and_loses_its_middle() -> None:
    summary = "\n".join(f"line {n} of the summary" for n in range(100))
    lines = section(outline(rich(2), 300, earlier=summary), "Earlier")
    assert lines[0] == "line 0 of the summary"
    assert lines[-1] == "line 99 of the summary"
    gone = next(line for line in lines if line.endswith("lines left out)"))
    assert int(gone[1:].split()[0]) == 100 - (len(lines) - 1)


def test_a_summary_of_one_endless_line_is_cut_too() -> None:
    (line,) = section(outline(rich(2), 300, earlier="word " * 5_000), "Earlier")
    assert line.startswith("word word")
    assert 300 < len(line.encode()) <= 400


def test_without_one_the_newest_summary_in_the_history_is_the_earlier_one() -> None:
    items = [user(SUMMARY_MARK + "the first"), user(SUMMARY_MARK + "the second"), user("Go on")]
    assert told("Earlier", *items) == ["the second"]
    assert told("Goals", *items) == ["[T:3] Go on"]


@pytest.mark.parametrize("budget", [60, 150, 400, 2_000])
@pytest.mark.parametrize("earlier", ["", "## Goals\n[old:3] x\n\n## Commands\n(3 more)\n" + "what was\n" * 90])
def test_an_outline_adds_nothing_to_a_new_one_of_the_same_history(budget: int, earlier: str) -> None:
    once = outline(rich(40), budget, earlier=earlier)
    assert outline(rich(40), budget, earlier=once) == once


def test_an_older_outline_keeps_what_the_new_history_no_longer_holds() -> None:
    old = outline(rich(3), 2_000)
    new_thread = "01a0b3da-c522-7af2-8a6d-2e1aed53b269"
    text = outline(history(user("New goal"), said("On it."), thread=new_thread), 2_000, earlier=old)
    earlier = section(text, "Earlier")
    assert earlier[:2] == ["### Goals", "[019be65b:1] Goal 0: 修好它"]
    assert "[019be65b:15] make 2 > out/2.log -> exit 0" not in earlier  # ordinal 14 is the call
    assert "[019be65b:14] make 2 > out/2.log -> exit 0" in earlier
    assert "### Doing last" not in earlier, "what is being done now stands below"
    assert text.split("\n")[1] == f"Threads: 019be65b = {THREAD}, 01a0b3da = {new_thread}"
    third = outline(history(user("Newer"), thread=new_thread), 2_000, earlier=text)
    assert section(third, "Earlier")[:2] == ["### Goals", "[019be65b:1] Goal 0: 修好它"]
