#!/usr/bin/env python3
"""test_digests.py: our digests are those that sha256sum and fsverity compute.

Purpose   the design promises that third-party tools agree: SHA-256 of any file, and the fs-verity
          digest as its tree digest. Compared here at the sizes where levels and blocks begin and
          end, and for every file that a real manifest names.
Needs     sha256sum; fsverity (fsverity-utils), without which its half is skipped with a line.
Usage     test_digests.py
Output    TAP lines, then `N passed, N failed`; exit 0 only when none failed.
"""

import hashlib
import json
import os
import random
import shutil
import subprocess
import sys

from k3test import MANIFEST, Suite, mini_ckpt, parser, scratch, tool_of

KIB, MIB = 1 << 10, 1 << 20
LEVEL_1, LEVEL_2 = 512 * KIB, 64 * MIB  # one hash block holds 128 digests: of blocks, of units
SIZES = [0, 1, 4095, 4096, 4097, LEVEL_1 - 1, LEVEL_1, LEVEL_1 + 1, LEVEL_1 + 4096,
         LEVEL_2 - 1, LEVEL_2, LEVEL_2 + 1]
UNIT_HEADER_BYTES, UNIT_BYTES, DIGEST_BYTES = 128, LEVEL_1, 32


def by_program(command, path):
    """The hex digest that a program prints for a file."""
    done = subprocess.run([*command, path], capture_output=True, text=True, check=True)
    return done.stdout.split()[0].removeprefix("sha256:")


def others(path, has_fsverity):
    """(sha256, fs-verity or None) as other programs have them."""
    verity = by_program(["fsverity", "digest"], path) if has_fsverity else None
    return by_program(["sha256sum"], path), verity


def check_inspect(tool, suite, path, name, has_fsverity):
    """Both forms of `inspect --digest` against the other programs."""
    sha256, verity = others(path, has_fsverity)
    result = tool.run("inspect", "--digest", "--json", path)
    if not suite.check(result.code == 0, f"inspect --digest --json: {name}", result):
        return
    found = json.loads(result.out)
    suite.check(found["sha256"] == sha256 and found["bytes"] == os.path.getsize(path),
                f"sha256sum agrees: {name}", f"{found}\n{sha256}")
    text = tool.run("inspect", "--digest", path)
    suite.check(text.code == 0 and sha256 in text.out and found["fs_verity"] in text.out,
                f"the text form says the same: {name}", text)
    if has_fsverity:
        suite.check(found["fs_verity"] == verity, f"fsverity agrees: {name}", f"{found}\n{verity}")
        line = "sha256:" + verity + " " + path
        suite.check(line in text.out.splitlines(), f"a line as fsverity prints it: {name}", text)


def check_sizes(tool, suite, room, has_fsverity):
    rng = random.Random(1)
    path = os.path.join(room, "file")
    for size in SIZES:
        with open(path, "wb") as f:
            f.write(rng.randbytes(size))
        check_inspect(tool, suite, path, f"{size} bytes", has_fsverity)
    with open(path, "wb") as f:
        f.truncate(LEVEL_2 + LEVEL_1)
    check_inspect(tool, suite, path, "a file of nothing but a hole", has_fsverity)


def unit_digest(data):
    """Of one unit: the SHA-256 of the hash block made of the digests of its blocks."""
    digests = b"".join(hashlib.sha256(data[i:i + 4096].ljust(4096, b"\0")).digest()
                       for i in range(0, len(data), 4096))
    return hashlib.sha256(digests.ljust(4096, b"\0")).digest()


def check_manifest(tool, suite, out, has_fsverity):
    """Every digest in a manifest."""
    with open(os.path.join(out, MANIFEST), "rb") as f:
        text = f.read()
    manifest = json.loads(text)
    own = manifest["~sha256"].encode()
    blank = text.replace(b'"~sha256":"' + own, b'"~sha256":"' + b"0" * 64)
    suite.check(hashlib.sha256(blank).hexdigest().encode() == own, "~sha256 of the manifest")
    entries = manifest["files"] + [manifest["headers"]]
    parts = []
    for rank in manifest["ranks"]:
        entries += rank["parts"] + [rank["units"]]
        parts += rank["parts"]
    bad = []
    for entry in entries:
        path = os.path.join(out, entry["name"])
        sha256, verity = others(path, has_fsverity and "tree" in entry)
        if sha256 != entry["sha256"] or os.path.getsize(path) != entry["bytes"]:
            bad.append((entry["name"], f"sha256 or size: {entry}, sha256sum {sha256}"))
        if verity and verity != entry["tree"]:
            bad.append((entry["name"], f"tree {entry['tree']}, fsverity {verity}"))
    suite.group("files of the manifest, by sha256sum" + (" and fsverity" if has_fsverity else ""),
                len(entries), bad)
    plan = json.dumps(manifest["plan"], sort_keys=True, separators=(",", ":")).encode()
    suite.check(hashlib.sha256(plan).hexdigest() == manifest["plan_sha256"], "plan_sha256")
    check_units(suite, out, manifest)
    result = tool.run("inspect", "--digest", "--json", os.path.join(out, parts[0]["name"]))
    found = json.loads(result.out) if result.code == 0 else {}
    suite.check(found.get("fs_verity") == parts[0]["tree"], "inspect of a part: its tree", result)


def check_units(suite, out, manifest):
    """The raw digests in each units file, from the parts."""
    for rank in manifest["ranks"]:
        with open(os.path.join(out, rank["units"]["name"]), "rb") as f:
            have = f.read()[UNIT_HEADER_BYTES:]
        want = b""
        for part in rank["parts"]:
            with open(os.path.join(out, part["name"]), "rb") as f:
                data = f.read()
            for at in range(0, len(data), UNIT_BYTES):
                want += unit_digest(data[at:at + UNIT_BYTES])
        suite.check(have == want, f"{rank['units']['name']}: {len(want) // DIGEST_BYTES} digests")


def check_sources(suite, out, ckpt):
    with open(os.path.join(out, MANIFEST), "rb") as f:
        sources = json.load(f)["sources"]
    bad = [(s["name"], s) for s in sources
           if by_program(["sha256sum"], os.path.join(ckpt, s["name"])) != s["sha256"]]
    suite.group("sources of the manifest, by sha256sum", len(sources), bad)


def main():
    options = parser("digests against sha256sum and fsverity").parse_args()
    tool, suite = tool_of(options), Suite()
    has_fsverity = shutil.which("fsverity") is not None
    if not has_fsverity:
        suite.skip("fsverity", "the program fsverity is not installed (package fsverity)")
    with scratch() as room:
        if tool.has("inspect"):
            check_sizes(tool, suite, room, has_fsverity)
        else:
            suite.skip("inspect --digest", "inspect is not in this build")
        out, ckpt = os.path.join(room, "out"), mini_ckpt(os.path.join(room, "ckpt"))
        result = tool.run("convert", ckpt, "--out", out, "--tp", "2", "--quiet")
        if suite.check(result.code == 0, "convert", result):
            check_manifest(tool, suite, out, has_fsverity)
            check_sources(suite, out, ckpt)
    return suite.finish()


if __name__ == "__main__":
    sys.exit(main())
