"""`/skills`: what the model knows of skills, at a terminal."""

from __future__ import annotations

from refold.testing import ResponsesServer


def test_skills_are_told_with_what_is_wrong_with_others(place):
    skills = place.folder / ".agents" / "skills"
    for name, text in (("deploy", "---\nname: deploy\ndescription: Ships it.\n---\n"), ("bad", "no head")):
        (skills / name).mkdir(parents=True)
        (skills / name / "SKILL.md").write_text(text)
    with ResponsesServer([]) as server:
        place.connect(server)
        chat = place.chat(rows=40, columns=250)
        chat.is_ready()
        chat.says("/skills")
        chat.sees("$deploy  Ships it.")
        chat.sees("is left out: it does not begin with a head")
        assert not server.requests
