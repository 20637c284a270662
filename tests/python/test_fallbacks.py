#!/usr/bin/env python3
"""Whatever a machine refuses, `load` loads, and says what and why; a forced engine exits 4.

One tiny set is loaded where io_uring is refused by a seccomp filter or by the sysctl, where direct
reads are refused, where 64 KiB of memory may be locked, and from tmpfs, overlayfs and a loop device
with sectors of 4096 bytes.  Every load must bring up and prove all bytes; its route must be the first
that is left, and `fallbacks` must name each one that is not, with the reason.

Run:   K3=build/release/k3-shard K3_BUILD=build/release tests/python/test_fallbacks.py
Needs  the Python standard library; root for mounts; 80 MB below TMPDIR, on a disk.
What cannot be made here is a SKIP line.  Last line: N passed, N failed.
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import k3test  # pylint: disable=wrong-import-position

CANNOT = 77
LOOP_BYTES = 48 << 20
HOT = "sample reads found the parts in memory"
OVERLAY = 'mount -t overlay k3 -o "lowerdir=$1:$2" "$3" || exit 77; shift 3; exec "$@"'
LOOP = ('device=$(losetup -b 4096 --direct-io=on -f --show "$1") || exit 77; '
        'mount -o ro "$device" "$2"; rc=$?; losetup -d "$device"; [ $rc = 0 ] || exit 77; '
        'shift 2; exec "$@"')


def make_cold(directory):
    """Take the files of a directory out of the page cache."""
    for at, _, names in os.walk(directory):
        for name in names:
            fd = os.open(os.path.join(at, name), os.O_RDONLY)
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)


def takes_direct(directory):
    """Does a direct read of a file in this directory work?"""
    path = os.path.join(directory, "probe")
    with open(path, "wb") as file:
        file.write(bytes(8192))
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
        os.close(fd)
        return True
    except OSError:
        return False
    finally:
        os.unlink(path)


class Place:
    """The program, the launcher and the set."""

    def __init__(self, k3, refuse, work, suite):
        self.k3, self.refuse, self.work, self.suite = k3, refuse, work, suite
        self.set = os.path.join(work, "set")

    def run(self, *args, rules=(), prefix=()):
        command = [*prefix]
        if rules:
            command += [self.refuse, *rules, "--"]
        command += [self.k3, *args]
        done = subprocess.run(command, capture_output=True, text=True, check=False,
                              timeout=k3test.RUN_SECONDS_MAX)
        return k3test.Result(done.returncode, done.stdout, done.stderr)

    def load(self, directory=None, io="auto", rules=(), prefix=()):
        directory = directory or self.set
        if os.path.isdir(directory):
            make_cold(directory)
        return self.run("load", directory, "--io", io, "--json", "--quiet", rules=rules,
                        prefix=prefix)

    def loads(self, name, done, says=(), io=None, silent=()):
        """It loaded all, by `io`, and the fallbacks hold all words of `says`, none of `silent`."""
        if done.code == CANNOT:
            self.suite.skip(name, " ".join(done.err.split()))
            return
        problem = ""
        report = json.loads(done.out) if done.code == 0 else {}
        text = "\n".join(report.get("fallbacks", []))
        if done.code != 0:
            problem = f"exit {done.code}"
        elif report["verified_bytes"] <= report["bytes"] or report["bytes"] == 0:
            problem = "not all bytes were proved"
        elif io and report["io"] != io:
            problem = f"io is {report['io']}, not {io}"
        elif report["io"] != "uring" and not text:
            problem = "not uring, and no reason"
        for word in says:
            problem = problem or ("" if word in text else f"fallbacks do not say: {word}")
        for word in silent:
            problem = problem or (f"fallbacks say: {word}" if word in text else "")
        self.suite.check(not problem, name, f"{problem}\n{done}")

    def refuses(self, name, done, says):
        """Exit 4, with an error that says why and what to do."""
        if done.code == CANNOT:
            self.suite.skip(name, " ".join(done.err.split()))
            return
        words = [*says, "use io pread or auto"]
        good = done.code == 4 and all(word in done.err + done.out for word in words)
        self.suite.check(good, name, done)


def test_plain(place, ring):
    """Nothing is refused: the first route, unless the drive answers as fast as memory."""
    done = place.load()
    if ring and HOT not in done.out:
        place.loads("a cold set on disk: uring", done, io="uring", silent=("io uring",))
    else:
        place.loads("a set on disk", done)
    for path in (os.path.join(place.set, n) for n in os.listdir(place.set)):
        with open(path, "rb") as file:
            file.read()
    done = place.run("load", place.set, "--json", "--quiet")
    if HOT in done.out:
        place.loads("a hot set: pread, and why", done, io="pread", says=(HOT,))
    else:
        place.suite.skip("a hot set: pread, and why", "memory is as slow as a drive at this moment")
    done = place.load(io="pread")
    place.suite.check(done.code == 0 and '"fallbacks":[]' in done.out, "--io pread", done)


def test_refused(place, ring):
    """Filters, the sysctl, limits."""
    place.loads("ring refused by a filter: loads", place.load(rules=("ring",)), io="pread",
                says=("io uring is not used", "seccomp"))
    place.refuses("ring refused by a filter: --io uring", place.load(io="uring", rules=("ring",)),
                  ("io_uring_setup", "seccomp"))
    for value in (1, 2):
        file = os.path.join(place.work, f"disabled{value}")
        with open(file, "w", encoding="ascii") as out:
            out.write(f"{value}\n")
        rules = (f"sysctl={file}", "ring")
        words = f"kernel.io_uring_disabled is {value}"
        if not os.path.exists("/proc/sys/kernel/io_uring_disabled"):
            place.suite.skip(f"ring refused by the sysctl, {value}", "this kernel has none")
            continue
        place.loads(f"ring refused by the sysctl, {value}: loads", place.load(rules=rules),
                    io="pread", says=("io uring is not used", words), silent=("seccomp",))
        place.refuses(f"ring refused by the sysctl, {value}: --io uring",
                      place.load(io="uring", rules=rules), (words,))
    place.loads("O_DIRECT refused by a filter: loads", place.load(rules=("direct",)), io="pread",
                says=("O_DIRECT", "refused", "through the page cache"))
    place.loads("O_DIRECT refused by a filter: --io pread",
                place.load(io="pread", rules=("direct",)), io="pread", says=("O_DIRECT",))
    place.loads("ring and O_DIRECT refused: loads", place.load(rules=("ring", "direct")),
                io="pread", says=("seccomp", "O_DIRECT"))
    if not ring:
        place.suite.skip("O_DIRECT refused by a filter: --io uring", "no io_uring here")
        place.suite.skip("64 KiB of locked memory", "no io_uring here")
        return
    place.refuses("O_DIRECT refused by a filter: --io uring",
                  place.load(io="uring", rules=("direct",)), ("O_DIRECT", "refused"))
    place.loads("64 KiB of locked memory: --io uring", place.load(io="uring", rules=("memlock",)),
                io="uring", says=("not registered", "RLIMIT_MEMLOCK is 65536 bytes"))


def test_tmpfs(place):
    shm = "/dev/shm"
    name = "tmpfs: loads"
    if not os.access(shm, os.W_OK) or shutil.disk_usage(shm).free < LOOP_BYTES:
        place.suite.skip(name, "no room in /dev/shm")
        return
    with tempfile.TemporaryDirectory(prefix="k3-test-", dir=shm) as room:
        copy = shutil.copytree(place.set, os.path.join(room, "set"))
        place.loads(name, place.load(copy), io="pread", says=("through the page cache",))
        place.loads("tmpfs with the ring refused: loads", place.load(copy, rules=("ring",)),
                    io="pread", says=("seccomp",))


def test_overlay(place, ring):
    name = "overlayfs: loads"
    if os.geteuid() != 0:
        place.suite.skip(name, "needs root to mount")
        return
    dirs = [os.path.join(place.work, d) for d in ("empty", "merged")]
    for directory in dirs:
        os.mkdir(directory)
    prefix = ("unshare", "-m", "sh", "-c", OVERLAY, "sh", place.set, *dirs)
    make_cold(place.set)
    place.loads(name, place.load(dirs[1], prefix=prefix))
    make_cold(place.set)
    if ring and takes_direct(place.work):
        place.loads("overlayfs: --io uring", place.load(dirs[1], io="uring", prefix=prefix),
                    io="uring")


def test_loop(place, ring):
    name = "4096-byte sectors: loads"
    if os.geteuid() != 0 or not os.path.exists("/dev/loop-control"):
        place.suite.skip(name, "needs root and loop devices")
        return
    image, mount = os.path.join(place.work, "image"), os.path.join(place.work, "mount")
    os.mkdir(mount)
    made = subprocess.run(["mkfs.ext4", "-q", "-b", "4096", "-d", place.set, image,
                           str(LOOP_BYTES // 1024)], capture_output=True, text=True, check=False)
    if made.returncode:
        place.suite.skip(name, " ".join(made.stderr.split()))
        return
    prefix = ("unshare", "-m", "sh", "-c", LOOP, "sh", image, mount)
    place.loads(name, place.load(mount, prefix=prefix))
    if ring:
        place.loads("4096-byte sectors: --io uring", place.load(mount, io="uring", prefix=prefix),
                    io="uring")


def test_convert(place, ckpt):
    """`convert` makes the same set by every way, and says which are refused."""
    golden = k3test.files_of(place.set)
    cases = (("nothing is refused", (), ()),
             ("ring refused", ("ring",), ("io uring is not used", "seccomp")),
             ("O_DIRECT refused", ("direct",),
              ("source files are read through the page cache: direct reads (O_DIRECT)",
               "parts are read through the page cache: direct reads (O_DIRECT)",
               "parts are written through the page cache: direct reads (O_DIRECT)")),
             ("ring and O_DIRECT refused", ("ring", "direct"), ("seccomp", "O_DIRECT")),
             ("64 KiB of locked memory", ("memlock",), ()))
    for number, (name, rules, says) in enumerate(cases):
        out = os.path.join(place.work, f"converted{number}")
        done = place.run("convert", ckpt, "--out", out, "--tp", "2", "--json", "--quiet",
                         rules=rules)
        if done.code == CANNOT:
            place.suite.skip(f"convert: {name}", " ".join(done.err.split()))
            continue
        lines = json.loads(done.out).get("fallbacks") if done.code == 0 else None
        bad = "" if done.code == 0 else f"exit {done.code}"
        bad = bad or k3test.difference(k3test.files_of(out), golden)
        bad = bad or next((f"not said: {w}" for w in says if w not in "\n".join(lines)), "")
        if not bad and len(lines) != len(set(lines)):
            bad = "a line stands twice"
        place.suite.check(not bad, f"convert: {name}", f"{bad}\n{done}")
        shutil.rmtree(out, ignore_errors=True)


def main():
    k3, refuse = k3test.programs()
    suite = k3test.Suite()
    with tempfile.TemporaryDirectory(prefix="k3-test-") as work:
        place = Place(k3, refuse, work, suite)
        ckpt = os.path.join(work, "ckpt")
        for args in (("synth", ckpt, "--preset", "tiny", "--quiet"),
                     ("convert", ckpt, "--out", place.set, "--tp", "2", "--quiet")):
            done = place.run(*args)
            if done.code:
                sys.exit(f"{args[0]}: {done}")
        ring = place.load(io="uring").code == 0
        if not ring:
            print(f"# --io uring is refused here: {place.load(io='uring')}")
        test_convert(place, ckpt)
        test_plain(place, ring)
        test_refused(place, ring)
        test_tmpfs(place)
        test_overlay(place, ring)
        test_loop(place, ring)
    return suite.finish()


if __name__ == "__main__":
    sys.exit(main())
