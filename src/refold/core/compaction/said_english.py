"""Said in English: whether a sentence forbids, requires or prefers something for good.

Rule 1: a clause counts by how it begins, so that what is told of somebody (`it never worked`) does not.
"""

from __future__ import annotations

import re

VERBS = frozenset(
    """
    accept access add address amend answer append apply ask assume auto-commit break build call change check clean
    close comment commit connect consult copy create cut delete depend deploy disable discard do document download
    drop edit enable execute explain expose extend fetch fix follow force force-push format generate give guess
    hard-code hardcode ignore import include inline install introduce invoke keep leave lint log make merge migrate
    mention mix mock modify move name omit open overwrite paste patch perform pin place post print publish pull push
    put quote raise re-run read rebase refactor reformat refer reference rely remove rename replace reply report
    regenerate rerun reset respond restart restore return review revert rewrite rotate run save send share ship show
    sign silence skip speak split squash stage start state stay stick stop store suppress swallow talk tag tell test
    touch translate treat trust type uninstall update upgrade upload use validate verify wait work wrap write
    """.split()  # noqa: SIM905 (a list of words reads better than a list of strings)
)
_VERB = "(?:" + "|".join(sorted(map(re.escape, VERBS), key=len, reverse=True)) + r")\b"
_LEAD = re.compile(
    r"^(?:please|pls|also|just|again|and|but|so|then|ok|okay|btw|important|remember|reminder|note|hard rule|rule"
    r"|one more thing|in general|generally|as always|instead|otherwise|still|really|simply|you|we"
    r"|i want you to|i need you to|i'd like you to|i expect you to|make sure(?: that)?(?: you| to)?"
    r"|be sure to|remember to|try to|in future|in the future)\b[,:! ]*"
)
_CLAUSES = re.compile(r"[,;:—–()]|\s-+\s|\b(?:and|but|so|then|or|because|since)\b")
_NO_VERB = frozenset(
    """
    a again all an any been before did does even ever found got had happened has have he heard i in is it knew made
    met mind more my no of on once one quite really said saw seen she so that the there they this thought to too
    took tried understood was we went were worked you your
    """.split()  # noqa: SIM905
)
_QUESTION = re.compile(
    r"^(?:should|shall|do(?! not\b)|does|did|is|are|was|were|am|can|could|would|will|won't|why|what|what's|how|who"
    r"|where|when did|which|whose|have|has|isn't|aren't|didn't|doesn't|don't you|don't we|shouldn't|wouldn't|may)\b"
)
_REPORTED = re.compile(
    r"\b(?:he|she|they|it|docs?|documentation|readme|log|error|message|output|warning|linter|compiler|manual|page"
    r"|tutorial|article|book|reviewer|colleague|boss|ticket|comment|test|function|method)\b[^.]{0,40}?"
    r"\b(?:says?|said|tells?|told|claims?|prints?|shows?|reads?|complains?|states?|mentions?|warns?|suggests?)\b"
)
_ONE_TIME = re.compile(
    r"\b(?:for now|right now|this time|this once|just once|just now|at the moment|for the moment|today"
    r"|tomorrow|tonight|yet|meanwhile|(?:first|next|last|this|that) (?:step|commit|run|pr|turn|one|case)"
    r"|for a (?:moment|while))\b"
)
_FROM_NOW = re.compile(
    r"\b(?:from (?:now|here|this point) on(?:wards?)?|from now onwards?|going forward|henceforth"
    r"|for the rest of (?:this|the|our) (?:session|conversation|project|chat))\b(?! (?:i'm|i am|i'll|i will|it|it's)\b)"
)
_DO_NOT = re.compile(r"^(?:do not|don't|dont|do n't)(?: (?:you )?(?:ever|just|simply|also))? (" + _VERB + ")")
_ANYWHERE = re.compile(
    r"\b(?:you|we) (?:should|must|may|can|shall|need to|have to|are to) (?:always|never|only(?! see| find| get))\b"
    r"|\byou (?:must|have to) (?:always |also )?(?!be\b|have\b|mean\b|know\b|think\b|see\b)" + _VERB +
    r"|\byou (?:must not|mustn't|may not|should not|shouldn't|shall not|are not (?:allowed|permitted) to|cannot ever)\b"
    r"|\bi (?:don't|do not|never) want (?:you to|any|to see any)\b"
    r"|\b(?:is|are) (?:strictly |absolutely |always )?"
    r"(?:off[- ]limits|forbidden(?! by)|prohibited|banned|non-negotiable|taboo)\b"
    r"|\b(?:no exceptions|without exception|at all times)\b"
    r"|\bread-only for you\b|\b(?:do not|don't|never), (?:under|in|at|not|ever)\b"
    r"|\b(?!this|is|was)[a-z]+s must (?:follow|use|pass|include|contain|start|end|stay|remain|keep|fit|comply|match)\b"
    r"|^(?:use|write|run|keep|put|do) .+\b(?:everywhere|throughout|for everything)\b"
)  # fmt: skip
_MUST = re.compile(r"\b([\w/.-]+) (?:must(?: not| never| always| only)\b|mustn't\b|may only\b|may never\b)")
_ALL_MUST = re.compile(
    r"^(?:every|each|all|any) .*\b(?:must|has to|have to|needs to|need to)\b"
    r"(?! have \w+(?:ed|en|wn)\b| be (?:around|about|due|because|wrong|broken)\b)"
)
_EACH_TIME = (
    re.compile(rf"^{_VERB}.*\b(?:before|after|with|at the end of) (?:every|each|any)\b"),
    re.compile(r"^(?:before|after|with) (?:every|each|any) (?:(?!(?:i|we|it|he|she|they)\b)\S+ ){1,5}?" + _VERB),
    re.compile(r"^(?:whenever|every time|each time|any time) you \w+.*?, (?:please |always |also )*" + _VERB),
    re.compile(r"^before you (?!go\b|ask\b)\w+.*?, (?:please )?always\b"),
)
_CLAUSE_RULES = (
    re.compile(rf"^(?:always|only) (?:ever )?(?:{_VERB}|be\b)"),
    re.compile(rf"^(?:{_VERB}) only (?!one|once|the first|the last|a\b)\w+"),
    re.compile(r"^only .+\b(?:may|must|should|is allowed to|are allowed to)\b"),
    re.compile(r"^(?:i |i'd |i would |we |we'd )?(?:strongly |always |generally )?prefer (?!to (?:do|see|wait|have)\b"
               r"|(?:the |this |that |your )?(?:it|option|first|second|third|latter|former|other|last|one|version)\b"
               r"|(?:this|that)(?: way)?[ .]*$)\S"),
    re.compile(r"^(?:avoid|stay away from|stay out of|keep out of|keep your hands off|hands off|stick to|stick with)\b"
               r"(?! the (?:plan|first|second|last)\b)"),
    re.compile(r"^(?:ask|check with|consult) (?:me )?(?:first )?before (?!we\b|i\b)"),
    re.compile(r"^leave .+\b(?:alone|untouched|as (?:it|they) (?:is|are))$"),
    re.compile(r"^keep (?!going|on\b|it up|trying|working|me posted).+\b(?:under|below|short|brief|concise|small|green"
               r"|in sync|compatible|up to date|at most|within|to a minimum|out of)\b"),
    re.compile(r"^(?:always )?(?:answer|reply|respond|speak|talk|write)\b.{0,30}? in "
               r"(?:plain |simple |british |american )?(?:english|german|french|spanish|chinese|japanese|italian"
               r"|portuguese|russian|korean|dutch)\b"),
    re.compile(r"^no (?:new|more|extra|additional|unrelated|external|third-party) (?:\w+ )?(?:dependenc|package|librar"
               r"|file|comment|emoji|abstraction|import|feature|global)\w*(?! (?:was|were|is|are|appeared|found))"),
    re.compile(r"^no (?:emojis?|comments|mocks|force[- ]push(?:es|ing)?|secrets|globals|abbreviations)\b"
               r"(?! (?:was|were|is|are|found|yet))"),
)  # fmt: skip
_I = frozenset({"i", "it", "this", "that", "there", "he", "she", "they", "which", "who"})


def is_english_rule(sentence: str) -> bool:
    """Whether a sentence, in lower case and without its quotes, is a rule."""
    words = " ".join(sentence.split())
    if _QUESTION.match(words) or _REPORTED.search(words):
        return False
    if _FROM_NOW.search(words):
        return True
    if _ONE_TIME.search(words):
        return False
    if _ANYWHERE.search(words) or any(pattern.search(words) for pattern in _EACH_TIME) or _ALL_MUST.search(words):
        return True
    if any(found[1] not in _I for found in _MUST.finditer(words)):
        return True
    clauses = [_without_lead(clause.strip()) for clause in _CLAUSES.split(words)]
    return any(_is_rule_clause(clause, is_first=index == 0) for index, clause in enumerate(clauses) if clause)


def _without_lead(clause: str) -> str:
    while (lead := _LEAD.match(clause)) is not None:
        clause = clause[lead.end() :]
    return clause.strip(" .!*_")


def _is_rule_clause(clause: str, *, is_first: bool) -> bool:
    if any(pattern.match(clause) for pattern in _CLAUSE_RULES) or _DO_NOT.match(clause):
        return True
    first, _, rest = clause.partition(" ")
    verb = rest.split(" ", 1)[0].strip(".,!*_")
    if first != "never" or not verb:
        return False
    return verb in VERBS or (is_first and _is_plain_form(verb))


def _is_plain_form(word: str) -> bool:
    """Whether a word may be a verb in its plain form: `vendor`, not `crashed`, `runs` or `again`."""
    past = word.endswith(("ed", "ing")) or (word.endswith("s") and not word.endswith("ss"))
    return word.isascii() and word.replace("-", "").isalpha() and not past and word not in _NO_VERB
