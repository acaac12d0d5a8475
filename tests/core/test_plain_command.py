"""Which shell texts are plain, what of them only reads, and what can be remembered of them."""

from __future__ import annotations

import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refold.core.plain_command import Part, is_of_the_system, parts_of, prefix_of, reads_only, understood


def several(text: str) -> list[str]:
    """Commands, apart by broken bars, so that a table of them can be read."""
    return [command.strip() for line in text.strip().splitlines() for command in line.split("¦")]


# --- plain or not ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ls", [["ls"]]),
        ("  git   log\t-3 ", [["git", "log", "-3"]]),
        ("git commit -m 'it; works && $HOME `too` \\ *'", [["git", "commit", "-m", "it; works && $HOME `too` \\ *"]]),
        ('grep -n "a b" x', [["grep", "-n", "a b", "x"]]),
        ("echo a'b'\"c\"", [["echo", "abc"]]),
        ("echo ''", [["echo", ""]]),
        ("a && b || c; d", [["a"], ["b"], ["c"], ["d"]]),
        ("a;", [["a"]]),
        ("make CC=gcc", [["make", "CC=gcc"]]),
        ("git show HEAD^ --stat=80,40", [["git", "show", "HEAD^", "--stat=80,40"]]),
        ("echo 'Grüße'", [["echo", "Grüße"]]),
    ],
)
def test_plain_commands_are_read_word_by_word(text, words):
    parts = parts_of(text)
    assert parts is not None
    assert [list(part.words) for part in parts] == words


def test_what_reads_from_a_pipe_says_so():
    assert parts_of("a | b && c") == (Part(("a",)), Part(("b",), piped=True), Part(("c",)))


@pytest.mark.parametrize(
    "text",
    [
        *["", " ", ";", "&&", "a &&", "a |", "| a", "a ;; b", "a; ; b", "a && && b", ";a", "a ;;", "a || | b", "a | ;"],
        *[
            "echo $(id)",
            "echo `id`",
            'echo "$(id)"',
            'echo "`id`"',
            "echo $HOME",
            "echo ${HOME}",
            "echo $'a'",
            'echo "\\$"',
        ],
        *[
            "echo a > f",
            "echo a >> f",
            "cat < f",
            "cat <<E",
            "cat <<<x",
            "a 2>&1",
            "a &> f",
            "diff <(a) <(b)",
            "a |& b",
        ],
        *["a &", "a & b", "a&b", "(a)", "{ a; }", "f() { a; }", "! a", "if a; then b; fi", "for i in a; do b; done"],
        *["while a; do b; done", "[[ a ]]", "time a", "coproc a", "function f", "case a in b) c;; esac"],
        *["A=1 git log", "A=1", "PATH=/evil git log", "a; B=2 c", "A+=1 b", "a[0]=1 b", "'A=1' b"],
        *["ls *", "ls ?", "ls [ab]", "ls {a,b}", "ls ~", "cd ~/x", "ls ~root", "a=~ b", "a # b", "a#", "#a"],
        *[
            "a\nb",
            "a\rb",
            "echo 'a\nb'",
            "echo a\\ b",
            "a\\\nb",
            "a\0b",
            "echo '\x1b[2J'",
            "a\x0bb",
            "a\x0cb",
            "a\xa0b",
        ],
        *[
            "a\u3000b",
            "a\u2028b",
            "gıt log",
            "echo '\u202e'",
            "echo '\u200b'",
            "'unclosed",
            '"unclosed',
            "a'",
            "%1",
            "-x",
        ],
        "'' a",
    ],
)
def test_everything_else_is_not_plain(text):
    assert parts_of(text) is None


@pytest.mark.parametrize(
    "shell", ["bash", "sh", "/bin/sh", "/bin/bash", "/usr/bin/bash", "/usr/local/bin/bash", "dash"]
)
def test_shells_that_read_text_alike_are_understood(shell):
    assert understood(shell)


@pytest.mark.parametrize(
    "shell", ["zsh", "fish", "python3", "/w/bash", "./bash", "/tmp/bin/sh", "", "bin/bash", "/bash"]
)
def test_other_shells_and_those_of_other_places_are_not(shell):
    assert not understood(shell)


def test_only_a_shell_of_the_systems_folders_may_be_looked_at():
    assert is_of_the_system("/bin/sh") and is_of_the_system("/usr/bin/bash")
    for shell in ("bash", "/w/bash", "/bin/../w/bash", "/bin/zsh", "./bash"):
        assert not is_of_the_system(shell)


@pytest.mark.parametrize("shell", ["bash", "sh"])
@settings(max_examples=60, deadline=None)
@given(text=st.text(alphabet="ab1 '\"|&;$`\\#~*?!%^@=:,./-+_{}()<>\t", min_size=1, max_size=14))
def test_a_shell_reads_the_same_words(shell, text):
    """Each word of a plain text is echoed by a real shell as it was read here."""
    parts = parts_of(text)
    if parts is None or len(parts) > 1 or understood(parts[0].words[0]):
        return
    words = parts[0].words
    command = "printf '<%s>' " + text.rstrip(" ;\t")
    shown = subprocess.run([shell, "-c", command], capture_output=True, text=True, timeout=20, check=True)
    assert shown.stdout == "".join(f"<{word}>" for word in words)


# --- what only reads -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    several(
        """
        ls -la ¦ cat a b ¦ pwd ¦ echo hi ¦ head -n 3 f ¦ wc -l f ¦ grep -rn x . ¦ rg -n x src ¦ id ¦ true
        find . -name '*.py' -type f ¦ sed -n 1,20p f ¦ sed -n '$p' f ¦ sort -rn f ¦ sort -k2 f ¦ uniq -c f
        git status ¦ git log --oneline -3 ¦ git diff HEAD^ ¦ git --no-pager show ¦ git branch ¦ git branch -a
        git remote -v ¦ git rev-parse HEAD ¦ git ls-files ¦ git diff --no-ext-diff --output-indicator-new=x ¦ date
        date -u +%F ¦ tree -L 2 ¦ file f ¦ diff a b ¦ stat f ¦ jq .a f ¦ du -sh . ¦ uniq -
        """
    ),
)
def test_what_only_reads_is_known(text):
    [part] = parts_of(text) or []
    assert reads_only(part.words)


@pytest.mark.parametrize(
    "text",
    several(
        """
        rm f ¦ touch f ¦ tee f ¦ cp a b ¦ mv a b ¦ python x ¦ bash x ¦ env ¦ xargs ls ¦ awk x f ¦ printf x
        find . -exec rm '{}' ';' ¦ find . -execdir x ';' ¦ find . -ok x ';' ¦ find . -delete ¦ find . -fprint f
        find . -fprintf f x ¦ find . -fls f ¦ find . -fprint0 f ¦ find . -okdir x ';' ¦ rg --pre x y ¦ rg --pre=x y
        rg --hostname-bin x y ¦ rg -z x ¦ rg -nz x ¦ rg --search-zip x ¦ sed -i s/a/b/ f ¦ sed -n -i 1p f ¦ sed 1p f
        sed -n 1w f ¦ sed -n 'w f' g ¦ sed -n 1e f ¦ sed -n 1,2p -i f ¦ sort -o f g ¦ sort -of g ¦ sort -no f g
        sort --output=f g ¦ sort --out f g ¦ sort --compress-program=x f ¦ sort --comp x f ¦ sort -T d f ¦ uniq a b
        uniq -- a b ¦ date -s x ¦ date --set=x ¦ date 01010101 ¦ git ¦ git push ¦ git commit ¦ git checkout .
        git -c core.pager=x log ¦ git --exec-path=x log ¦ git --git-dir=x log ¦ git -C x log ¦ git --paginate log
        git -p log ¦ git --no-pager ¦ git help ¦ git log --output=f ¦ git log --outpu f ¦ git diff --ext-diff
        git show --textconv ¦ git diff --ext ¦ git branch x ¦ git branch -D x ¦ git branch -m x ¦ git branch --list x
        git remote add a b ¦ git remote set-url a b ¦ git config x y ¦ git grep -O x ¦ git stash
        git cat-file --filters x ¦ tree -o f ¦ file -C ¦ file -z f ¦ diff -l a b ¦ diff --paginate a b ¦ test -v x
        ./ls ¦ /bin/ls ¦ /tmp/ls ¦ ../cat f ¦ ps ¦ less f ¦ more f ¦ man x ¦ top ¦ cd x ¦ export A ¦ hash -r ¦ less
        command ls ¦ builtin echo ¦ exec ls ¦ eval ls ¦ source f ¦ . f ¦ type ls ¦ ssh h ls ¦ curl u
        uniq - a ¦ uniq -c - a
        """
    ),
)
def test_what_may_do_more_is_not(text):
    parts = parts_of(text)
    assert parts is None or not all(reads_only(part.words) for part in parts)


def test_no_words_do_nothing():
    assert not reads_only(())


# --- what can be remembered ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "prefix"),
    [
        ("git push origin main", "git push"),
        ("git push -u origin main --follow-tags", "git push"),
        ("go test -run x ./...", "go test"),
        ("npm run build --silent", "npm run build"),
        ("npm install left-pad", "npm install"),
        ("uv pip install x", "uv pip install"),
        ("docker compose up -d", "docker compose up"),
        ("cargo test -q", "cargo test"),
        ("make deploy now", "make deploy now"),
        ("./script.sh one two", "./script.sh one two"),
        ("/usr/bin/git push x", "/usr/bin/git push"),
        ("touch a", "touch a"),
    ],
)
def test_a_prefix_is_no_more_than_one_thing(text, prefix):
    [part] = parts_of(text) or []
    assert " ".join(prefix_of(part.words)) == prefix


@pytest.mark.parametrize(
    "text",
    several(
        """
        bash x ¦ sh -c x ¦ /bin/sh x ¦ ./bash x ¦ python x.py ¦ python3.12 x.py ¦ /opt/python3 x ¦ node x ¦ env A
        sudo ls ¦ xargs rm ¦ ssh h ¦ eval x ¦ exec x ¦ source x ¦ . x ¦ command ls ¦ nohup x ¦ timeout 1 x
        find . -name x ¦ awk x ¦ perl x ¦ watch x ¦ busybox sh ¦ npx x ¦ uvx x ¦ tmux x ¦ git ¦ git -c x push
        git -C x push ¦ git --exec-path=x y ¦ npm ¦ npm run ¦ npm run -s x ¦ npm exec x ¦ uv run x ¦ docker run x
        docker exec x ¦ kubectl exec x ¦ git config x ¦ git rebase x ¦ go run x ¦ cargo run
        git push --exec=x a ¦ git push --receive-pack x a ¦ git fetch --upload x a ¦ git push 'ext::sh -c x'
        git clone -u x a ¦ git clone -c a=b c ¦ git init --template=x ¦ go test -exec x ¦ go build -toolexec=x
        cargo build --config=x ¦ npm x y ¦ npm init y ¦ docker create x
        docker compose -f x ¦ cd x ¦ hash -p x git ¦ alias x ¦ test x ¦ printf x
        """
    ),
)
def test_what_runs_anything_is_nothing_to_remember(text):
    parts = parts_of(text) or ()
    assert [prefix_of(part.words) for part in parts] == [()]


def test_no_words_are_nothing_to_remember():
    assert prefix_of(()) == ()
