"""What every test may ask for: the sample models, and an environment that does not depend on the machine."""

from __future__ import annotations

import atexit
import gc
import os
import random
import re
import shutil
import signal
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import count
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import is_hypothesis_test, settings
from hypothesis.internal.conjecture import providers

_SHARES_TESTS = "PYTEST_XDIST_WORKER" in os.environ
if _SHARES_TESTS:
    # after all that others have registered by then: to take a thousand modules apart takes four seconds
    atexit.register(os._exit, 0)
_counted = count()

# Textual reads these when it is first imported, hence before any test module is collected
for _name in list(os.environ):
    if _name.startswith("TEXTUAL_SNAPSHOT"):
        continue  # the snapshot plugin's own, handed down to the processes that share the tests
    if _name in ("NO_COLOR", "COLORTERM", "FORCE_COLOR", "COLUMNS", "LINES") or _name.startswith(
        ("TEXTUAL", "SSH_", "EXPLORER_")
    ):
        del os.environ[_name]
os.environ["TERM"] = "xterm-256color"
# no test has anything of the user's cache, nor of another test's; those of the cache have their own
os.environ["EXPLORER_NO_CACHE"] = "1"
# nor does one see the machines that the user has measured
_no_config = tempfile.mkdtemp(prefix="explorer-tests-")
os.environ["XDG_CONFIG_HOME"] = _no_config
atexit.register(shutil.rmtree, _no_config, ignore_errors=True)
# two processes share two processors: threads of theirs that spin while they wait for each other take what the
# other works with, a product of 300 x 300 numbers ten times what it needs
os.environ["OMP_WAIT_POLICY"] = "passive"
os.environ["OPENBLAS_NUM_THREADS"] = "1"
# what torch's profiler says on the terminal as it starts; its library reads this once
os.environ["KINETO_LOG_LEVEL"] = "99"
# where a container says that nothing compiled is kept, every process compiled all tests and the program anew
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# a shell's background job ignores Ctrl+C, and so would every program that a test starts and stops
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# what a test makes is mostly gone before anybody looks, and everything imported stays: a search for garbage
# through all of it takes a second, and is made only where files stay open (`few_open_files`)
gc.set_threshold(50_000, 10, 1000)

# a change is judged by the same examples each time; `--hypothesis-profile explore` tries new ones. How long
# one takes says how busy the machine is
settings.register_profile("same", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None)
settings.load_profile("same")
# else numbers of all code that happens to be loaded are tried too, found by parsing every module: others
# wherever other tests ran before
providers._get_local_constants = lambda: providers._local_constants


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Every test draws the same numbers, whichever was before it."""
    random.seed(0)
    # torch's own `manual_seed` keeps a traceback of each call for devices that are not there
    for name, seed in (("numpy", "random.seed"), ("torch", "default_generator.manual_seed")):
        if (library := sys.modules.get(name)) is not None:
            attrgetter(seed)(library)(0)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of a test marked `sampled(n)`, n cases spread over those that are not slow are quick; others are slow.

    Where slow ones are left out, a property is tried on a fifth of its examples.
    """
    if config.option.markexpr == "not slow":
        for test in {item.obj for item in items if is_hypothesis_test(getattr(item, "obj", None))}:
            asked = test._hypothesis_internal_use_settings  # the library has no other way to change them
            test._hypothesis_internal_use_settings = settings(asked, max_examples=asked.max_examples // 5)
    cases = defaultdict(list)
    for item in items:
        if item.get_closest_marker("sampled") and not item.get_closest_marker("slow"):
            cases[item.nodeid.partition("[")[0]].append(item)
    for found in cases.values():
        mark = found[0].get_closest_marker("sampled")
        assert mark is not None
        count = min(mark.args[0], len(found))
        quick = {(2 * at + 1) * len(found) // (2 * count) for at in range(count)}
        for at, item in enumerate(found):
            if at not in quick:
                item.add_marker(pytest.mark.slow)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Each process begins with tests that are neighbors, which share modules, fixtures and imports."""
    from xdist.scheduler import WorkStealingScheduling  # nobody has it who runs one process

    return WorkStealingScheduling(config, log)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish() -> None:
    """Search once for garbage, for what it says as it goes: pytest does it five times at its end."""
    gc.collect()
    gc.freeze()
    if not _SHARES_TESTS:
        atexit.register(gc.unfreeze)  # the interpreter looks for what libraries leak


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of its own; pytest's looks through those of all tests before, and links the newest."""
    name = re.sub(r"\W", "_", request.node.name)[:30]
    path = tmp_path_factory.getbasetemp() / f"{name}-{next(_counted)}"
    path.mkdir(mode=0o700)
    return path


@pytest.fixture(autouse=True, scope="module")
def few_open_files() -> Iterator[None]:
    """Models that are garbage keep their files open until somebody looks for it, and `select` takes 1,024."""
    yield
    if len(os.listdir("/dev/fd")) > 512:
        gc.collect()


SAMPLES = Path(__file__).parent.parent / "sample_models"


@pytest.fixture(scope="session")
def sample() -> Callable[[str], Path]:
    """`sample('lenet')` is the path of sample_models/lenet.onnx."""

    def path(name: str) -> Path:
        found = SAMPLES / f"{name}.onnx"
        assert found.is_file(), f"no sample model {name}: run python sample_models/build.py"
        return found

    return path
