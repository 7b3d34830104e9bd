"""Other operating systems, as far as they can be acted out here: what Linux alone has is taken away.

A `sitecustomize` does it at the start of every Python that gets `environment`, children too. It
shows that nothing is asked of a system that lacks it. How macOS and Windows themselves behave it cannot show.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import explorer

ROOT = Path(explorer.__file__).parents[1]

_COMMON = """
import builtins, collections, importlib.abc, importlib.metadata, os, pathlib, platform, shutil, signal
import socket, sys, tempfile

def without(module, *names):
    for name in names:
        if hasattr(module, name):
            delattr(module, name)

if hasattr(os, "process_cpu_count"):  # from Python 3.13, and chosen when `os` is imported
    os.process_cpu_count = os.cpu_count

class Missing(importlib.abc.MetaPathFinder):
    def __init__(self, *names):
        self.names = names
        for name in names:
            sys.modules.pop(name, None)
    def find_spec(self, name, path=None, target=None):
        if name in self.names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None
"""

_MACOS = (
    _COMMON
    + """
import psutil, types  # its part for Linux stands in for the one for macOS, and alone may read /proc

def foreign():
    frame = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    return frame is None or "psutil" not in frame.f_globals.get("__name__", "")

def shut(function):
    def opened(path, *args, **kwargs):
        text = os.fspath(path) if isinstance(path, (str, bytes, os.PathLike)) else ""
        text = os.fsdecode(text)
        if text.startswith(("/proc", "/sys/")) and foreign():
            raise FileNotFoundError(2, "No such file or directory", text)
        return function(path, *args, **kwargs)
    return opened

builtins.open = shut(builtins.open)
for name in ("open", "stat", "lstat", "listdir", "scandir", "readlink"):
    setattr(os, name, shut(getattr(os, name)))
without(os, "sched_getaffinity", "sched_setaffinity", "posix_fadvise", "posix_fallocate", "memfd_create",
    "pidfd_open", "waitid", "preadv", "pwritev", "O_PATH", "O_TMPFILE", "O_DIRECT", "O_NOATIME",
    "O_LARGEFILE", "getresuid", "getresgid", "unshare", "setns", "eventfd", "splice", "copy_file_range",
    "getrandom", "sched_getscheduler", "P_PIDFD", "P_PID", "WNOWAIT", "WEXITED", "WSTOPPED")
without(signal, "sigwaitinfo", "sigtimedwait", "SIGRTMIN", "SIGRTMAX", "SIGPWR", "SIGSTKFLT", "SIGPOLL",
    "SIGCLD", "pidfd_send_signal")
without(socket, "AF_NETLINK", "AF_PACKET", "SOCK_CLOEXEC", "SOCK_NONBLOCK")
import fcntl, mmap, resource
without(fcntl, "F_SETSIG", "F_GETSIG", "F_SETPIPE_SZ", "F_GETPIPE_SZ", "F_ADD_SEALS", "F_OFD_SETLK")
without(mmap, "MADV_HUGEPAGE", "MADV_DONTDUMP", "MADV_REMOVE", "MAP_POPULATE")
without(resource, "prlimit", "RLIMIT_SIGPENDING", "RLIMIT_MSGQUEUE")
names = {n: v for n, v in os.sysconf_names.items() if not n.startswith(("SC_AVPHYS", "SC_LEVEL"))}
os.sysconf_names = names
asked = os.sysconf
def sysconf(name):
    if name not in names:
        raise ValueError("unrecognized configuration name")
    return asked(name)
os.sysconf = sysconf
about = collections.namedtuple("uname_result", "sysname nodename release version machine")
os.uname = lambda: about("Darwin", "mac", "24.0.0", "Darwin Kernel", "arm64")
sys.modules["_scproxy"] = types.ModuleType("_scproxy")
sys.modules["_scproxy"]._get_proxy_settings = sys.modules["_scproxy"]._get_proxies = dict
setrlimit = resource.setrlimit
def limited(which, limits):
    assert which != resource.RLIMIT_DATA, "macOS counts no maps under this limit"
    setrlimit(which, limits)
resource.setrlimit = limited
sys.platform = "darwin"
"""
)

_WINDOWS = (
    _COMMON
    + """
import subprocess
subprocess._USE_POSIX_SPAWN = False  # chosen when `subprocess` is imported, before the name goes
sys.meta_path.insert(0, Missing(
    "fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "readline", "posix", "curses", "syslog"
))
without(os, "fork", "forkpty", "register_at_fork", "getuid", "geteuid", "getgid", "getegid", "setuid",
    "getgroups", "pread", "preadv", "pwrite", "pwritev", "O_NOFOLLOW", "O_CLOEXEC", "O_NONBLOCK",
    "O_DIRECTORY", "O_ASYNC", "O_PATH", "O_TMPFILE", "sched_getaffinity", "sched_setaffinity", "killpg",
    "setsid", "getpgid", "setpgid", "mkfifo", "mknod", "nice", "fchmod", "fchown", "chown", "lchown",
    "wait", "waitid", "waitstatus_to_exitcode", "WNOHANG", "WUNTRACED", "WIFSTOPPED", "WIFEXITED",
    "WEXITSTATUS", "sysconf", "sysconf_names", "uname", "getloadavg", "statvfs", "openpty", "ttyname",
    "tcgetpgrp", "ctermid", "memfd_create", "pidfd_open", "posix_spawn", "posix_fadvise", "umask",
    "confstr", "pathconf", "getpriority", "initgroups", "P_PID")
without(signal, "SIGHUP", "SIGKILL", "SIGWINCH", "SIGTSTP", "SIGSTOP", "SIGCONT", "SIGCHLD", "SIGUSR1",
    "SIGUSR2", "SIGALRM", "SIGPIPE", "SIGPROF", "SIGQUIT", "SIGTTIN", "SIGTTOU", "SIG_BLOCK",
    "SIG_SETMASK", "SIG_UNBLOCK", "setitimer", "getitimer", "ITIMER_PROF", "ITIMER_REAL", "alarm",
    "pause", "pthread_sigmask", "sigwait", "siginterrupt", "pthread_kill")
without(socket, "AF_UNIX", "AF_NETLINK", "AF_PACKET", "send_fds", "recv_fds")
import select
without(select, "poll", "epoll")
without(sys.modules["time"], "tzset")
pathlib.WindowsPath = pathlib.PosixPath  # files still lie here
import types
shutil._winapi = types.SimpleNamespace(NeedCurrentDirectoryForExePath=lambda path: False)
platform.system = lambda: "Windows"
sys.platform, os.name = "win32", "nt"
"""
)


def environment(system: str, folder: Path) -> dict[str, str]:
    """Variables with which every Python that starts takes itself to run on linux, macos or windows."""
    site = folder / f"site-{system}"
    site.mkdir(exist_ok=True)
    code = {"linux": "", "macos": _MACOS, "windows": _WINDOWS}[system]
    (site / "sitecustomize.py").write_text(code, encoding="utf-8")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("XDG_")}
    folders = {f"XDG_{kind}_HOME": str(folder / kind.lower()) for kind in ("CACHE", "CONFIG", "STATE")}
    return {**kept, **folders, "PYTHONPATH": os.pathsep.join((str(site), str(ROOT)))}


def explored(system: str, folder: Path, *words: object) -> subprocess.CompletedProcess[str]:
    """What `explorer WORDS` does there."""
    return python(system, folder, "-m", "explorer", *words)


def python(system: str, folder: Path, *words: object) -> subprocess.CompletedProcess[str]:
    """What `python WORDS` does there."""
    return subprocess.run(
        [sys.executable, *map(str, words)],
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment(system, folder),
        timeout=300,
    )
