"""Said rules: which sentences of a person's message forbid, require or prefer something for good; English and Chinese.

Conservative: a question, a report, a quote of code or output and a wish for one action are none.
Rule 1: a sentence is judged by its own words, and never changed. Rule 2: only what people typed is looked at.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from refold.core.compaction.said_chinese import is_chinese_rule
from refold.core.compaction.said_english import is_english_rule
from refold.core.compaction.sentences import Sentence, sentences_of

# Without one of these nothing is a rule: most sentences need not be looked at any closer.
_SIGNS = (
    *(
        "never",
        "always",
        "only",
        "n't",
        "dont",
        "not ",
        "must",
        "prefer",
        "avoid",
        "from now",
        "from here",
        "from this",
    ),
    *("forward", "henceforth", "for the rest", "at all times", "exception", "taboo", "every", "each ", "all ", "any "),
    *("have to", "whenever", "without", "forbidden", "limits", "hands off", "stay ", "stick ", "ask ", "consult"),
    *("check with", "keep", "leave", "no ", "answer", "reply", "respond", "write", "speak", "talk", "banned"),
    *("prohibited", "negotiable", "throughout"),
)
_BULLET = re.compile(r"^(?:[-*+•–]|\(?\d{1,3}[.)]|[a-z][.)])\s+")
_QUOTED = re.compile(r"`[^`]*`|\"[^\"]*\"|“[^”]*”|「[^」]*」|『[^』]*』|(?<!\w)'[^']+'(?!\w)")
_CHINESE = re.compile("[\u4e00-\u9fff]")
_PLAIN = str.maketrans(
    "’‘遠絕對須總從現後優請別務嚴僅盡儘開問許准準動寫編輯執運測試刪個這時間會嗎為麼樣應該讓經確認復",
    "''远绝对须总从现后优请别务严仅尽尽开问许准准动写编辑执运测试删个这时间会吗为么样应该让经确认复",
)


def is_rule(sentence: str) -> bool:
    """Whether a sentence, in its writer's own words, forbids, requires or prefers something for good."""
    bare = sentence.strip().translate(_PLAIN).lower()
    is_chinese = not bare.isascii() and _CHINESE.search(bare) is not None
    if bare.endswith(("?", "？")) or not (is_chinese or any(sign in bare for sign in _SIGNS)):
        return False
    words = _QUOTED.sub(" x ", _BULLET.sub("", bare.lstrip("#*_> ")))
    return (is_chinese and is_chinese_rule(words)) or is_english_rule(words.strip(" *_"))


def rules_in(texts: Sequence[str], but: Collection[str] = ()) -> list[list[tuple[Sentence, bool]]]:
    """The sentences of a message's text parts, part by part, each with whether it is a rule; `but`: rules that somebody
    dropped."""
    judged: list[list[tuple[Sentence, bool]]] = []
    for text, sentences in zip(texts, sentences_of(texts), strict=True):
        found = [(one, one.own and (words := one.of(text)) not in but and is_rule(words)) for one in sentences]
        judged.append(found)
    return judged
