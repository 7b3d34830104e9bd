"""What the program prints and writes, held against what it printed before: `python -m tests.goldens check`.

Temporary scaffolding of the redesign, no part of the tests: it goes when the last step of it has landed.
`record` runs every case of `tests.goldens.cases` twice and keeps in one archive what was the same; `check`
runs them again and shows what differs. Cases know the command line only, so that they hold whatever moves:
each runs `python -m explorer` in a fork of this process, which has imported what is heavy and not ours
(`--fresh` starts a new interpreter for each instead, and takes three times as long). The clock that
durations are measured with stands still, so they are 0 on both sides.

The speeds: `python -m tests.goldens speeds`, on a quiet machine, keeps what `python -m tests.bench` says in
a file beside the archive.
"""

from __future__ import annotations

import argparse
import base64
import difflib
import hashlib
import json
import lzma
import os
import platform
import re
import runpy
import shlex
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.goldens import cases, screen

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
ARCHIVE, SPEEDS = HERE / "goldens.json.xz", HERE / "speeds.json"
LONGEST = 300
"""Seconds that a command may take."""
TEXT = (".csv", ".db", ".html", ".json", ".md", ".sh", ".toml", ".txt")
"""Endings of files that are kept as text, to see what differs; of others only the hash is."""
WORDS = (".html", ".md", ".png", ".sh", ".svg")
"""Endings of files that are made of words and pictures, which a redesign may change."""
PROVING = ("activations", "blame", "convert", "sweep", "tile", "verify")
"""Verbs that measure errors: where memory happens to lie decides the last digits of a sum, so that the long
numbers of their JSON are compared to NEAR of their size. All others are compared to the bit."""
NEAR = 1e-5
LONG = re.compile(r"-?\d+\.\d{8,}(?:e[-+]\d+)?|-?\d\.\d+e[-+]\d+")
JSON = re.compile(r" --(json|csv)\b")
PACKAGES = ("onnx", "onnxruntime", "torch", "torchvision", "torchinfo", "tensorflow")

Answer = dict[str, Any]


# one command


def environment(folder: Path) -> dict[str, str]:
    """All that a command sees of the machine."""
    home = folder / ".home"
    return {
        "COLUMNS": "110",
        "EXPLORER_CONFIG": "machines.toml",
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "LC_ALL": "C.UTF-8",
        "MPLCONFIGDIR": os.environ["MPLCONFIGDIR"],
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(folder.parent / "clock"),
        "TERM": "xterm-256color",
        "TMPDIR": str(folder / ".tmp"),
        "TZ": "UTC",
        "XDG_CONFIG_HOME": str(home / "config"),
        "XDG_STATE_HOME": str(home / "state"),
    }


def child(words: list[str], folder: Path, out: int, err: int) -> None:
    """Becomes the command; never returns."""
    code = 70
    try:
        os.setpgid(0, 0)
        os.chdir(folder)
        own = environment(folder)
        os.environ.clear()
        os.environ.update(own)
        tempfile.tempdir = None
        for number, to in enumerate((os.open(os.devnull, os.O_RDONLY), out, err)):
            os.dup2(to, number)
        sys.stdin, sys.stdout = (
            os.fdopen(0, closefd=False),
            os.fdopen(1, "w", encoding="utf-8", closefd=False),
        )
        sys.stderr = os.fdopen(
            2, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False
        )
        if words[0] == "screen":
            screen.play(words[1:], sys.stdout)
        else:
            time.perf_counter = lambda: 0.0
            os.environ["NO_COLOR"] = "1"
            sys.argv = words
            runpy.run_module("explorer", run_name="__main__", alter_sys=False)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)


def files(folder: Path) -> dict[str, tuple[int, int]]:
    found = (p for p in folder.rglob("*") if p.is_file() and p.relative_to(folder).parts[0][0] != ".")
    return {str(p.relative_to(folder)): (p.stat().st_mtime_ns, p.stat().st_size) for p in found}


def content(path: Path, clean: Callable[[str], str]) -> str:
    """A written file: its text, or its hash."""
    if path.suffix == ".db":
        with sqlite3.connect(path) as rows:
            return clean("\n".join(rows.iterdump()))
    if path.suffix in TEXT:
        return clean(path.read_text(encoding="utf-8"))
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def run(command: str, folder: Path, fresh: bool) -> Answer:
    """Runs one command in a folder; what it printed and wrote."""
    words = shlex.split(command)
    clean = cleaner(folder)
    before = files(folder)
    for name in ("out", "err"):
        (folder / f".{name}").write_bytes(b"")
    with open(folder / ".out", "wb") as out, open(folder / ".err", "wb") as err:
        if fresh and words[0] == "explorer":
            own = {**environment(folder), "NO_COLOR": "1"}
            line = [sys.executable, "-m", *words]
            code = subprocess.run(
                line, cwd=folder, env=own, stdin=subprocess.DEVNULL, stdout=out, stderr=err, timeout=LONGEST
            ).returncode
        else:
            pid = os.fork()
            if not pid:
                child(words, folder, out.fileno(), err.fileno())
            code = waited(pid)
    texts = [clean((folder / f".{n}").read_text(encoding="utf-8", errors="replace")) for n in ("out", "err")]
    written = sorted(name for name, state in files(folder).items() if before.get(name) != state)
    answer: Answer = {"code": code, "out": texts[0], "err": texts[1]}
    return answer | {f"file {name}": content(folder / name, clean) for name in written}


def waited(pid: int) -> int:
    """The exit code of a child, which is killed if it takes too long."""

    def late(*_: object) -> None:
        os.killpg(pid, signal.SIGKILL)

    signal.signal(signal.SIGALRM, late)
    signal.alarm(LONGEST)
    _, status = os.waitpid(pid, 0)
    signal.alarm(0)
    return os.waitstatus_to_exitcode(status)


def cleaner(folder: Path) -> Callable[[str], str]:
    """Takes out of a text what the machine, the day and the version put into it."""
    plain = [(str(folder), "<DIR>"), (str(ROOT), "<ROOT>"), (sys.prefix, "<PYTHON>")]
    for name in PACKAGES:
        try:
            plain.append((f"{version(name)}", f"<{name}>"))
        except ImportError:
            pass
    patterns = [(re.compile(p), to) for p, to in cases.VOLATILE]

    def clean(text: str) -> str:
        for what, to in plain:
            text = text.replace(what, to)
        for pattern, to in patterns:
            text = pattern.sub(to, text)
        return text

    return clean


# all of them


def chosen(pattern: str, json_only: bool = False) -> dict[str, list[str]]:
    """The groups in which a case is asked for, each up to the last of those.

    Where JSON alone is judged, a group without any is left out, and text of what is asked for as JSON, too.
    """
    found = {}
    for group, commands in cases.groups().items():
        if json_only:
            parsed = [command for command in commands if JSON.search(command)]
            twins = {JSON.sub("", command) for command in parsed}
            commands = [command for command in commands if parsed and command not in twins]
        last = [i for i, command in enumerate(commands) if matches(f"{group}: {command}", pattern)]
        if last:
            found[group] = commands[: last[-1] + 1]
    return found


def matches(case: str, pattern: str) -> bool:
    return fnmatchcase(case, pattern) or fnmatchcase(case.partition(":")[0], pattern)


def work(group: str, commands: list[str], base: Path, inputs: dict[str, str], fresh: bool) -> None:
    """Runs one group in a folder of its own, and writes down what came."""
    folder = base / f"group-{list(cases.groups()).index(group):03}"
    for own in (".home", ".tmp"):
        (folder / own).mkdir(parents=True)
    cases.prepare(group, folder, {name: base64.b64decode(data) for name, data in inputs.items()})
    answers = {f"{group}: {command}": run(command, folder, fresh) for command in commands}
    shutil.rmtree(folder)
    folder.with_suffix(".json").write_text(json.dumps(answers))


def run_all(
    pattern: str, jobs: int, inputs: dict[str, str], fresh: bool, json_only: bool = False
) -> dict[str, Answer]:
    """Runs the groups, some at once; those that need torch after the others, when it has been imported."""
    groups = chosen(pattern, json_only)
    sys.dont_write_bytecode = False  # each fork would compile all of ours again
    progress = Progress(len(groups))
    with tempfile.TemporaryDirectory(prefix="goldens-", dir="/tmp") as name:
        base = Path(name)
        (base / "clock").mkdir()
        (base / "clock" / "sitecustomize.py").write_text("import time\n\ntime.perf_counter = lambda: 0.0\n")
        os.environ |= {"MPLCONFIGDIR": str(base), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        for modules, heavy in ((cases.LIGHT, False), (cases.TORCH, True)):
            mine = {g: c for g, c in groups.items() if cases.needs_torch(g) == heavy}
            if mine:
                imported(modules)
            running: dict[int, str] = {}
            for group, commands in mine.items():
                if len(running) == jobs:
                    ended(running, progress)
                sys.stdout.flush()
                pid = os.fork()
                if not pid:
                    try:
                        work(group, commands, base, inputs, fresh)
                        os._exit(0)
                    finally:
                        sys.stderr.flush()
                        os._exit(1)
                running[pid] = group
            while running:
                ended(running, progress)
        found = [json.loads(path.read_text()) for path in sorted(base.glob("group-*.json"))]
    return {case: answer for group in found for case, answer in group.items() if matches(case, pattern)}


class Progress:
    """A line for each group that has ended, on standard error: one over the other on a terminal."""

    def __init__(self, groups: int) -> None:
        self._groups, self._ended, self._began = groups, 0, time.monotonic()

    def __call__(self, group: str) -> None:
        self._ended += 1
        line = f"{self._ended}/{self._groups} {group}, {time.monotonic() - self._began:.0f} s"
        head, tail = ("\r\x1b[K", "") if sys.stderr.isatty() else ("", "\n")
        print(f"{head}{line}", end=tail, file=sys.stderr, flush=True)


def ended(running: dict[int, str], progress: Progress) -> None:
    pid, status = os.wait()
    group = running.pop(pid)
    if status:
        raise SystemExit(f"group {group} failed")
    progress(group)


def imported(modules: tuple[str, ...]) -> None:
    import importlib
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in modules:
            try:
                importlib.import_module(name)
            except ImportError:
                pass


# the archive


def about() -> dict[str, str]:
    """What figures of proofs and bytes of files may depend on beside the program."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if os.path.exists("/proc/cpuinfo") else []
    processor = next((x.split(":")[1].strip() for x in lines if x.startswith("model name")), "")
    made = {name: version(name) for name in ("numpy", "onnx", "onnxruntime", "textual", "torch")}
    return {"processor": processor or platform.machine(), "python": platform.python_version(), **made}


def load() -> dict[str, Any]:
    return dict(json.loads(lzma.decompress(ARCHIVE.read_bytes())))


def record(given: argparse.Namespace) -> int:
    """Runs everything twice, in two processes, and keeps what was the same."""
    old = load() if ARCHIVE.exists() else {"inputs": {}, "cases": {}}
    inputs = old["inputs"] or {k: base64.b64encode(v).decode() for k, v in cases.inputs().items()}
    seen: list[dict[str, Answer]] = []
    for _ in range(1 if given.once else 2):
        with tempfile.NamedTemporaryFile(suffix=".xz") as file:
            again = [sys.executable, "-m", "tests.goldens", "run", "--only", given.only]
            Path(file.name).write_bytes(lzma.compress(json.dumps(inputs).encode(), preset=1))
            subprocess.run([*again, "--jobs", str(given.jobs), file.name], check=True, cwd=ROOT)
            seen.append(json.loads(lzma.decompress(Path(file.name).read_bytes())))
    kept, dropped = {}, []
    for case, answer in seen[0].items():
        other = seen[-1][case]
        kept[case] = {part: value for part, value in answer.items() if alike(case, value, other.get(part))}
        for part in sorted({*answer, *other} - kept[case].keys()):
            dropped.append(f"{case}: {part}")
            print(f"not the same twice: {case}: {part}")
            print(*list(difference(str(answer.get(part)), str(other.get(part))))[:20], sep="\n")
    if given.only != "*":
        kept = {**old["cases"], **kept}
        dropped += [x for x in old.get("dropped", []) if x.rpartition(": ")[0] not in seen[0]]
    known = {f"{group}: {command}" for group, commands in cases.groups().items() for command in commands}
    kept = {case: answer for case, answer in sorted(kept.items()) if case in known}
    made = {"about": about(), "inputs": inputs, "dropped": sorted(dropped), "cases": kept}
    text = json.dumps(made, indent=0, sort_keys=True).encode()
    ARCHIVE.write_bytes(lzma.compress(text, preset=9 | lzma.PRESET_EXTREME))
    size = ARCHIVE.stat().st_size
    print(
        f"{len(kept)} cases, {len(dropped)} parts dropped, {len(text) / 1e6:.1f} MB in {size / 1e3:,.0f} kB"
    )
    return 0


def run_once(given: argparse.Namespace) -> int:
    """One run, for `record`: inputs are read from a file, and what came replaces them."""
    inputs = json.loads(lzma.decompress(given.file.read_bytes()))
    seen = run_all(given.only, given.jobs, inputs, given.fresh)
    given.file.write_bytes(lzma.compress(json.dumps(seen).encode(), preset=1))
    return 0


def judged(case: str, part: str, given: argparse.Namespace) -> bool:
    """Whether a part of an answer is asked about."""
    if not (given.json_only or given.files_only):
        return True
    json_part = part in ("code", "out") and bool(JSON.search(case))
    return (given.json_only and json_part) or (
        given.files_only and part.startswith("file ") and not part.endswith(WORDS)
    )


def alike(case: str, old: Any, new: Any) -> bool:
    """Whether two parts of an answer are the same, but for the last digits of measured errors."""
    if old == new or type(old) is not str or type(new) is not str or not {*case.split()[2:3]} & {*PROVING}:
        return bool(old == new)
    numbers = zip(map(float, LONG.findall(old)), map(float, LONG.findall(new)), strict=False)
    return LONG.sub("#", old) == LONG.sub("#", new) and all(
        abs(a - b) <= NEAR * max(abs(a), abs(b)) for a, b in numbers
    )


def difference(old: str, new: str) -> Iterator[str]:
    return difflib.unified_diff(old.splitlines(), new.splitlines(), "golden", "now", lineterm="", n=2)


def check(given: argparse.Namespace) -> int:
    """Runs the cases again and shows what differs."""
    golden = load()
    now = about()
    for name, value in golden["about"].items():
        if now.get(name) != value:
            print(f"recorded with {name} {value}, now {now.get(name)}: figures of proofs may differ")
    began = time.monotonic()
    seen = run_all(given.only, given.jobs, golden["inputs"], given.fresh, given.json_only)
    asked = {case: answer for case, answer in golden["cases"].items() if matches(case, given.only)}
    if given.json_only:
        asked = {case: answer for case, answer in asked.items() if case in seen}
    dropped = set(golden["dropped"])
    same = differ = 0
    for case in sorted({*asked, *seen}):
        if case not in seen or case not in asked:
            print(f"=== {case}\nno longer a case" if case in asked else f"=== {case}\nnot recorded")
            differ += 1
            continue
        old, new = asked[case], seen[case]
        parts = [
            part
            for part in sorted({*old, *new})
            if not alike(case, old.get(part), new.get(part))
            and f"{case}: {part}" not in dropped
            and judged(case, part, given)
        ]
        same, differ = same + (not parts), differ + bool(parts)
        for part in parts:
            lines = list(difference(str(old.get(part, "nothing")), str(new.get(part, "nothing"))))
            print(f"=== {case}   [{part}]", *lines[2 : given.lines], sep="\n")
            if len(lines) > given.lines:
                print(f"... {len(lines) - given.lines} lines more")
    print(f"{same} same, {differ} differ; {time.monotonic() - began:.0f} s")
    return 1 if differ or not same else 0


def speeds(given: argparse.Namespace) -> int:
    """Runs the benchmarks and keeps what they say, with the machine they ran on."""
    words = [sys.executable, "-m", "tests.bench", *given.groups]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    print(done.stdout, done.stderr, sep="\n")
    rows = []
    for line in done.stdout.splitlines():
        cells = [cell.strip() for cell in re.split("[│┃]", line)[1:-1]]
        if len(cells) == 6 and cells[0] != "work":
            if cells[0] and (cells[3] or not rows):
                rows.append(cells)
            elif rows:
                rows[-1] = [" ".join(filter(None, pair)) for pair in zip(rows[-1], cells, strict=True)]
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout
    keys = ("work", "ours", "other", "must", "seen", "ok")
    made = [dict(zip(keys, row, strict=True)) for row in rows]
    old = json.loads(SPEEDS.read_text())["rows"] if SPEEDS.exists() and given.groups else []
    made += [row for row in old if row["work"] not in {r["work"] for r in made}]
    SPEEDS.write_text(
        json.dumps({"commit": commit.strip(), "about": about(), "rows": made}, indent=1, ensure_ascii=False)
    )
    print(f"{len(made)} rows in {SPEEDS.name}")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.goldens", description=__doc__.split("\n")[0])
    verbs = parser.add_subparsers(required=True)
    for verb, does in (("record", record), ("check", check), ("run", run_once)):
        own = verbs.add_parser(verb, help=(does.__doc__ or "").split("\n")[0])
        own.set_defaults(does=does)
        own.add_argument("--only", default="*", metavar="GLOB", help="of 'group: command', or of a group")
        own.add_argument("--jobs", type=int, default=2, metavar="N")
        own.add_argument("--fresh", action="store_true", help="a new interpreter for each command")
        if verb == "record":
            own.add_argument("--once", action="store_true", help="do not ask what is the same twice")
        if verb == "check":
            own.add_argument("--json-only", action="store_true", help="judge JSON, CSV and exit codes of it")
            own.add_argument(
                "--files-only", action="store_true", help="judge written files but words, pictures"
            )
            own.add_argument("--lines", type=int, default=60, help="of each difference (60)")
        if verb == "run":
            own.add_argument("file", type=Path)
    own = verbs.add_parser("speeds", help=(speeds.__doc__ or "").split("\n")[0])
    own.set_defaults(does=speeds)
    own.add_argument("groups", nargs="*", help="of tests.bench; all without")
    given = parser.parse_args()
    return int(given.does(given))


if __name__ == "__main__":
    sys.exit(main())
