#!/usr/bin/env python3
"""bench and doctor say what they must, on any machine; no rate is judged.

bench: the keys and types of --json, percent = rate by limit in every round, medians of the rounds,
the same rows whatever is refused (a reason stands where a rate would), nothing left behind by
--scratch, exit codes.  doctor: the findings of --json, exit 0 whatever is missing: io_uring, direct
reads, locked memory, the directory, the right to read it.

Run:   K3=build/release/k3-shard K3_BUILD=build/release tests/python/test_bench.py
Needs  the Python standard library; 120 MB below TMPDIR, on a disk.
Last line: N passed, N failed.
"""
import fcntl
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import k3test  # pylint: disable=wrong-import-position

CANNOT = 77
STORAGE = ("storage_depth_1", "storage_depth_4", "storage_depth_16", "storage_depth_64",
           "storage_threads_16")
CEILINGS = STORAGE + ("device_copy", "page_cache", "device_hash", "memcpy_one_core", "memcpy_all_cores", "hash_one_core",
                      "hash_one_core_libcrypto", "hash_all_cores", "sha256_stream",
                      "copy_sync_read")
TO_DEVICE = ("load_device_cold", "load_device_cold_unverified", "load_device_hot",
             "load_device_hot_unverified")
JOBS = ("load_cold", "load_cold_unverified", *TO_DEVICE[:2], "load_hot", "load_hot_unverified",
        *TO_DEVICE[2:], "convert")
NO_DEVICE = {n: "--device" for n in ("device_copy", "device_hash", *TO_DEVICE)}
MACHINE = ["cpu", "sha256", "memory", "memory_limit", "huge_pages", "numa", "locked_memory",
           "open_files", "kernel", "io_uring", "registered_buffers", "cuda", "hip", "cufile",
           "hipfile", "nvidia_fs", "p2pdma"]
PLACE = ["directory", "file_system", "free_space", "drive", "direct_io", "fs_verity", "route_uring",
         "route_pread", "route_page_cache", "route"]


def near(a, b):
    """Equal but for the six digits that --json has."""
    return abs(a - b) <= 1e-4 * max(abs(a), abs(b))


class Place:
    def __init__(self, k3, refuse, work, suite):
        self.k3, self.refuse, self.work, self.suite = k3, refuse, work, suite
        self.build = os.path.dirname(os.path.dirname(refuse))
        self.set = os.path.join(work, "set")

    def run(self, *args, rules=(), drop=False, env=None):
        """drop: as a user who may not override modes; env: set besides."""
        command = ["setpriv", "--reuid=65534", "--clear-groups"] if drop else []
        command += [self.refuse, *rules, "--"] if rules else []
        done = subprocess.run([*command, self.k3, *args], capture_output=True, text=True,
                              check=False, timeout=k3test.RUN_SECONDS_MAX,
                              env=dict(os.environ, **(env or {})))
        return k3test.Result(done.returncode, done.stdout, done.stderr)

    def bench(self, *args, rules=()):
        return self.run("bench", self.set, "--rounds", "2", "--json", "--quiet", *args, rules=rules)


def limit_of(name, row, rows, i):
    """What the documents say limits a job, in one round."""
    best = max((r for r in rows.values() if r["name"] in STORAGE and "gb_per_s" in r),
               key=lambda r: r["gb_per_s"], default=None)
    memory = rows["page_cache"]["gb_per_s_rounds"][i]
    hashing = rows["hash_all_cores"]["gb_per_s_rounds"][i]
    if name in TO_DEVICE:
        source = best if row["direct"] else rows["page_cache"]
        word = "storage" if row["direct"] else "memory"
        if rows["device_copy"]["gb_per_s"] < source["gb_per_s"]:
            return rows["device_copy"]["gb_per_s_rounds"][i], "bus"
        return source["gb_per_s_rounds"][i], word
    if name == "convert":
        return rows["copy_sync_read"]["gb_per_s_rounds"][i], "copy"
    if row["direct"] and name.startswith("load_cold"):
        storage = best["gb_per_s_rounds"][i]
        if row["verified"] and rows["hash_all_cores"]["gb_per_s"] < best["gb_per_s"]:
            return hashing, "hash"
        return storage, "storage"
    if row["verified"]:
        return 1 / (1 / memory + 1 / hashing), "memory and hash"
    return memory, "memory"


def problem_of_job(row, rows, rounds):
    """Is every figure of a job what its rounds make it?"""
    for i in range(rounds):
        limit, name = limit_of(row["name"], row, rows, i)
        if row["limit"] != name:
            return f"{row['name']}: limit is {row['limit']}, not {name}"
        if not near(row["limit_gb_per_s_rounds"][i], limit):
            return f"{row['name']}: limit of round {i} is not {limit}"
        if not near(row["percent_rounds"][i], 100 * row["gb_per_s_rounds"][i] / limit):
            return f"{row['name']}: percent of round {i}"
    if not near(row["percent_of_limit"], statistics.median(row["percent_rounds"])):
        return f"{row['name']}: percent is not the median of the rounds"
    if not near(row["limit_gb_per_s"], statistics.median(row["limit_gb_per_s_rounds"])):
        return f"{row['name']}: limit is not the median of the rounds"
    return ""


def problem_of_bench(report, rounds, reasons):
    """Empty, or what is wrong.  reasons: name of a row without figures -> a word of its reason."""
    if [r["name"] for r in report["ceilings"]] != list(CEILINGS):
        return "other ceilings"
    if [r["name"] for r in report["jobs"]] != list(JOBS):
        return "other jobs"
    rows = {r["name"]: r for r in report["ceilings"] + report["jobs"]}
    for name, row in rows.items():
        if name in reasons:
            if set(row) != {"name", "reason"} or reasons[name] not in row["reason"]:
                return f"{name}: wanted no figure and a reason with {reasons[name]}: {row}"
            continue
        if "load_" in name and "time and again" in row.get("reason", ""):
            continue  # the samples of a load judge by time, and a busy machine misleads them
        if "gb_per_s" not in row:
            return f"{name}: no figure: {row}"
        if len(row["gb_per_s_rounds"]) != rounds or min(row["gb_per_s_rounds"]) <= 0:
            return f"{name}: not {rounds} rates: {row}"
        if not near(row["gb_per_s"], statistics.median(row["gb_per_s_rounds"])):
            return f"{name}: not the median"
        if name in JOBS and problem_of_job(row, rows, rounds):
            return problem_of_job(row, rows, rounds)
    whole = ("round_count", "round_bytes", "image_bytes", "buffer_bytes", "core_count",
             "scratch_bytes")
    if any(not isinstance(report[k], int) for k in whole) or report["round_count"] != rounds:
        return "counts"
    return ""


def check_bench(place, name, done, reasons, more=lambda report: "", rounds=2):
    if done.code == CANNOT:
        place.suite.skip(name, " ".join(done.err.split()))
        return None
    report = json.loads(done.out) if done.code == 0 else None
    problem = f"exit {done.code}" if report is None else (problem_of_bench(report, rounds, reasons) or
                                                          more(report))
    place.suite.check(not problem and not done.err, name, f"{problem}\n{done}")
    return report


def test_bench(place, ring):
    none = dict(NO_DEVICE, copy_sync_read="--scratch", convert="--scratch")
    storage = STORAGE if ring else STORAGE[-1:]
    if not ring:
        none.update({n: "io_uring" for n in STORAGE[:-1]})

    def whole(report):
        best = max((r for r in report["ceilings"] if r["name"] in storage),
                   key=lambda r: r["gb_per_s"])
        if report["best_storage"] != best["name"]:
            return "best_storage"
        if report["round_bytes"] != report["image_bytes"] or report["ranks"] != [0, 1]:
            return "not the whole set"
        return "partial" if any(r.get("partial") for r in report["jobs"]) else ""

    check_bench(place, "bench: the whole set", place.bench(), none, whole)

    def one_rank(report):
        return "" if report["ranks"] == [1] and report["image_bytes"] > 0 else "not rank 1 alone"

    check_bench(place, "bench --ranks", place.bench("--ranks", "1"), none, one_rank)

    def bounded(report):
        if not report["round_bytes"] < report["image_bytes"] or report["ranks"] != [0]:
            return "not a piece of rank 0"
        return "" if report["round_bytes"] >= 3 << 20 else "less than --size"

    check_bench(place, "bench --size", place.bench("--size", "3MiB"),
                dict(none, load_hot="--size", load_hot_unverified="--size"), bounded)
    refused = dict(none, **{n: "seccomp" for n in STORAGE[:-1]})

    def no_uring(report):
        return "uring" if any(r.get("io") == "uring" for r in report["jobs"]) else ""

    check_bench(place, "bench where io_uring is refused", place.bench(rules=("ring",)), refused,
                no_uring)
    refused = dict(none, **{n: "O_DIRECT" for n in STORAGE})
    if not ring:
        refused.update({n: "io_uring" for n in STORAGE[:-1]})

    def cached(report):
        loads = [r for r in report["jobs"] if "io" in r]
        good = report["best_storage"] == "" and not any(r["direct"] for r in loads)
        return "" if good else "direct, where that is refused"

    if ring:
        hot = {n: "--io uring" for n in ("load_hot", "load_hot_unverified")}
        check_bench(place, "bench --io uring", place.bench("--io", "uring"), dict(none, **hot))
    check_bench(place, "bench where O_DIRECT is refused", place.bench(rules=("direct",)), refused,
                cached)


def test_device(place, ring):
    """The fake driver of AMD: its code needs no compiler when this was built."""
    fake = {"LD_LIBRARY_PATH": os.path.join(place.build, "fake")}
    none = {"copy_sync_read": "--scratch", "convert": "--scratch"}
    if not ring:
        none.update({n: "io_uring" for n in STORAGE[:-1]})
    args = ("bench", place.set, "--ranks", "1", "--rounds", "1", "--json", "--quiet", "--device")

    def to_device(report):
        return "" if report["device"] == "hip:1" else "device"

    check_bench(place, "bench --device hip:1, a fake one", place.run(*args, "hip:1", env=fake), none,
                to_device, rounds=1)
    gone = dict(none, **{n: "there are 2 here" for n in NO_DEVICE})
    check_bench(place, "bench --device of one that is not there",
                place.run(*args, "hip:9", env=fake), gone, rounds=1)
    done = place.run(*args, "hip:0", env=dict(fake, FAKE_GPU_FAULT="no:1:1000000"))
    place.suite.check(done.code == 1 and "its check of known bytes is wrong" in done.err,
                      "bench --device of one that checks wrong: exit 1", done)
    for device, word in (("hip:0,1", "one device at a time"), ("tpu", "is not known")):
        done = place.run(*args, device)
        place.suite.check(done.code == 2 and word in done.err, f"bench --device {device}: exit 2",
                          done)


def test_scratch(place, ring):
    scratch = os.path.join(place.work, "scratch")
    os.mkdir(scratch)
    none = dict(NO_DEVICE, **({} if ring else {n: "io_uring" for n in STORAGE[:-1]}))

    def has_bytes(report):
        return "" if report["scratch_bytes"] > 1 << 20 else "scratch_bytes"

    check_bench(place, "bench --scratch: convert beside a copy",
                place.bench("--scratch", scratch, "--size", "8MiB"), none, has_bytes)
    left = os.listdir(scratch)
    place.suite.check(not left, "bench --scratch leaves nothing", left)
    child = subprocess.Popen([place.k3, "bench", place.set, "--scratch", scratch, "--size", "8MiB",
                              "--rounds", "99", "--quiet"], stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE)
    while child.poll() is None and not os.listdir(scratch):
        time.sleep(0.01)
    child.send_signal(signal.SIGTERM)
    done = k3test.end_of(child)
    place.suite.check(done.code == 1 and not done.out and "stopped" in done.err and
                      not os.listdir(scratch), "bench --scratch, interrupted, leaves nothing",
                      f"{done}\nleft: {os.listdir(scratch)}")
    test_left_scratch(place, scratch)
    done = place.bench("--scratch", os.path.join(scratch, "missing"))
    place.suite.check(done.code == 1 and "missing" in done.err, "--scratch that is not there", done)


def test_left_scratch(place, scratch):
    """What a killed bench left goes with the next run; what is another's, or no bench's, stays."""
    child = subprocess.Popen([place.k3, "bench", place.set, "--scratch", scratch, "--size", "8MiB",
                              "--rounds", "99", "--quiet"], stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE)
    while child.poll() is None and not os.listdir(scratch):
        time.sleep(0.01)
    child.kill()
    k3test.end_of(child)
    left = os.listdir(scratch)
    names = ["k3-bench-" + "0" * 16, "k3-bench-" + "1" * 16, "k3-bench-notes"]
    elsewhere = os.path.join(place.work, "elsewhere")
    for path in (os.path.join(scratch, names[0], "checkpoint"),
                 os.path.join(scratch, names[2], "checkpoint"),
                 os.path.join(elsewhere, "checkpoint")):
        os.makedirs(path)
        with open(os.path.join(path, "file"), "wb"):
            pass
    os.symlink(elsewhere, os.path.join(scratch, names[1]))
    held = os.open(os.path.join(scratch, names[0]), os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)  # as a bench at work does
    done = place.run("bench", place.set, "--scratch", scratch, "--size", "8MiB", "--rounds", "1",
                     "--json")
    place.suite.check(done.code == 0 and len(left) == 1 and
                      re.fullmatch("k3-bench-[0-9a-f]{16}", left[0]) and
                      f"removed {scratch}/{left[0]}" in done.err and
                      sorted(os.listdir(scratch)) == names and
                      os.path.exists(os.path.join(scratch, names[0], "checkpoint", "file")) and
                      os.path.exists(os.path.join(elsewhere, "checkpoint", "file")),
                      "bench --scratch removes what a killed one left, and nothing else",
                      f"{left}\n{os.listdir(scratch)}\n{done}")
    os.close(held)


def test_text(place):
    done = place.run("bench", place.set, "--rounds", "1")
    words = ("depth 16", "load, cold, verified", "the best of storage", "needs --scratch DIR", "% of")
    place.suite.check(done.code == 0 and all(w in done.out for w in words), "bench: the table", done)
    place.suite.check("say little" in done.err and "round 1 of 1 done" in done.err,
                      "bench: a small set is named so, rounds are told", done)


def test_exits(place):
    empty = os.path.join(place.work, "empty")
    os.mkdir(empty)
    for name, code, args in (
            ("a directory that is no set", 3, (empty,)),
            ("a directory that is not there", 1, (os.path.join(place.work, "nowhere"),)),
            ("a rank that is not there", 4, (place.set, "--ranks", "7")),
            ("no directory", 2, ()),
            ("no rounds", 2, (place.set, "--rounds", "0"))):
        done = place.run("bench", *args, "--json", "--quiet")
        good = done.code == code and json.loads(done.out)["code"] == code
        place.suite.check(good, f"bench: {name}: exit {code}", done)
    part = os.path.join(place.set, "model-rank-1-part-2.safetensors")
    with open(part, "r+b") as file:
        file.seek(-1, os.SEEK_END)
        byte = file.read(1)
        file.seek(-1, os.SEEK_END)
        file.write(bytes([byte[0] ^ 1]))
    done = place.bench()
    good = done.code == 3 and "model-rank-1-part-2.safetensors" in done.err
    place.suite.check(good, "bench of a bad set: exit 3", done)
    with open(part, "r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(byte)


def check_doctor(place, name, done, names, states, ok=True):
    """states: finding -> (state, words of its texts)"""
    if done.code == CANNOT:
        place.suite.skip(name, " ".join(done.err.split()))
        return
    problem = f"exit {done.code}" if done.code or done.err else ""
    report = json.loads(done.out) if not problem else {"ok": ok, "findings": []}
    found = {f["name"]: f for f in report["findings"]}
    if not problem and [n for n in found if n != "raid" and ":" not in n] != names:
        problem = f"findings are {list(found)}"
    if not problem and report["ok"] is not ok:
        problem = f"ok is {report['ok']}"
    for finding in report["findings"]:
        keys = set(finding) == {"name", "state", "value", "reason", "next_step"}
        good = finding["state"] in ("ok", "slower", "missing", "absent") and (
            bool(finding["value"]) if finding["state"] == "ok" else bool(finding["reason"]))
        if not keys or not good:
            problem = problem or f"not a whole finding: {finding}"
    for key, (state, words) in states.items():
        text = " ".join(found.get(key, {}).values())
        if not problem and (found[key]["state"] not in state.split("|") or not all(w in text for w in words)):
            problem = f"{key}: wanted {state} with {words}: {found[key]}"
    place.suite.check(not problem, name, f"{problem}\n{done}")


def test_doctor(place, ring):
    def doctor(*args, **options):
        return place.run("doctor", *args, "--json", **options)

    here = MACHINE + PLACE
    check_doctor(place, "doctor", doctor(), MACHINE, {"io_uring": ("ok", ())} if ring else {})
    check_doctor(place, "doctor of a set", doctor(place.set), here,
                 {"directory": ("ok", ("a shard set",))})
    check_doctor(place, "doctor of a checkpoint", doctor(os.path.join(place.work, "ckpt")), here,
                 {"directory": ("ok", ("a checkpoint",))})
    check_doctor(place, "doctor of an empty directory", doctor(os.path.join(place.work, "empty")),
                 here, {"route_pread": ("absent", ("not measured",))})
    place.suite.check(not os.listdir(os.path.join(place.work, "empty")), "doctor leaves nothing")
    odd = os.path.join(place.work, "odd\nname")
    os.mkdir(odd)
    with open(os.path.join(odd, "a\n\x1bb"), "wb") as file:
        file.write(bytes(8192))
    done = place.run("doctor", odd)
    place.suite.check(done.code == 0 and "a??b" in done.out and "\x1b" not in done.out and
                      len(done.out.splitlines()) in (len(here), len(here) + 1),
                      "doctor: names do not break lines", done)
    check_doctor(place, "doctor where DIR is not there", doctor(os.path.join(place.work, "none")),
                 MACHINE + ["directory"], {"directory": ("missing", ("none",))}, ok=False)
    check_doctor(place, "doctor where io_uring is refused", doctor(place.set, rules=("ring",)),
                 here, {"io_uring": ("missing", ("seccomp", "Seccomp: 2", "Kubernetes")),
                        "registered_buffers": ("missing", ()), "route_uring": ("missing", ())})
    check_doctor(place, "doctor where O_DIRECT is refused", doctor(place.set, rules=("direct",)),
                 here, {"direct_io": ("slower", ("O_DIRECT",)),
                        "route": ("slower", ("pread", "through"))})
    if ring:
        check_doctor(place, "doctor with 64 KiB of locked memory", doctor(rules=("memlock",)),
                     MACHINE, {"locked_memory": ("slower", ("65.54 KB", "ulimit -l")),
                               "registered_buffers": ("slower", ("65536",))})
    disabled = os.path.join(place.work, "disabled")
    with open(disabled, "w", encoding="ascii") as file:
        file.write("2\n")
    check_doctor(place, "doctor where the sysctl forbids io_uring",
                 doctor(rules=(f"sysctl={disabled}", "ring")), MACHINE,
                 {"io_uring": ("missing", ("kernel.io_uring_disabled is 2",
                                           "sysctl -w kernel.io_uring_disabled=0"))})
    if os.access("/dev/shm", os.W_OK):
        with tempfile.TemporaryDirectory(prefix="k3-test-", dir="/dev/shm") as room:
            with open(os.path.join(room, "file"), "wb") as file:
                file.truncate(20 << 20)
            check_doctor(place, "doctor of tmpfs, of holes", doctor(room), here,
                         {"file_system": ("ok", ("tmpfs",)), "drive": ("absent", ("in memory",)),
                          "route_page_cache": ("slower", ("holes",))})
    done = place.run("doctor", place.set)
    good = done.code == 0 and len(done.out.splitlines()) >= len(here)
    place.suite.check(good and all(l.split()[0] in ("ok", "slower", "missing", "absent")
                                   for l in done.out.splitlines()), "doctor: one line each", done)


def test_doctor_gpu(place):
    def doctor(folder, **env):
        env["LD_LIBRARY_PATH"] = os.path.join(place.build, folder)
        return place.run("doctor", "--json", env=env)

    # What a driver that does not serve is called depends on the GPUs that this machine has.
    none = "missing|absent"
    works = ("ok", ("PCI 0000:02:00.0", "self-test right", "of 4", "GB/s"))
    check_doctor(place, "doctor with GPUs, fake ones", doctor("fake"), MACHINE,
                 {"hip": ("ok", ("libamdhip64.so", "2 GPUs")), "hip:1": works})
    found = {f["name"]: f for f in json.loads(doctor("fake").out)["findings"]}
    built = found["cuda"]["state"] == "ok"
    place.suite.check(built or "nvcc" in found["cuda"]["reason"], "doctor: code for cuda, or why not",
                      found["cuda"])
    if built:
        check_doctor(place, "doctor with GPUs, fake ones of CUDA", doctor("fake"), MACHINE,
                     {"cuda": ("ok", ("libcuda.so.1",)), "cuda:1": works})
    for name, env, state in (
            ("none is visible", {"FAKE_GPU_COUNT": "0"}, {"hip": (none, ("hipErrorNoDevice",))}),
            ("checks are wrong", {"FAKE_GPU_FAULT": "no:1:1000000"},
             {"hip:0": ("missing", ("check of known bytes is wrong",))}),
            ("memory is short", {"FAKE_GPU_MEMORY_BYTES": "8388608"},
             {"hip:0": ("missing", ("bytes of its memory are needed",))}),
            ("the driver does not start", {"FAKE_GPU_FAULT": "fail=hipInit=999:1:9"},
             {"hip": (none, ("does not start",))})):
        check_doctor(place, f"doctor where {name}", doctor("fake", **env), MACHINE, state)
    check_doctor(place, "doctor where drivers are too old", doctor("fake_old"), MACHINE,
                 {"hip": (none, ("a newer driver",)), "cuda": (none, ("a newer driver",))})
    check_doctor(place, "doctor where drivers are no libraries", doctor("fake_bad"), MACHINE,
                 {"hip": (none, ("no libamdhip64",)), "cuda": (none, ("no libcuda.so.1",))})


NODES = """
mount -t tmpfs none /sys/devices/system/node && mount -t tmpfs none /sys/bus/pci || exit 77
mkdir -p /sys/devices/system/node/node$1 /sys/bus/pci/devices/0000:01:00.0
echo 0-1 > /sys/devices/system/node/online
cat /sys/devices/system/cpu/online > /sys/devices/system/node/node$1/cpulist
echo $1 > /sys/bus/pci/devices/0000:01:00.0/numa_node
shift
exec "$@"
"""


def test_nodes(place):
    """A /sys that says that the GPU hangs on a memory node of two: one that is there, one not."""
    env = dict(os.environ, LD_LIBRARY_PATH=os.path.join(place.build, "fake"))
    for node, refused in ((0, False), (1, True)):
        name = f"load to a GPU on memory node {node} of two, {'none' if refused else 'one'} there"
        if os.path.exists(f"/sys/devices/system/node/node{node}") == refused:
            place.suite.skip(name, "this machine has other nodes")
            continue
        done = subprocess.run(["unshare", "-m", "sh", "-c", NODES, "sh", str(node), place.k3, "load",
                               place.set, "--ranks", "0", "--device", "hip:0", "--json"],
                              capture_output=True, text=True, check=False, env=env,
                              timeout=k3test.RUN_SECONDS_MAX)
        if done.returncode == CANNOT or done.stderr.startswith("unshare"):
            place.suite.skip(name, " ".join(done.stderr.split()))
            continue
        report = json.loads(done.stdout) if done.returncode == 0 else {"fallbacks": []}
        lines = [l for l in report["fallbacks"] if l.startswith("hip:0: ")]
        if not refused and any("not permitted" in l for l in lines):
            place.suite.skip(name, lines[0])
            continue
        good = done.returncode == 0 and bool(lines) == refused
        place.suite.check(good and (not refused or f"memory node {node}" in lines[0]), name, done)


def test_unreadable(place):
    name = "doctor: files and directories that may not be read"
    if os.geteuid() != 0 or subprocess.run(["setpriv", "--version"], capture_output=True,
                                           check=False).returncode:
        place.suite.skip(name, "needs root and setpriv")
        return
    closed = os.path.join(place.work, "closed")
    os.mkdir(closed)
    with open(os.path.join(closed, "file"), "wb") as file:
        file.write(bytes(8192))
    os.chmod(place.work, 0o755)
    os.chmod(os.path.join(closed, "file"), 0)
    if place.run("version", drop=True).code:
        place.suite.skip(name, "that user cannot run the program here")
        return
    done = place.run("doctor", closed, "--json", drop=True)
    found = {f["name"]: f for f in json.loads(done.out)["findings"]}
    good = (done.code == 0 and "none of its files can be read" in found["directory"]["reason"] and
            found["direct_io"]["state"] == "missing")
    place.suite.check(good, "doctor: files that may not be read", done)
    os.chmod(closed, 0)
    check_doctor(place, "doctor: a directory that may not be read",
                 place.run("doctor", closed, "--json", drop=True), MACHINE + ["directory"],
                 {"directory": ("missing", ("Permission denied",))}, ok=False)
    os.chmod(closed, 0o755)


def main():
    k3, refuse = k3test.programs()
    suite = k3test.Suite()
    with tempfile.TemporaryDirectory(prefix="k3-test-") as work:
        place = Place(k3, refuse, work, suite)
        for args in (("synth", os.path.join(work, "ckpt"), "--preset", "tiny", "--quiet"),
                     ("convert", os.path.join(work, "ckpt"), "--out", place.set, "--tp", "2",
                      "--quiet")):
            done = place.run(*args)
            if done.code:
                sys.exit(f"{args[0]}: {done}")
        ring = place.run("load", place.set, "--io", "uring", "--quiet").code == 0
        test_bench(place, ring)
        test_device(place, ring)
        test_scratch(place, ring)
        test_text(place)
        test_exits(place)
        test_doctor(place, ring)
        test_doctor_gpu(place)
        test_nodes(place)
        test_unreadable(place)
    return suite.finish()


if __name__ == "__main__":
    sys.exit(main())
