"""Estimate: what bytes / 4 and `refold.core.guess` say beside exact o200k counts, by kind of text.

`python -m bench.estimate` prints the table, `python -m bench.estimate weights` the weights for `guess`. The
texts are found in the development environment or made here. One half is there for the weights; the table is made of the
other half. A file belongs to one half, and so does a program that writes logs.
"""

from __future__ import annotations

import base64
import json
import random
import re
import sys
import sysconfig
from collections.abc import Callable, Iterator
from operator import mul
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

from refold.core.guess import SHAPES, WEIGHTS, guess_text
from refold.core.tokens import utf8_len
from refold.core.truncate import tokens_for

LIBRARY = Path(sysconfig.get_path("purelib"))
PROJECT = Path(__file__).parent.parent
SHORTEST, LONGEST = 200, 8_000  # bytes of a piece, of which short ones are as many as long ones
PER_SOURCE = 3  # pieces of one text, at most
PER_HALF = 300  # pieces of one kind, at most
MADE = 200  # texts of a kind that is made here

TABLE = (
    "| kind | pieces | bytes/4: bias | p95 of \\|error\\| | guess: bias | p95 of \\|error\\| |",
    "|---|---:|---:|---:|---:|---:|",
)

# Hundredths of a token that a pattern weighs at least (the texts hold too few of it), or just so.
LEAST = {b" ": 2, b"-": 2, b"000": 60, b"aaaaaaaa": 40, b"AAA": 30, b"\na": 80, b"t": 30}
GIVEN = {b"f": 200}

HAN, SIMPLIFIED, TRADITIONAL = map(re.compile, ("[一-鿿]", "[这为们]", "[這為們]"))
KANA, HANGUL, CYRILLIC, PSEUDO = map(re.compile, ("[ぁ-ヿ]", "[가-힣]", "[а-я]", "[क-ह]"))


class Source(NamedTuple):
    """One text, and whether it is kept for the table and plays no part in choosing weights."""

    text: str
    held_out: bool


class Piece(NamedTuple):
    text: str
    exact: int


# --- found texts -------------------------------------------------------------------------------------------


def found(pattern: str, root: Path = LIBRARY) -> Iterator[Source]:
    """Files of that name, in an order and of a half that only their own names decide."""
    named = sorted((crc32(path.relative_to(root).as_posix().encode()), path) for path in root.glob(pattern))
    for number, path in named:
        text = path.read_text(encoding="utf-8", errors="ignore")
        if len(text) > SHORTEST and utf8_len(text) < 1.1 * len(text):
            yield Source(text, number % 2 == 1)


def english() -> Iterator[Source]:
    yield from found("docs/*.md", PROJECT)
    yield from found("*.dist-info/METADATA")
    yield from found("**/*.md")


def code() -> Iterator[Source]:
    for python, script in zip(found("**/*.py"), found("**/node_modules/**/*.js"), strict=False):
        yield python
        yield script


def json_text() -> Iterator[Source]:
    for text, held_out in found("**/*.json"):
        yield Source(text, held_out)
        try:
            yield Source(json.dumps(json.loads(text), separators=(",", ":")), held_out)
        except ValueError:
            continue


def translations(is_wanted: Callable[[str], object]) -> Iterator[Source]:
    """What the type checker says in the wanted languages, 30 messages at a time; one of its tables is a language."""
    bundle = LIBRARY / "basedpyright" / "dist" / "pyright.js"
    for line in bundle.read_text(encoding="utf-8").splitlines() if bundle.is_file() else ():
        table = re.fullmatch(r"module\.exports = (?:/\*#__PURE__\*/)?JSON\.parse\('(.+)'\);?", line.strip())
        if not table or PSEUDO.search(line) or not is_wanted(line):
            continue
        said = list(leaves(json.loads(re.sub(r"\\(.)", r"\1", table[1]))))
        for start in range(0, len(said), 30):
            yield Source("\n".join(said[start : start + 30]), start // 30 % 2 == 1)


def leaves(value: Any) -> Iterator[str]:
    """Every text in a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, dict)):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from leaves(inner)


def chinese() -> Iterator[Source]:
    for index, paragraph in enumerate(CHINESE.split("\n\n")):
        yield Source("".join(map(str.strip, paragraph.splitlines())), index % 2 == 1)
    yield from translations(SIMPLIFIED.search)


def other_scripts() -> Iterator[Source]:
    for script in (TRADITIONAL, KANA, HANGUL, CYRILLIC):
        yield from translations(script.search)


def european() -> Iterator[Source]:
    others = (HAN, HANGUL, CYRILLIC)
    yield from translations(lambda table: not table.isascii() and not any(script.search(table) for script in others))


# --- made texts --------------------------------------------------------------------------------------------


def made(make: Callable[[random.Random], str]) -> Iterator[Source]:
    for seed in range(MADE):
        yield Source(make(random.Random(seed)), seed % 2 == 1)


def encoded() -> Iterator[Source]:
    """Base64 of bytes, in one line, in lines, and inside a data URL."""

    def one(dice: random.Random) -> str:
        text = base64.b64encode(dice.randbytes(LONGEST)).decode()
        match dice.randrange(3):
            case 0:
                return text
            case 1:
                return "\n".join(re.findall(".{1,76}", text))
            case _:
                return f"data:application/octet-stream;base64,{text}"

    return made(one)


def hexadecimal() -> Iterator[Source]:
    """Digests with file names, dumps of bytes, and lists of UUIDs."""

    def one(dice: random.Random) -> str:
        match dice.randrange(3):
            case 0:
                return "\n".join(f"{dice.randbytes(32).hex()}  {path(dice)}" for _ in range(80))
            case 1:
                rows = range(0, 0x1000, 16)
                return "\n".join(
                    f"{row:08x}  {dice.randbytes(8).hex(' ')}  {dice.randbytes(8).hex(' ')}" for row in rows
                )
            case _:
                return "\n".join(uuid(dice) for _ in range(200))

    return made(one)


def logs() -> Iterator[Source]:
    """Lines as programs write them, each text of one program; every other program is held out."""
    for seed in range(MADE):
        program = seed % len(LOGS)
        dice = random.Random(seed)
        yield Source("\n".join(LOGS[program](dice, second) for second in range(150)), program % 2 == 1)


def word(dice: random.Random) -> str:
    return dice.choice(WORDS)


def path(dice: random.Random) -> str:
    folders = "/".join(word(dice) for _ in range(dice.randrange(1, 4)))
    root, end = (
        dice.choice(("src", "/srv/app", "/usr/lib", "tests")),
        dice.choice(("py", "js", "cpp", "json", "rs", "txt")),
    )
    return f"{root}/{folders}/{word(dice)}_{word(dice)}.{end}"


def uuid(dice: random.Random) -> str:
    digits = dice.randbytes(16).hex()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def address(dice: random.Random) -> str:
    return ".".join(str(dice.randrange(256)) for _ in range(4))


def clock(dice: random.Random, second: int) -> str:
    return f"{7 + second // 60:02}:{second % 60 * 3 % 60:02}:{dice.randrange(60):02}"


def access(dice: random.Random, second: int) -> str:
    request = f"{dice.choice(('GET', 'POST', 'PUT'))} /{word(dice)}/{dice.randrange(99_999)}?{word(dice)}={word(dice)}"
    agent = "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/126.0.0.0 Safari/537.36"
    return (
        f"{address(dice)} - - [{dice.randrange(1, 29):02}/Mar/2026:{clock(dice, second)} +0000] "
        f'"{request} HTTP/1.1" {dice.choice((200, 200, 304, 404, 500))} {dice.randrange(90_000)} "-" "{agent}"'
    )


def service(dice: random.Random, second: int) -> str:
    level = dice.choice(("INFO", "INFO", "DEBUG", "WARNING", "ERROR"))
    return (
        f"2026-03-{dice.randrange(1, 29):02}T{clock(dice, second)}.{dice.randrange(1000):03}Z {level:<7} "
        f"[{word(dice)}.{word(dice)}] {word(dice)} {word(dice)} of {word(dice)} took {dice.randrange(9_000)} ms "
        f"request_id={uuid(dice)} user={dice.randrange(10**6)} status={dice.choice(('ok', 'retry', 'failed'))}"
    )


def structured(dice: random.Random, second: int) -> str:
    record = {
        "ts": 1_772_000_000 + second + dice.randrange(1000) / 1000,
        "level": dice.choice(("info", "warn", "error")),
        "msg": f"{word(dice)} {word(dice)} {word(dice)}",
        "trace_id": dice.randbytes(16).hex(),
        "span": {"id": dice.randbytes(8).hex(), "ms": dice.randrange(10**5) / 100},
        "peer": f"{address(dice)}:{dice.randrange(65_536)}",
    }
    return json.dumps(record)


def traceback(dice: random.Random, second: int) -> str:
    if second % 8 == 0:
        return "Traceback (most recent call last):"
    if second % 8 == 7:
        return f"{word(dice).title()}Error: {word(dice)} {dice.randrange(5_000)} has no {word(dice)!r}\n"
    call = f"{word(dice)}.{word(dice)}({word(dice)}, {word(dice)}={word(dice)})"
    return f'  File "{path(dice)}", line {dice.randrange(900)}, in {word(dice)}_{word(dice)}\n    return {call}'


def java(dice: random.Random, second: int) -> str:
    if second % 9 == 0:
        where = f"{word(dice)}.{word(dice).title()}"
        return f"{clock(dice, second)} [http-nio-8080-exec-{dice.randrange(20)}] ERROR o.s.{where}"
    name = f"{word(dice).title()}{word(dice).title()}"
    return (
        f"\tat org.{word(dice)}.{word(dice)}.{name}.{word(dice)}{word(dice).title()}({name}.java:{dice.randrange(900)})"
    )


def tests(dice: random.Random, second: int) -> str:
    name = f"tests/{word(dice)}/test_{word(dice)}.py::test_{word(dice)}_{word(dice)}_{word(dice)}"
    match second % 12:
        case 0:
            return f"{f' {word(dice)} session starts ':=^79}"
        case 10:
            said = f"E       AssertionError: assert {dice.randrange(999)} == {dice.randrange(999)}"
            return f"{said}\n\n{path(dice)}:{second}: AssertionError"
        case 11:
            return f"{'.' * dice.randrange(20, 72):<72} [{second * 100 // 150:3}%]"
        case _:
            return f"{name} {dice.choice(('PASSED', 'PASSED', 'FAILED', 'SKIPPED'))} [{second * 100 // 150:3}%]"


def packages(dice: random.Random, second: int) -> str:
    name, version = f"{word(dice)}-{word(dice)}", f"{dice.randrange(9)}.{dice.randrange(30)}.{dice.randrange(9)}"
    match dice.randrange(5):
        case 0:
            return f"Collecting {name}>={version}"
        case 1:
            return (
                f"  Downloading {name.replace('-', '_')}-{version}-py3-none-any.whl ({dice.randrange(9_000) / 10} kB)"
            )
        case 2:
            speed = f"{dice.randrange(99) / 10} MB/s eta 0:00:0{second % 10}"
            return f"     {'━' * 40} {dice.randrange(99) / 10}/9.9 MB {speed}"
        case 3:
            return f"npm warn deprecated {name}@{version}: this {word(dice)} is no longer supported"
        case _:
            return f"Requirement already satisfied: {name} in ./.venv/lib/python3.11/site-packages ({version})"


def journal(dice: random.Random, second: int) -> str:
    start = f"Mar {dice.randrange(1, 29):2} {clock(dice, second)} {word(dice)[:6]}-{dice.randrange(20)}"
    unit = f"{word(dice)}d[{dice.randrange(40_000)}]"
    return f"{start} {unit}: {word(dice)} {word(dice)} from {address(dice)}"


def listing(dice: random.Random, second: int) -> str:
    mode = dice.choice(("-rw-r--r--", "drwxr-xr-x", "-rwxr-xr-x"))
    date = f"Mar {second % 28 + 1:2} 12:{second % 60:02}"
    return f"{mode} {dice.randrange(9)} root root {dice.randrange(10**6):>8} {date} {path(dice)}"


def compiler(dice: random.Random, second: int) -> str:
    match second % 4:
        case 0:
            return (
                f"{path(dice)}:{dice.randrange(900)}:{dice.randrange(80)}: error: no {word(dice)} named '{word(dice)}'"
            )
        case 1:
            return f"  {dice.randrange(900)} |     {word(dice)}->{word(dice)}({word(dice)}, &{word(dice)}[{second}]);"
        case 2:
            return f"      | {' ' * dice.randrange(40)}^{'~' * dice.randrange(12)}"
        case _:
            return f"[{dice.randrange(400)}/400] Building CXX object {path(dice)}.o"


LOGS = (access, service, structured, traceback, tests, java, packages, journal, listing, compiler)
WORDS = tuple(
    """
    account adapter agent alias archive array backend balance batch binding branch bridge broker buffer build bundle
    cache callback channel checkpoint client cluster codec column commit config connection consumer context
    controller cookie counter cursor daemon database deadline decoder delivery deploy digest dispatcher document
    domain driver element endpoint engine entry event exporter factory feature fetch field filter format fragment
    gateway graph handler hash header health history image index ingest instance invoice iterator journal kernel
    latency layer leader lease ledger limit listener loader lock mapping marker member memory merge message metric
    migration mirror model monitor mount network node notify object offset operator order packet parser partition
    password payload payment peer pipeline plugin policy pool port prefix process producer profile project provider
    proxy publisher query queue quota range reader record region registry release replica report repository request
    reservation resolver resource response result retry route runner runtime sample schedule schema scope search
    secret segment sensor sequence serializer server session shard signal snapshot socket source stage state storage
    stream subscriber switch table target task template tenant thread threshold throttle timeout timer token topic
    trace transfer trigger tunnel upload validator vector version volume watcher webhook widget window worker writer
    zone
    """.split()  # noqa: SIM905 (a list of words reads better than a list of strings)
)

# Paragraphs made for this, one a kind of writing; their lines are joined.
CHINESE = """
    清晨的菜市场总是最热闹的。卖豆腐的老人把木板搭在三轮车上，切得方方正正的豆腐冒着白气；旁边的年轻姑娘一边收钱，一
    边用手机回复顾客的留言。她说现在一半的订单来自附近小区的群聊，前一天晚上报数，第二天七点以前送到楼下。买菜的人还
    是喜欢挑挑拣拣，捏一捏番茄，闻一闻香菜，顺便问问昨天那场雨有没有淹了地里的白菜。

    数据库迁移之前，请先确认备份可以恢复，而不仅仅是备份任务显示成功。我们曾经遇到过一次事故：备份文件每天按时生成，
    大小也正常，但由于加密密钥在半年前轮换过，旧的密钥没有保存下来，结果没有一份备份能够解开。从那以后，每个季度都要
    在隔离环境里完整演练一次恢复流程，并记录所用的时间。如果恢复时间超过四个小时，就必须调整方案。

    这个函数接收一个列表和一个可选的比较函数，返回排好序的新列表，不会修改原来的数据。当两个元素相等时，它们的先后顺
    序保持不变，也就是说排序是稳定的。需要注意的是，如果比较函数抛出异常，排序会立即停止，异常会原样传给调用者。对于
    超过一百万个元素的输入，建议先用 `chunk_size`参数分块处理，否则内存占用可能翻倍。

    外公年轻时在江边的造船厂工作，他常说木头是有脾气的。同样是杉木，长在阳坡的和长在阴坡的不一样，冬天砍的和夏天砍的
    也不一样。做船底的板子要放够三年，让它把水汽一点一点吐干净，急不得。后来厂里改造铁船，他就退下来，在院子里给街坊
    修桌椅。那把用了四十年的刨子，现在还挂在我书房的墙上。

    根据上半年的统计，全市新增注册企业一万二千三百家，同比增长百分之八点六，其中软件和信息服务业占比超过三成。受原材
    料价格上涨影响，制造业利润率略有下降，不过出口订单从五月份开始回升。报告同时指出，中小企业融资难的问题依然突出，
    平均贷款审批周期为二十三个工作日，比去年缩短了四天。

    问：为什么升级到 3.2 版本以后，页面打开变慢了？答：新版本默认开启了完整性校验，第一次加载时会重新计算所有静态文
    件的摘要。您可以在设置里把“启动时校验”改为“后台校验”，或者等待第一次校验完成，之后的速度会恢复正常。如果仍然
    很慢，请把 logs 目录下最近的日志发给我们，并注明操作系统和浏览器的版本。

    这趟火车要穿过两百多条隧道。刚在黑暗里听见耳膜嗡的一声，窗外忽然又亮了，山谷里的梯田一层一层铺到云边。对面坐着一
    位带孙女回老家的奶奶，她把煮好的玉米分给大家，说家里今年新修了水泥路，汽车可以一直开到门口。小姑娘趴在桌上画画，
    画的是一只长着翅膀的水牛，正从隧道的那头飞出来。

    系统采用主从结构，主节点负责写入，从节点负责查询。主节点每写完一条记录，就把它追加到日志中，从节点按照顺序读取并
    重放。网络中断时，从节点会记住自己最后处理的位置，恢复连接后继续；如果日志已经被清理，就需要重新做一次全量同步。
    为了防止两个节点同时认为自己是主节点，我们引入了租约机制：租约到期之前没有续约的节点必须停止接受写请求。
"""

KINDS: dict[str, Callable[[], Iterator[Source]]] = {
    "English, with its Markdown": english,
    "source code": code,
    "Chinese": chinese,
    "traditional Chinese, Japanese, Korean, Russian": other_scripts,
    "other European languages": european,
    "JSON": json_text,
    "logs": logs,
    "base64": encoded,
    "hex and UUIDs": hexadecimal,
}


# --- the table ---------------------------------------------------------------------------------------------


def exact_counter() -> Callable[[str], int]:
    """Exact o200k counts. Ends the program where no counter is installed."""
    try:
        import quicktok
    except ImportError:
        sys.exit("exact counts need a tokenizer that is not installed: install refold[tokens]")
    return quicktok.get_encoding("o200k_base").count


def pieces(kind: str, count: Callable[[str], int], *, held_out: bool) -> list[Piece]:
    """One half of a kind's texts, cut to pieces between SHORTEST and LONGEST bytes, with their exact counts."""
    dice = random.Random(kind)
    cut: list[Piece] = []
    for source in KINDS[kind]():
        if source.held_out != held_out:
            continue
        raw, at = source.text.encode(), 0
        for _ in range(PER_SOURCE):
            size = round(SHORTEST * (LONGEST / SHORTEST) ** dice.random())
            text = raw[at : at + size].decode(errors="ignore")
            if utf8_len(text) < SHORTEST:
                break
            cut.append(Piece(text, count(text)))
            at += size
        if len(cut) >= PER_HALF:
            break
    return cut


def quarter(text: str) -> int:
    return tokens_for(utf8_len(text))


def bias(guess: Callable[[str], int], of: list[Piece]) -> float:
    return sum(guess(piece.text) for piece in of) / sum(piece.exact for piece in of) - 1


def p95(guess: Callable[[str], int], of: list[Piece]) -> float:
    errors = sorted(abs(guess(piece.text) / piece.exact - 1) for piece in of)
    return errors[len(errors) * 95 // 100]


def rows() -> Iterator[str]:
    """The table, line by line: how far off both estimates are, over all of a kind and for single pieces."""
    count = exact_counter()
    for kind in KINDS:
        of = pieces(kind, count, held_out=True)
        if not of:
            yield f"| {kind} | 0 | | | | |"
            continue
        figures = (
            f"{figure(guess, of):{sign}.0%}"
            for guess in (quarter, guess_text)
            for figure, sign in ((bias, "+"), (p95, ""))
        )
        yield f"| {kind} | {len(of)} | {' | '.join(figures)} |"


def weights() -> Iterator[str]:
    """The weights that fit the other half of the texts best: least squares of the relative errors, every kind alike."""
    count, patterns = exact_counter(), list(WEIGHTS)
    square, aim = [[0.0] * len(patterns) for _ in patterns], [0.0] * len(patterns)
    for kind in KINDS:
        of = pieces(kind, count, held_out=False)
        for piece in of:
            shapes = f" {piece.text}".encode().translate(SHAPES)
            row = [shapes.count(pattern) / piece.exact for pattern in patterns]
            for one, left in enumerate(row):
                aim[one] += left / len(of)
                for other, right in enumerate(row):
                    square[one][other] += left * right / len(of)
    fitted = [GIVEN.get(pattern, LEAST.get(pattern, 0)) / 100 for pattern in patterns]
    for _ in range(3_000):
        for one, pattern in enumerate(patterns):
            if square[one][one] and pattern not in GIVEN:
                missing = aim[one] - sum(map(mul, square[one], fitted))
                fitted[one] = max(LEAST.get(pattern, 0) / 100, fitted[one] + missing / square[one][one])
    for pattern, weight in zip(patterns, fitted, strict=True):
        yield f"{pattern!r}: {round(weight * 100)},"


if __name__ == "__main__":
    print(*(weights() if sys.argv[1:] == ["weights"] else (*TABLE, *rows())), sep="\n")
