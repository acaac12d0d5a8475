"""Walls around real commands, most of which try to get through them."""

from __future__ import annotations

import asyncio
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from refold.core.permissions import Sandbox, WorkspaceWrite
from refold.errors import ToolFailed
from refold.tools.process import Process
from refold.tools.sandbox import argv_in, sandbox_fault, sandbox_of, sandbox_works, socket_filter

PATIENCE = 30  # seconds that nothing here needs

walled = pytest.mark.skipif(not sandbox_works(), reason=f"no sandbox here: {sandbox_fault()}")


class Walls:
    """A workspace beside a folder that is none of it, and refold's home; commands run inside walls around them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.work, self.beyond, self.home = folder / "work", folder / "beyond", folder / "home"
        for made in (self.work, self.beyond, self.home):
            made.mkdir()
        (self.beyond / "file").write_text("untouched")
        (self.home / "config.toml").write_text("key-of-mine")

    def sandbox(self, **settings: bool | tuple[str, ...]) -> Sandbox:
        given = WorkspaceWrite(**{"exclude_slash_tmp": True, **settings})  # type: ignore[arg-type]
        found = sandbox_of("workspace-write", given, str(self.work), {}, (self.home,))
        assert found is not None
        return found

    def run(self, command: str, sandbox: Sandbox | None = None, **environ: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            argv_in(sandbox or self.sandbox(), ["bash", "-c", command], str(self.work)),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=environ or {"PATH": os.environ["PATH"]},
            start_new_session=True,
            timeout=PATIENCE,
            check=False,
        )


@pytest.fixture
def walls(tmp_path: Path) -> Walls:
    return Walls(tmp_path)


# --- writing ---------------------------------------------------------------------------------------------------------


@walled
def test_the_workspace_can_be_written(walls):
    assert walls.run("echo new > made && mkdir d && mv made d/").returncode == 0
    assert (walls.work / "d/made").read_text() == "new\n"


@walled
@pytest.mark.parametrize(
    "command",
    [
        "echo x > $BEYOND/file",
        "echo x > ../beyond/file",
        "echo x > /proc/self/root$BEYOND/file",
        "echo x > /proc/self/cwd/../beyond/file",
        "echo x > /dev/fd/../cwd/../beyond/file",
        "ln -s $BEYOND out; echo x > out/file",
        "ln -s $BEYOND/file f; echo x > f",
        "ln $BEYOND/file hard && echo x > hard",
        "rm -f $BEYOND/file",
        "mv $BEYOND elsewhere; mkdir $BEYOND",
        "chmod 777 $BEYOND/file; chown 1:1 $BEYOND/file; echo x > $BEYOND/file",
        "exec 3<$BEYOND/file; echo x > /proc/self/fd/3",
        "mount -o remount,rw $BEYOND; mount -o remount,rw /; echo x > $BEYOND/file",
        "umount -l $WORK; umount -l /; echo x > $BEYOND/file",
        "unshare -Urm sh -c 'mount -o remount,rw,bind /; mount -o remount,rw /; echo x > $BEYOND/file'",
        "unshare -Urmpf sh -c 'mount --bind / /mnt; mount -o remount,rw /mnt; echo x > /mnt$BEYOND/file'",
        "nsenter -t 1 -m sh -c 'echo x > $BEYOND/file'",
        "chroot /proc/1/root sh -c 'echo x > $BEYOND/file'",
        "bwrap --bind / / sh -c 'echo x > $BEYOND/file'",
        "sudo -n sh -c 'echo x > $BEYOND/file'; su -c 'echo x > $BEYOND/file'",
        "cp $(command -v sh) s && chown 0 s && chmod 4755 s && ./s -p -c 'echo x > $BEYOND/file'",
        "mknod disk b 259 0; mknod disk b 8 0; cat disk > $BEYOND/file",
        "(setsid sh -c 'sleep 0.1; echo x > $BEYOND/file' &) ; sleep 0.3",
    ],
)
def test_nothing_outside_the_workspace_can_be_written(walls, command):
    walls.run(command, PATH=os.environ["PATH"], BEYOND=str(walls.beyond), WORK=str(walls.work))
    assert (walls.beyond / "file").read_text() == "untouched"
    assert [path.name for path in walls.beyond.iterdir()] == ["file"]
    assert (walls.beyond / "file").stat().st_mode & 0o777 == 0o644 & ~_umask()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@walled
def test_read_only_writes_nowhere(walls):
    sandbox = sandbox_of("read-only", WorkspaceWrite(network_access=True), str(walls.work), {}, (walls.home,))
    assert sandbox is not None and (sandbox.writable, sandbox.network) == ((), False)
    assert walls.run("echo x > here", sandbox).returncode != 0
    assert walls.run("echo x > /tmp/refold-was-here", sandbox).returncode != 0
    assert walls.run("cat ../beyond/file", sandbox).stdout == "untouched"


@walled
def test_temporary_folders_are_writable_unless_that_is_set(walls, tmp_path_factory):
    temporary = tmp_path_factory.mktemp("temporary")
    environ = {"TMPDIR": str(temporary)}
    cwd = str(walls.work)
    usual = sandbox_of("workspace-write", WorkspaceWrite(), cwd, environ, ())
    neither = WorkspaceWrite(exclude_slash_tmp=True, exclude_tmpdir_env_var=True)
    assert usual is not None and usual.writable == (cwd, "/tmp", str(temporary))
    assert sandbox_of("workspace-write", neither, cwd, environ, ()) == Sandbox(writable=(cwd,))
    assert walls.run(f"echo x > {temporary}/made", usual).returncode == 0
    assert (temporary / "made").exists()


@walled
def test_a_writable_folder_that_is_a_link_is_the_folder_it_means(walls):
    (walls.folder / "more").mkdir()
    (walls.folder / "link").symlink_to("more")
    sandbox = walls.sandbox(writable_roots=(str(walls.folder / "link"), "/nowhere"))
    assert sandbox.writable == (str(walls.work), str(walls.folder / "more"))
    assert walls.run("echo x > ../link/made", sandbox).returncode == 0
    assert (walls.folder / "more/made").exists()


# --- what stays read-only inside the workspace -----------------------------------------------------------------------


@walled
@pytest.mark.parametrize(
    "command",
    [
        "echo evil > .git/hooks/pre-commit",
        "echo evil >> .git/config",
        "echo evil > .git/config.worktree",
        "echo ../evil > .git/commondir",
        "mkdir -p .git/modules/m/hooks",
        "mv .git old; mkdir -p .git/hooks; echo evil > .git/hooks/pre-commit",
        "rm -rf .git; mkdir -p .git/hooks; echo evil > .git/hooks/pre-commit",
        "mkdir evil; mount --bind evil .git; echo evil > .git/hooks",
        "ln -s .git g; echo evil > g/hooks/pre-commit",
        "echo evil > .codex/rules; echo evil > .refold/rules",
        "rm -rf .codex .refold; mkdir .codex; echo evil > .codex/rules",
    ],
)
def test_what_git_or_an_agent_would_obey_is_not_written(walls, command):
    (walls.work / ".git/hooks").mkdir(parents=True)
    (walls.work / ".git/config").write_text("[core]\n")
    for name in (".codex", ".refold"):
        (walls.work / name).mkdir()
    before = {path: path.read_bytes() for path in walls.work.rglob("*") if path.is_file()}
    walls.run(command)
    kept = [walls.work / ".git", walls.work / ".codex", walls.work / ".refold"]
    assert {path: path.read_bytes() for top in kept for path in top.rglob("*") if path.is_file()} == before
    assert all(not path.is_symlink() for path in kept)


@walled
def test_git_file_of_a_worktree_is_not_written(walls):
    (walls.work / ".git").write_text("gitdir: /elsewhere")
    walls.run("echo evil > .git; rm -f .git; mv .git x")
    assert (walls.work / ".git").read_text() == "gitdir: /elsewhere"


@walled
def test_folders_on_the_way_to_a_guarded_one_stay_where_they_are(walls):
    deep = walls.folder / "a/b/work"
    (deep / ".git/hooks").mkdir(parents=True)
    around = walls.sandbox(writable_roots=(str(walls.folder), str(deep)))
    command = (
        f"mv {walls.folder}/a {walls.folder}/c; mv {walls.folder}/a/b {walls.folder}/a/c; mv {walls.home} {walls.work}"
    )
    walls.run(command, around)
    assert (deep / ".git/hooks").is_dir()
    assert walls.run(f"echo x > {walls.folder}/a/made", around).returncode == 0  # but can be written


@walled
def test_a_repository_can_be_begun(walls):
    assert walls.run("git init -q . && test -d .git/hooks").returncode == 0
    assert walls.run("touch .git/again").returncode != 0


# --- reading what is secret ------------------------------------------------------------------------------------------


@walled
@pytest.mark.parametrize(
    "command",
    [
        "cat $HOMES/config.toml",
        "cat /proc/self/root$HOMES/config.toml",
        "cat $HOMES/../home/config.toml",
        "cat $HOMES/link.toml",
        "ln -s $HOMES h; cat h/config.toml",
        "ln $HOMES/config.toml hard; cat hard",
        "cp -r $HOMES copy; cat copy/*",
        "umount $HOMES/config.toml; cat $HOMES/config.toml",
        "unshare -Urm sh -c 'umount $HOMES/config.toml; cat $HOMES/config.toml'",
        "unshare -Urm sh -c 'mount --bind $HOMES /mnt; cat /mnt/config.toml'",
        "unshare -Urm sh -c 'mount --rbind / /mnt; umount -l /mnt$HOMES/config.toml; cat /mnt$HOMES/config.toml'",
        "mv $HOMES other; cat other/config.toml",
        "tar -c $HOMES | cat",
    ],
)
@pytest.mark.parametrize("inside", [False, True])
def test_refolds_keys_cannot_be_read(walls, command, inside):
    (walls.home / "link.toml").symlink_to("config.toml")
    sandbox = walls.sandbox(writable_roots=(str(walls.folder),) if inside else ())
    ended = walls.run(command, sandbox, PATH=os.environ["PATH"], HOMES=str(walls.home))
    assert "key-of-mine" not in ended.stdout + ended.stderr


@walled
@pytest.mark.parametrize("there", [True, False])
def test_refolds_home_inside_the_workspace_is_not_written(walls, there):
    home = walls.work / "own"
    if there:
        home.mkdir()
    sandbox = sandbox_of("workspace-write", WorkspaceWrite(), str(walls.work), {}, (home,))
    walls.run("mkdir own; echo evil > own/approved.json; mv own o; mkdir own; echo evil > own/approved.json", sandbox)
    assert not (home / "approved.json").exists()


@walled
def test_no_process_outside_can_be_seen_or_signalled(walls):
    with subprocess.Popen(["sleep", "30"], env={"MINE": "key-of-mine"}) as other:
        ended = walls.run(f"cat /proc/[0-9]*/environ /proc/{other.pid}/environ; kill -9 {other.pid}; echo /proc/[0-9]*")
        assert other.poll() is None
        other.kill()
    assert "key-of-mine" not in ended.stdout
    assert str(os.getpid()) not in ended.stdout and len(ended.stdout.split("/proc/")) < 6


@walled
def test_a_command_has_no_capabilities(walls):
    ended = walls.run("grep -E '^Cap(Eff|Prm|Bnd)|^NoNewPrivs' /proc/self/status")
    assert [line.split()[1].lstrip("0") for line in ended.stdout.splitlines()] == ["", "", "", "1"]


# --- network ---------------------------------------------------------------------------------------------------------

CONNECT = "import socket; socket.create_connection(('127.0.0.1', {port}), 2).sendall(b'out')"
CONNECT_UNIX = "import socket; s = socket.socket(socket.AF_UNIX); s.connect({path!r}); s.sendall(b'out')"
SEND_UNIX = (
    "import socket; a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM); "
    "a.sendto(b'out', {path!r}); print('out')"
)


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(PATIENCE)
        yield server


def python(code: str) -> str:
    return f'{sys.executable} -c "{code}"'


@walled
def test_network_is_off_unless_it_is_set(walls, listener):
    code = python(CONNECT.format(port=listener.getsockname()[1]))
    refused = walls.run(code)
    assert refused.returncode != 0 and "refused" in refused.stderr
    connected: list[bytes] = []

    def accept() -> None:
        with listener.accept()[0] as connection:
            connected.append(connection.recv(10))

    accepting = threading.Thread(target=accept)
    accepting.start()
    allowed = walls.run(code, walls.sandbox(network_access=True))
    accepting.join(PATIENCE)
    assert (allowed.returncode, connected) == (0, [b"out"])


@walled
def test_a_command_has_a_loopback_of_its_own(walls):
    code = "import socket; s = socket.create_server(('127.0.0.1', 0)); socket.create_connection(s.getsockname())"
    assert walls.run(python(code)).returncode == 0


@walled
@pytest.mark.parametrize(("kind", "code"), [(socket.SOCK_STREAM, CONNECT_UNIX), (socket.SOCK_DGRAM, SEND_UNIX)])
def test_sockets_of_the_machine_are_a_network_too(walls, kind, code):
    path = str(walls.work / "s")
    with socket.socket(socket.AF_UNIX, kind) as server:
        server.bind(path)
        if kind == socket.SOCK_STREAM:
            server.listen()
        ended = walls.run(python(code.format(path=path)))
        assert ended.returncode != 0 and "not permitted" in ended.stderr
        assert walls.run(python(code.format(path=path)), walls.sandbox(network_access=True)).returncode == 0


@walled
def test_pairs_of_sockets_work(walls):
    code = "import socket; a, b = socket.socketpair(); a.sendall(b'x'); print(b.recv(1))"
    assert walls.run(python(code)).stdout == "b'x'\n"


@walled
@pytest.mark.skipif(platform.machine() != "x86_64", reason="numbers of x86-64")
@pytest.mark.parametrize("call", ["41 + 0x40000000, 1, 1, 0", "425, 8, 0, 0", "41, 40, 1, 0", "41, 17, 3, 0"])
def test_no_other_way_to_a_socket(walls, call):
    code = f"import ctypes; print(ctypes.CDLL(None).syscall({call}))"
    assert walls.run(python(code)).stdout == "-1\n"


def test_a_machine_whose_calls_are_not_known_has_no_filter():
    assert len(socket_filter("aarch64")) == len(socket_filter("x86_64"))
    with pytest.raises(KeyError):
        socket_filter("pdp11")


# --- how it runs -----------------------------------------------------------------------------------------------------


@walled
def test_exit_code_output_and_folder_are_the_commands(walls):
    ended = walls.run("pwd; echo to-stderr >&2; exit 7")
    assert (ended.returncode, ended.stdout, ended.stderr) == (7, f"{walls.work}\n", "to-stderr\n")
    assert walls.run("kill -9 $$").returncode == 128 + signal.SIGKILL


@walled
def test_a_command_is_given_no_open_file(walls):
    ended = walls.run("ls /proc/self/fd")
    assert ended.stdout.split() == ["0", "1", "2", "3"]  # 3 is the folder that ls reads


@walled
def test_a_signal_to_the_group_reaches_the_command_and_not_its_walls(walls):
    script = "trap 'sleep 0.1; echo tidied > tidied; exit 3' TERM; echo ready > ready; while :; do sleep 0.05; done"
    argv = argv_in(walls.sandbox(), ["bash", "-c", script], str(walls.work))
    with subprocess.Popen(argv, start_new_session=True) as process:
        _wait_for(walls.work / "ready")
        os.killpg(process.pid, signal.SIGTERM)
        assert process.wait(PATIENCE) == 3
    assert (walls.work / "tidied").exists()


@walled
def test_ctrl_c_at_its_terminal_is_heard_by_the_command_alone(walls):
    script = "import time\ntry:\n  print('ready'); time.sleep(60)\nexcept KeyboardInterrupt:\n  print('heard')"

    async def go() -> tuple[int | None, str]:
        argv = argv_in(walls.sandbox(), [sys.executable, "-uc", script], str(walls.work))
        process = Process(argv, str(walls.work), {"PATH": os.environ["PATH"]}, terminal=True)
        while "ready" not in process.last_line():
            assert not await process.ends_within(0.02)
        await process.write(b"\x03", 1)
        assert await process.ends_within(PATIENCE)
        return process.exit_code, process.take().text()

    exit_code, said = asyncio.run(go())
    assert exit_code == 0 and "heard" in said


@walled
def test_killing_the_walls_ends_what_is_inside(walls):
    script = "(setsid sh -c 'while :; do date +%N > beat; sleep 0.05; done' &); echo ready > ready; sleep 60"
    argv = argv_in(walls.sandbox(), ["bash", "-c", script], str(walls.work))
    with subprocess.Popen(argv, start_new_session=True) as process:
        _wait_for(walls.work / "ready")
        _wait_for(walls.work / "beat")
        process.kill()
    _no_more_beats(walls.work / "beat")


@walled
def test_what_a_command_leaves_running_ends_with_it(walls):
    walls.run("(setsid sh -c 'while :; do date +%N > beat; sleep 0.05; done' >/dev/null 2>&1 &); sleep 0.2")
    _no_more_beats(walls.work / "beat")


def _wait_for(path: Path) -> None:
    end = time.monotonic() + PATIENCE
    while not path.exists():
        assert time.monotonic() < end, f"{path} never came"
        time.sleep(0.01)


def _no_more_beats(path: Path) -> None:
    end = time.monotonic() + PATIENCE
    while True:
        before = path.read_text()
        time.sleep(0.3)
        if path.read_text() == before:
            return
        assert time.monotonic() < end, "it still beats"


# --- where there are no walls ----------------------------------------------------------------------------------------


def test_full_access_has_no_walls():
    assert sandbox_of("danger-full-access", WorkspaceWrite(), "/", {}, ()) is None


def test_where_bubblewrap_is_missing_it_is_said(walls, monkeypatch):
    monkeypatch.setenv("PATH", str(walls.beyond))
    assert (sandbox_works(), sandbox_fault()) == (False, "bubblewrap (bwrap) is not installed")
    with pytest.raises(ToolFailed, match="bwrap, which builds the sandbox, is not installed"):
        walls.run("true")


def test_where_bubblewrap_does_not_work_its_words_are_told(walls, monkeypatch):
    fake = walls.beyond / "bwrap"
    fake.write_text("#!/bin/sh\necho 'bwrap: no namespaces for you' >&2; exit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{walls.beyond}:{os.environ['PATH']}")
    assert sandbox_fault() == "bubblewrap (bwrap) does not work here: bwrap: no namespaces for you"


def test_walls_are_not_built_by_a_program_that_commands_can_change(walls, monkeypatch):
    fake = walls.work / "bwrap"
    shutil.copy("/bin/sh", fake)
    monkeypatch.setenv("PATH", f"{walls.work}:{os.environ['PATH']}")
    with pytest.raises(ToolFailed, match="where commands can write"):
        walls.run("true")
