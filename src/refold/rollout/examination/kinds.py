"""Kinds: everything that an examination can find: what it is, what it does to the session, and what mends it.

Rule 1: whatever the reader tolerates (rollout/reader.py, core/lines/read.py) has a kind here.
Rule 2: damage is what loses or hides something, here or in the real program; all else is a note.
"""

from __future__ import annotations

import msgspec


class Kind(msgspec.Struct, frozen=True):
    """One kind of finding. `fixed`: a repair mends it; else `mend` says what would, "" where nothing has to."""

    name: str
    is_damage: bool
    what: str
    effect: str
    mend: str = ""
    fixed: bool = False


FIX = "refold doctor --fix"


def _damage(name: str, what: str, effect: str, mend: str = FIX) -> Kind:
    return Kind(name, True, what, effect, mend, mend.startswith(FIX))


def _note(name: str, what: str, effect: str, mend: str = "") -> Kind:
    return Kind(name, False, what, effect, mend, mend.startswith(FIX))


_FILE = (
    _note("compressed", "compressed with zstd", "it is read whole; a resume goes on in a plain file beside it"),
    _damage(
        "packed_name",
        "compressed, but not named .zst",
        "it can be looked at and forked, but not gone on with; the real program takes it for text",
    ),
    _note("packed_copy", "a compressed copy stands beside the file", "the plain file counts"),
    _damage("plain_name", "named .zst, but not compressed", "refold reads it; the real program cannot"),
    _damage(
        "packed_cut",
        "the compressed data ends in its middle or is broken",
        "what stood behind cannot be read; no session is resumed from it as it is",
        f"{FIX} keeps the lines before",
    ),
    _damage(
        "line_too_long",
        "a line of more than 1 GiB",
        "nothing from here on is read",
        f"{FIX} keeps the lines before",
    ),
    _damage("unreadable", "the disk cannot give what stands here", "nothing from here on is read", "a backup"),
    _damage("byte_order_mark", "a byte order mark", "refold skips it; the real program loses the first line"),
    _note("crlf", "a line that ends in CR LF", "none", FIX),
    _note("spaces_around", "spaces around a line", "none", FIX),
    _note("blank_line", "a blank line", "none; it counts as a line"),
    _note("no_line_end", "the last line is whole, but has no line end", "none; the next writer adds it", FIX),
    _damage("empty_file", "the file holds no line", "there is no session in it", "a backup"),
)

_TEXT = (
    _damage(
        "torn_line",
        "a line that ends in its middle",
        "this record is lost; all others count",
        f"{FIX} puts a remark in its place",
    ),
    _damage(
        "glued_lines",
        "lines without a line end between them",
        "none of them is read, and the real program skips them too",
        f"{FIX} parts them, and each counts again",
    ),
    _damage("not_json", "a line that is not JSON", "it is skipped", f"{FIX} puts a remark in its place"),
    _damage("not_an_object", "a line that is not a JSON object", "it is skipped", f"{FIX} puts a remark in its place"),
    _damage(
        "invalid_utf8",
        "bytes that are not UTF-8",
        "refold reads U+FFFD in their place; the real program skips the line",
    ),
    _damage(
        "half_surrogate",
        "half of a surrogate pair",
        "refold reads U+FFFD in its place; the real program skips the line",
    ),
    _damage(
        "loose_json",
        "JSON that only a forgiving reader takes",
        "refold reads it; the real program skips the line",
    ),
)

_ORDER = (
    _damage(
        "ordinal_missing",
        "a line without an ordinal among lines that have one",
        "its address is its line number; as the last line it keeps the real program from resuming",
    ),
    _damage(
        "ordinal_odd",
        "an ordinal that is no whole number from 0 on",
        "its address is its line number; the real program skips the line",
    ),
    _note("ordinal_gap", "ordinals with a gap", "lines were lost or taken out; what is there counts"),
    _damage(
        "ordinal_repeated",
        "an ordinal for the second time",
        "two lines have one address; most often two programs wrote at once",
    ),
    _damage(
        "ordinal_backwards",
        "an ordinal below those before it",
        "addresses are not in order; most often two programs wrote at once",
    ),
)

_RECORDS = (
    _note("bare_record", "a record of the first generation, without an envelope", "it counts"),
    _note("timestamp_missing", "a line without a time", "its time is unknown"),
    _note("unknown_record", "a record of a type that this version does not know", "it is kept, and changes nothing"),
    _note("unknown_item", "an item of a type that this version does not know", "it is kept, and not sent to a model"),
    _note("item_left_out", "an item that no history holds", "it is kept, and not sent to a model"),
    _note("unknown_event", "an event of a type that this version does not know", "it is kept, and changes nothing"),
    _damage(
        "unknown_shape",
        "a known record in an unknown shape",
        "it is kept, and changes nothing",
        "a version that knows it",
    ),
    _note("odd_value", "a value of another kind than it should be", "it is read as if it were not there"),
    _note("old_spelling", "an older name for something", "none"),
    _note("ghost_snapshot", "a snapshot of the working folder", "it is not part of the history"),
)

_SESSION = (
    _damage(
        "meta_missing",
        "no session_meta line",
        "nobody resumes the file: it does not say which session it is",
        f"{FIX} writes one, with the id in the file's name",
    ),
    _note("meta_late", "the session_meta line is not the first record", "it counts; a resume reads the whole file"),
    _note("meta_repeated", "the session_meta line again", "the first one counts"),
    _note("meta_of_another", "the session_meta line of another session", "copied ancestry; the first one counts"),
    _damage(
        "mode_unknown",
        "a history mode that this version does not know",
        "nobody resumes the file: it would be misread",
        "a version that knows it",
    ),
    _damage(
        "base_missing",
        "the file that this one goes on from is missing",
        "what stands in it is not part of the history",
        "put that file beside this one",
    ),
    _damage("not_resumed", "the session cannot be resumed", "see the reason", "see the reason"),
)

_CHECKPOINTS = (
    _note(
        "checkpoint_message_only",
        "a checkpoint without its history",
        "the history is rebuilt from the users' messages and the summary; tool calls before it are gone from it",
    ),
    _damage(
        "checkpoint_metadata",
        "a checkpoint whose replacement_history_metadata does not fit its history",
        "refold does not need it; the real program skips the checkpoint",
    ),
    _damage(
        "checkpoint_items",
        "a checkpoint whose history holds what is no item",
        "refold leaves that out; the real program skips the checkpoint",
    ),
    _note(
        "checkpoint_addresses",
        "a checkpoint whose addresses do not fit its history",
        "its items have the checkpoint's own address",
    ),
    _note("checkpoints_copied", "checkpoints that newer ones replaced take much of the file", "disk space only"),
    _damage(
        "blob_missing",
        "a text or picture that should lie beside the file is missing or damaged",
        "words that name it stand in its place",
        "put the session's .blobs folder back beside the file",
    ),
    _note("media_repeated", "images or sounds that stand in the file more than once", "disk space only"),
    _note("media_large", "an image or sound that many providers refuse for its size", "a request may be refused"),
)

_WORLD = (
    _note("world_unreadable", "a world_state line without a state", "the model is told of its surroundings again"),
    _note("world_patch", "a change of a world_state that is not known", "the model is told of its surroundings again"),
)

_TURNS = (
    _note("turn_open", "the last turn did not end", "its program was killed; a resume goes on with what is there"),
    _note("turn_never_ended", "a turn that did not end before the next began", "none; its program was killed"),
    _damage(
        "turns_overlap",
        "two turns at once",
        "two programs wrote this file; what both said is one history, mixed",
        "refold undo --turns N, or refold fork from before it",
    ),
    _note("rollback_beyond", "a rollback of more turns than there are", "nothing that was said before it counts"),
    _note("turn_failed", "a turn that failed", "what the provider refused may still be in the history"),
    _note("compaction_failed", "an attempt to compact that failed", "none; the history stayed as it was"),
    _note("media_left_out", "a summary that was asked for without images and sounds", "the summary does not know them"),
)

_ACTIVE = (
    _note("call_unanswered", "a call without an output", "each request answers it with `aborted`"),
    _note("output_orphaned", "an output without a call", "it is not sent"),
    _note("call_odd", "a call or output that is sent otherwise than it was recorded", "as it says"),
    _note("steer_waiting", "a message that was never delivered", "the next request brings it"),
)

KINDS = {
    kind.name: kind
    for kind in (*_FILE, *_TEXT, *_ORDER, *_RECORDS, *_SESSION, *_CHECKPOINTS, *_WORLD, *_TURNS, *_ACTIVE)
}
