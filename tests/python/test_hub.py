"""Digests that a download from the Hugging Face hub left behind, in convert and verify.

Usage: test_hub.py (K3 and K3_BUILD in the environment).  Both layouts: a local directory with
.cache/huggingface/download/FILE.metadata, and the hub's cache of links to blobs.  Right and wrong
digests, outdated records, records of 40 digits, records that are none.  Where the Python package
huggingface_hub is there, its own functions write and judge the records too.
"""
import hashlib
import json
import os
import shutil
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from k3test import MANIFEST, PARTIAL, Suite, difference, files_of, mini_ckpt  # noqa: E402
from k3test import parser, scratch, tool_of  # noqa: E402

try:
    from huggingface_hub import _local_folder as client
except ImportError:
    client = None

LAYOUT = ["--tp", "2", "--quiet", "--jobs", "1"]
COMMIT = "0123456789abcdef0123456789abcdef01234567"
BAD = "model-00003-of-000008.safetensors"  # its item makes part 3


def read(path):
    with open(path, "rb") as f:
        return f.read()


def sha256(path):
    return hashlib.sha256(read(path)).hexdigest()


def git_sha1(path):
    data = read(path)
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def top_files(ckpt):
    return sorted(n for n in os.listdir(ckpt)
                  if not n.startswith(".") and os.path.isfile(os.path.join(ckpt, n)))


def in_lfs(name):
    return name.endswith((".safetensors", ".model"))


def etag_of(ckpt, name):
    path = os.path.join(ckpt, name)
    return sha256(path) if in_lfs(name) else git_sha1(path)


def record_path(ckpt, name):
    return os.path.join(ckpt, ".cache", "huggingface", "download", name + ".metadata")


def write_text(ckpt, name, text):
    with open(record_path(ckpt, name), "wb") as f:
        f.write(text)


def write_record(ckpt, name, etag, at=None):
    """As the hub's client does."""
    write_text(ckpt, name, f"{COMMIT}\n{etag}\n{at or time.time()}\n".encode())


def download(ckpt, where):
    """A local directory as the client leaves it: files, a record for each, a .gitignore."""
    shutil.copytree(ckpt, where, symlinks=False)
    os.makedirs(os.path.dirname(record_path(where, "x")))
    for name in top_files(where):
        if client:
            client.write_download_metadata(__import__("pathlib").Path(where), name, COMMIT,
                                           etag_of(where, name))
        else:
            write_record(where, name, etag_of(where, name))
    return where


def flip(path, mtime=None):
    """Change a byte of the data; the time stays, or is the one given."""
    before = os.stat(path)
    with open(path, "r+b") as f:
        f.seek(-200, os.SEEK_END)
        byte = f.read(1)[0]
        f.seek(-200, os.SEEK_END)
        f.write(bytes([byte ^ 1]))
    os.utime(path, ns=(before.st_atime_ns, mtime or before.st_mtime_ns))


def convert(tool, ckpt, out, *more):
    return tool.run("convert", ckpt, "--out", out, *LAYOUT, *more)


def counts(result):
    said = json.loads(result.out) if result.code == 0 else {}
    return said.get("hub_same_files"), said.get("hub_outdated_files")


def check_right(tool, suite, room, ckpt, golden):
    local = download(ckpt, os.path.join(room, "right"))
    out = os.path.join(room, "out")
    result = convert(tool, local, out, "--json")
    suite.check(counts(result) == (9, 0), "8 sources and a copied file are compared", result)
    found = files_of(out)
    suite.check(not difference(found, golden), "the set is the one without records",
                difference(found, golden))
    result = tool.run("verify", local)
    suite.check(result.code == 0 and "SHA-256 of 9 of 13 files against download records" in
                result.out, "verify compares the same files", result)
    result = tool.run("verify", ckpt)
    suite.check(result.code == 0 and "none is recorded" in result.out and
                "contents were not judged" in result.out, "verify without records",
                result)
    shutil.rmtree(out)
    some = convert(tool, local, out, "--pp", "2", "--ranks", "2", "--json")
    suite.check(counts(some) == (4, 0), "of the files that some ranks need", some)
    shutil.rmtree(out)


def check_refused(tool, suite, out, golden, case):
    """A file that is not what was downloaded: exit 3, nothing of its item, and the rest stays."""
    name, ckpt, bad, where, mend = case
    path = os.path.join(ckpt, bad)
    result = convert(tool, ckpt, out, "--json")
    said = json.loads(result.out or "{}")
    text = str(said.get("message", result.err))
    suite.check(result.code == 3 and bad in text and sha256(path) in text and where in text and
                "download it again" in text, name + ": exit 3, file, digests and record are named",
                result)
    left = os.listdir(os.path.join(out, PARTIAL))
    tokens = [json.loads(read(os.path.join(out, PARTIAL, n)).split(b"\n")[0])["token"]
              for n in left if n.endswith(".record")]
    lost = [n for n in left if not n.endswith((".record", *tokens))]
    suite.check(sorted(lost) == ["plan.json", "sources"] and not os.path.exists(
        os.path.join(out, MANIFEST)), name + ": nothing of the item stays", left)
    seen = tool.run("verify", ckpt)
    suite.check(seen.code == 3 and bad in seen.out and sha256(path) in seen.out and
                where in seen.out, name + ": verify says the same", seen)
    mend()
    result = convert(tool, ckpt, out)
    found = files_of(out)
    suite.check(result.code == 0 and not difference(found, golden),
                name + ": downloaded again, the same command ends well",
                f"{result}\n{difference(found, golden)}")
    shutil.rmtree(out)


def check_wrong(tool, suite, room, ckpt, golden):
    out = os.path.join(room, "out")
    for bad in (BAD, "model-00001-of-000008.safetensors", "tiktoken.model"):
        local = download(ckpt, os.path.join(room, "wrong"))
        path = os.path.join(local, bad)
        kept = read(path)
        flip(path)

        def mend(path=path, kept=kept):
            with open(path, "wb") as f:
                f.write(kept)

        case = ("damaged " + bad, local, bad, record_path("", bad), mend)
        check_refused(tool, suite, out, golden, case)
        shutil.rmtree(local)


def check_outdated(tool, suite, room, ckpt):
    """A file is outdated where it was written more than a second after its record."""
    local, out = download(ckpt, os.path.join(room, "old")), os.path.join(room, "out")
    path, etag = os.path.join(local, BAD), etag_of(local, BAD)
    flip(path)
    base = 1_700_000_000
    os.utime(path, ns=(base * 10**9, base * 10**9))
    for at, outdated in ((f"{base + 5}.5", False), (str(base), False), (f"{base - 1}", False),
                         (f"{base - 1}.25", False), (f"{base - 2}.999", True),
                         (f"{base - 2}", True), ("0.5", True), ("7", True)):
        write_record(local, BAD, etag, at)
        if client:
            says = client.read_download_metadata(__import__("pathlib").Path(local), BAD) is None
            suite.check(says == outdated, f"the hub's client: a record of {at}", says)
        result = tool.run("convert", local, "--out", out, "--tp", "2", "--json")
        if outdated:
            suite.check(counts(result) == (8, 1) and BAD in result.err and
                        "written after the download" in result.err,
                        f"a record of {at}: a notice, no refusal", result)
        else:
            suite.check(result.code == 3, f"a record of {at} is believed", result)
        seen = tool.run("verify", local)
        suite.check(seen.code == 3 and BAD in seen.out and "verdict   BAD: 1 problem" in seen.out and
                    ("changed on purpose, remove the record" in seen.out) == outdated and
                    ("the file is damaged; download it again" in seen.out) != outdated,
                    f"a record of {at}: verify", seen)
        if outdated and at == "7":
            os.remove(record_path(local, BAD))  # the step that verify names
            seen = tool.run("verify", local)
            suite.check(seen.code == 0 and "SHA-256 of 8 of 13 files" in seen.out,
                        "without its record a changed file is not judged, and that is said", seen)
        shutil.rmtree(out)
    flip(path)  # back
    write_record(local, BAD, etag, base - 100)
    os.utime(path)
    result = convert(tool, local, out, "--json")
    suite.check(counts(result) == (9, 0), "an outdated record that agrees proves the file", result)
    shutil.rmtree(out)
    shutil.rmtree(local)


def check_forms(tool, suite, room, ckpt):
    """What the client would not read is no record; what it strips does not matter."""
    local, out = download(ckpt, os.path.join(room, "forms")), os.path.join(room, "out")
    wrong, now = "0" * 64, str(time.time() + 60)
    none = ["", "\n\n\n", COMMIT, f"{COMMIT}\n{wrong}", f"{COMMIT}\n{wrong}\n", f"{COMMIT}\n\n{now}\n",
            f"{COMMIT}\n{wrong[1:]}\n{now}\n", f"{COMMIT}\n{wrong}0\n{now}\n",
            f"{COMMIT}\n{'G' * 64}\n{now}\n", f"{COMMIT}\n\"{wrong}\n{now}\n",
            f"{COMMIT}\n{wrong[:40]}\n{now}\n", f"{COMMIT}\n{wrong}\nsoon\n",
            f"{COMMIT}\n{wrong}\n-{now}\n", f"{COMMIT}\n{wrong}\n{now}x\n",
            f"{COMMIT}\n{wrong}\n{'9' * 30}\n", f"{COMMIT}\0\n{wrong}\n{now}\n",
            f"{COMMIT}\n{wrong}\n{now}\n" + " " * 5000, f"{COMMIT}\n{wrong}\n.5\n"]
    for text in none:
        write_text(local, BAD, text.encode())
        result = convert(tool, local, out, "--json")
        suite.check(counts(result) == (8, 0), f"no record: {text[:120]!r}", result)
        shutil.rmtree(out)
    os.remove(record_path(local, BAD))
    os.mkdir(record_path(local, BAD))
    result = convert(tool, local, out, "--json")
    suite.check(counts(result) == (8, 0), "no record: a directory", result)
    shutil.rmtree(out)
    os.rmdir(record_path(local, BAD))
    for text in (f" {COMMIT} \r\n\t{wrong} \r\n {now} \r\n", f"{COMMIT}\n{wrong}\n{now}",
                 f"\n{wrong}\n{now}\nmore\n", f"{COMMIT}\n\"{wrong}\"\n{now}\n",
                 f"{COMMIT}\n{'AF' * 32}\n{now}\n", f"{COMMIT}\n\"{'Af' * 32}\"\n{now}\n"):
        write_text(local, BAD, text.encode())
        result = convert(tool, local, out)
        said = "af" * 32 if "A" in text else wrong
        suite.check(result.code == 3 and said in result.err, f"a record: {text!r}", result)
        shutil.rmtree(out)
    etag = sha256(os.path.join(local, BAD))  # the digest is compared, not its letters
    for text in (etag.upper(), f'"{etag}"'):
        write_record(local, BAD, text)
        result = convert(tool, local, out, "--json")
        suite.check(counts(result) == (9, 0), f"a record that agrees: {text}", result)
        shutil.rmtree(out)
    shutil.rmtree(local)


def cache(ckpt, hub):
    """The hub's cache: blobs named by their etags, a snapshot of links to them."""
    repo = os.path.join(hub, "models--moonshot--Kimi-K3")
    snapshot = os.path.join(repo, "snapshots", COMMIT)
    for folder in ("blobs", "refs", os.path.join("snapshots", COMMIT)):
        os.makedirs(os.path.join(repo, folder))
    with open(os.path.join(repo, "refs", "main"), "w", encoding="ascii") as f:
        f.write(COMMIT)
    for name in top_files(ckpt):
        etag = etag_of(ckpt, name)
        shutil.copy(os.path.join(ckpt, name), os.path.join(repo, "blobs", etag))
        os.symlink(f"../../blobs/{etag}", os.path.join(snapshot, name))
    return snapshot


def check_cache(tool, suite, room, ckpt):
    snapshot, out = cache(ckpt, os.path.join(room, "hub")), os.path.join(room, "out")
    result = convert(tool, snapshot, out, "--json")
    suite.check(counts(result) == (9, 0), "the hub's cache: blob names are compared", result)
    golden = files_of(out)
    plan = json.loads(golden[MANIFEST])["plan"]
    suite.check((plan["repository"], plan["revision"]) == ("moonshot/Kimi-K3", COMMIT),
                "repository and revision of the snapshot", plan["repository"])
    shutil.rmtree(out)
    links = os.path.join(room, "links")
    os.mkdir(links)
    for name in top_files(snapshot):
        os.symlink(os.path.join(snapshot, name), os.path.join(links, name))
    result = convert(tool, links, out, "--json")
    suite.check(counts(result) == (9, 0), "links to a snapshot's links", result)
    shutil.rmtree(out)
    blob = os.path.realpath(os.path.join(snapshot, BAD))
    wrong = os.path.join(os.path.dirname(blob), "f" * 64)

    def point(to):
        os.remove(os.path.join(snapshot, BAD))
        os.symlink(to, os.path.join(snapshot, BAD))

    kept = read(blob)
    flip(blob)

    def mend():
        with open(blob, "wb") as f:
            f.write(kept)

    check_refused(tool, suite, out, golden, ("a damaged blob", snapshot, BAD, "the hub's cache",
                                             mend))
    os.symlink(blob, wrong)
    point(wrong)  # the blob that is read is what counts
    result = convert(tool, snapshot, out, "--json")
    suite.check(counts(result) == (9, 0), "a blob behind a link", result)
    shutil.rmtree(out)
    other = os.path.join(room, "f" * 64)
    shutil.copy(blob, other)
    point(other)
    result = convert(tool, snapshot, out, "--json")
    suite.check(counts(result) == (8, 0), "a link to such a name that is not in blobs/", result)
    shutil.rmtree(out)


def main():
    tool, suite = tool_of(parser("digests of downloads").parse_args()), Suite()
    if not client:
        suite.skip("the hub's own client", "the Python package huggingface_hub is not installed")
    with scratch() as room:
        ckpt = mini_ckpt(os.path.join(room, "ckpt"))
        single = os.path.join(room, "single")
        result = convert(tool, ckpt, single, "--json")
        suite.check(counts(result) == (0, 0), "a checkpoint without records", result)
        golden = files_of(single)
        check_right(tool, suite, room, ckpt, golden)
        check_wrong(tool, suite, room, ckpt, golden)
        check_outdated(tool, suite, room, ckpt)
        check_forms(tool, suite, room, ckpt)
        check_cache(tool, suite, room, ckpt)
    return suite.finish()


if __name__ == "__main__":
    sys.exit(main())
