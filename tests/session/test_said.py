"""What a user says: text with images beside it; an image is sent inline, labelled, and mirrored by its path."""

from __future__ import annotations

import asyncio
import base64
import json
import os
from pathlib import Path

import pytest

from refold.core.fragments import origin_of
from refold.core.items import PASSTHROUGH
from refold.core.profile import Profile
from refold.errors import ConfigError
from refold.rollout.catalogue import Catalogue
from refold.session import Session
from refold.session.said import said
from refold.testing import ScriptedModel

PNG = b"\x89PNG\r\n\x1a\n" + b"rest"


def test_an_image_stands_before_the_text_between_its_labels(tmp_path: Path) -> None:
    path = tmp_path / "p.png"
    path.write_bytes(PNG)
    parts = said("look", [path, "https://example.invalid/q.png"])
    assert [kind for kind, _ in parts] == ["user.text", "user.image", "user.text"] * 2 + ["user.text"]
    assert parts[0][1] == f'<image name=[Image #1] path="{path}">'
    assert parts[1][1] == {
        "type": "input_image",
        "image_url": f"data:image/png;base64,{base64.b64encode(PNG).decode()}",
        "detail": "high",
    }
    assert parts[3][1] == "<image name=[Image #2]>"
    assert parts[6][1] == "look"


@pytest.mark.parametrize(
    ("data", "kind"),
    [(b"\xff\xd8\xff\xe0", "jpeg"), (b"GIF89a..", "gif"), (b"RIFF\0\0\0\0WEBPVP8 ", "webp")],
)
def test_the_type_is_read_from_the_content(tmp_path: Path, data: bytes, kind: str) -> None:
    path = tmp_path / "picture"
    path.write_bytes(data)
    part = said("x", [path])[1][1]
    assert isinstance(part, dict)
    assert part["image_url"].startswith(f"data:image/{kind};base64,")


@pytest.mark.parametrize(
    ("data", "why"), [(b"%PDF-1.7", "is not a PNG"), (b"RIFF\0\0\0\0WAVE", "is not"), (None, "No such")]
)
def test_what_is_no_image_is_refused_by_name(tmp_path: Path, data: bytes | None, why: str) -> None:
    path = tmp_path / "p.png"
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(ConfigError, match=why) as caught:
        said("x", [path])
    assert str(path) in str(caught.value)


def test_what_never_ends_is_no_image(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.png"
    os.mkfifo(pipe)
    for name in (pipe, Path("/dev/zero")):
        with pytest.raises(ConfigError, match="is not a file"):
            said("x", [name])


def test_a_list_of_sessions_tells_what_was_typed_and_not_the_labels(tmp_path: Path) -> None:
    path = tmp_path / "p.png"
    path.write_bytes(PNG)

    async def play() -> None:
        async with Session.start(model=ScriptedModel(["x"]), cwd=tmp_path, home=tmp_path / "home") as session:
            await session.send("what is this?", images=[path, "https://e.invalid/q.png"])

    asyncio.run(play())
    (found,) = Catalogue(tmp_path / "home").sessions()
    assert found.first_text == "what is this?"


def test_the_log_holds_the_image_once_and_its_mirror_the_path(tmp_path: Path) -> None:
    path = tmp_path / "p.png"
    path.write_bytes(PNG)
    model = ScriptedModel(["A picture."])

    async def play() -> Path | None:
        async with Session.start(model=model, cwd=tmp_path, home=tmp_path / "home") as session:
            await session.send("look", images=[path])
            return session.path

    log = asyncio.run(play())
    assert log is not None
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    (item,) = [x["payload"] for x in lines if x["type"] == "response_item" and "input_image" in json.dumps(x)]
    assert origin_of(item) == "typed"
    assert item[PASSTHROUGH]["content_item_kinds"] == ["user.text", "user.image", "user.text", "user.text"]
    (mirror,) = [x["payload"]["item"] for x in lines if x["payload"].get("item", {}).get("type") == "UserMessage"]
    assert mirror["content"] == [
        {"type": "local_image", "path": str(path)},
        {"type": "text", "text": "look", "text_elements": []},
    ]
    assert log.read_bytes().count(b"data:image/png") == 1
    assert "data:image/png" in json.dumps(model.requests[0]["input"])


def test_a_wrong_image_begins_no_turn(tmp_path: Path) -> None:
    async def play() -> None:
        async with Session.start(model=ScriptedModel(["x"]), cwd=tmp_path, home=tmp_path / "home") as session:
            with pytest.raises(ConfigError):
                session.send("look", images=[tmp_path / "missing.png"])
            assert not session.busy
            assert (await session.send("hi")).text == "x"

    asyncio.run(play())


@pytest.mark.parametrize(
    ("data", "kind"), [(b"RIFF\0\0\0\0WAVEfmt ", "wav"), (b"ID3\3", "mpeg"), (b"\xff\xfb\x90", "mpeg")]
)
def test_audio_stands_before_the_text(tmp_path: Path, data: bytes, kind: str) -> None:
    path = tmp_path / "sound"
    path.write_bytes(data)
    sound, text = said("what is said?", audio=[path])
    assert sound[0] == "user.audio"
    assert isinstance(sound[1], dict)
    assert sound[1]["type"] == "input_audio"
    assert sound[1]["audio_url"].startswith(f"data:audio/{kind};base64,")
    assert text == ("user.text", "what is said?")


def test_a_picture_is_no_audio_and_the_other_way_round(tmp_path: Path) -> None:
    picture, sound = tmp_path / "p", tmp_path / "s"
    picture.write_bytes(PNG)
    sound.write_bytes(b"RIFF\0\0\0\0WAVE")
    with pytest.raises(ConfigError, match="is not a WAV or MP3 file"):
        said("x", audio=[picture])
    with pytest.raises(ConfigError, match="is not a PNG"):
        said("x", images=[sound])


def test_a_session_sends_audio(tmp_path: Path) -> None:
    path = tmp_path / "s.wav"
    path.write_bytes(b"RIFF\0\0\0\0WAVEfmt ")
    listening = Profile(slug="m", input_modalities=("text", "audio"))
    model = ScriptedModel(["a word"], profile=listening)

    async def play() -> None:
        async with Session.start(model=model, cwd=tmp_path, home=tmp_path / "home") as session:
            await session.send("what is said?", audio=[path])

    asyncio.run(play())
    assert "data:audio/wav" in json.dumps(model.requests[0]["input"])
