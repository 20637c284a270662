"""k3test.py: what the Python tests of the k3-shard program share.

Purpose   one place for: results as TAP lines, the program under a preloaded shim, small
          checkpoints, the bytes of a directory, scratch room.
Env       K3        the k3-shard program (or --k3 PATH)
          K3_BUILD  folder of the build, for tests/shim_kill.so (or --shim PATH)
          K3_TEST_DIR   where scratch folders go; default /dev/shm when that has room, since these
                    tests convert thousands of times, else TMPDIR
Needs     Python 3.11, nothing else.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
PARTIAL = ".k3-partial"
MANIFEST = "k3-shards.json"
SCRATCH_BYTES_MIN = 1 << 30
RUN_SECONDS_MAX = 120


class Suite:
    """Counts results; prints one TAP line for each named result, not one for each of thousands."""

    def __init__(self):
        self.passed = self.failed = 0
        self.lock = threading.Lock()

    def check(self, good, name, detail=""):
        with self.lock:
            if good:
                self.passed += 1
                print(f"ok - {name}", flush=True)
                return True
            self.failed += 1
            print(f"not ok - {name}", flush=True)
            for line in str(detail).splitlines()[:12]:
                print(f"  | {line}", flush=True)
            return False

    def group(self, name, cases, problems):
        """Many cases of one kind: one line when all are good, one for each that is not."""
        with self.lock:
            self.passed += cases - len(problems)
            self.failed += len(problems)
            for case, detail in problems:
                print(f"not ok - {name}: {case}", flush=True)
                for line in str(detail).splitlines()[:12]:
                    print(f"  | {line}", flush=True)
            if not problems:
                print(f"ok - {name}: {cases} cases", flush=True)

    def skip(self, name, why):
        print(f"ok - {name} # SKIP {why}", flush=True)

    def finish(self):
        print(f"{self.passed} passed, {self.failed} failed")
        return 1 if self.failed else 0


class Result:
    def __init__(self, code, out, err):
        self.code, self.out, self.err = code, out, err

    def __str__(self):
        return f"exit {self.code}\nstdout: {self.out.strip()}\nstderr: {self.err.strip()}"


class Tool:
    """The program under test."""

    def __init__(self, k3, shim):
        self.k3, self.shim = k3, shim

    def environment(self, shim):
        env = {k: v for k, v in os.environ.items() if not k.startswith(("K3_KILL", "K3_FAIL"))}
        if shim:
            env["LD_PRELOAD"] = self.shim
            env["ASAN_OPTIONS"] = env.get("ASAN_OPTIONS", "") + ":verify_asan_link_order=0"
            env.update({"K3_" + k.upper(): str(v) for k, v in shim.items()})
        return env

    def start(self, *args, shim=None):
        return subprocess.Popen([self.k3, *args], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, env=self.environment(shim))

    def run(self, *args, shim=None, **options):
        done = subprocess.run([self.k3, *args], stdin=subprocess.DEVNULL, capture_output=True,
                              timeout=RUN_SECONDS_MAX, env=self.environment(shim), check=False,
                              **options)
        return Result(done.returncode, done.stdout.decode(errors="replace"),
                      done.stderr.decode(errors="replace"))

    def has(self, command):
        """Is this command in the build?"""
        return "not built yet" not in self.run(command, "/nonexistent").err


def end_of(child):
    """Wait for a started program: its Result."""
    out, err = child.communicate(timeout=RUN_SECONDS_MAX)
    return Result(child.returncode, out.decode(errors="replace"), err.decode(errors="replace"))


def wait_stopped(child):
    """Wait until a started program has stopped itself; False where it ended instead.

    A thread that closes its io_uring waits in the kernel for a helper of the same group; where that
    has stopped already, the group never does.  It is let go on for a moment, and stopped again.
    """
    for _ in range(20):
        end = time.monotonic() + 5
        while time.monotonic() < end:
            state = os.waitid(os.P_PID, child.pid,
                              os.WSTOPPED | os.WEXITED | os.WNOWAIT | os.WNOHANG)
            if state is not None:
                return state.si_code == os.CLD_STOPPED
            time.sleep(0.005)
        child.send_signal(signal.SIGCONT)
        time.sleep(0.01)
        child.send_signal(signal.SIGSTOP)
    raise RuntimeError(f"process {child.pid} does not stop")


def go_on(child):
    child.send_signal(signal.SIGCONT)
    return end_of(child)


def files_of(directory):
    """Name below the directory -> bytes of every file; links are named with where they lead."""
    found = {}
    for at, folders, names in os.walk(directory):
        for name in names + [f for f in folders if os.path.islink(os.path.join(at, f))]:
            path = os.path.join(at, name)
            key = os.path.relpath(path, directory)
            if os.path.islink(path):
                found[key] = b"link to " + os.fsencode(os.readlink(path))
            elif os.path.isfile(path):
                with open(path, "rb") as f:
                    found[key] = f.read()
            else:
                found[key] = None
        for folder in folders:
            if not os.listdir(os.path.join(at, folder)):
                found[os.path.relpath(os.path.join(at, folder), directory) + "/"] = None
    return found


def difference(found, golden):
    """What tells two files_of() apart, in words; empty when they are equal."""
    lines = [f"extra: {n}" for n in found if n not in golden]
    lines += [f"missing: {n}" for n in golden if n not in found]
    lines += [f"other bytes: {n}" for n in golden if n in found and found[n] != golden[n]]
    return "\n".join(sorted(lines))


def scratch():
    """A temporary directory, removed at the end of its `with`."""
    place, shm = os.environ.get("K3_TEST_DIR"), "/dev/shm"
    if not place and os.access(shm, os.W_OK):
        place = shm if shutil.disk_usage(shm).free >= SCRATCH_BYTES_MIN else None
    return tempfile.TemporaryDirectory(prefix="k3-test-", dir=place)


def mini_ckpt(directory, **options):
    sys.path.insert(0, HERE)
    import mini_ckpt as maker  # pylint: disable=import-outside-toplevel
    maker.write_checkpoint(directory, **options)
    return directory


def parser(text):
    build = os.environ.get("K3_BUILD", "build/release")
    options = argparse.ArgumentParser(description=text)
    options.add_argument("--k3", default=os.environ.get("K3", os.path.join(build, "k3-shard")))
    options.add_argument("--shim", default=os.path.join(build, "tests", "shim_kill.so"))
    return options


def tool_of(options):
    for path in (options.k3, options.shim):
        if not os.path.exists(path):
            sys.exit(f"{path} is not there: make tests")
    return Tool(os.path.abspath(options.k3), os.path.abspath(options.shim))


def programs():
    """The tool and make_refuse of the build, for tests of what a machine refuses."""
    build = os.environ.get("K3_BUILD", "build/release")
    k3 = os.path.abspath(os.environ.get("K3", os.path.join(build, "k3-shard")))
    refuse = os.path.abspath(os.path.join(build, "tests", "make_refuse"))
    for path in (k3, refuse):
        if not os.path.exists(path):
            sys.exit(f"{path} is not there: make tests")
    return k3, refuse
