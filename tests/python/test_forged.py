"""Forged sets: digests all recomputed, so that only the rules of FORMAT.md can tell.

Usage: test_forged.py K3.  A converted set is changed in one place, then every digest above that
place (units file, tree, SHA-256, manifest) is made right again, as a faulty writer would leave it.
`verify` must exit 3 and say what is wrong; `load` must not accept what verify calls malformed.
"""
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import k3ref  # noqa: E402  the independent writer: digests and canonical JSON

UNIT = 524288
PART = "model-rank-1-part-1.safetensors"


def run(k3, *args):
    done = subprocess.run([k3, *args], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def reseal(folder):
    """Make the units file of rank 1 and the manifest right again."""
    path = os.path.join(folder, "k3-shards.json")
    with open(path, "rb") as f:
        manifest = json.load(f)
    for rank in manifest["ranks"]:
        units_path = os.path.join(folder, rank["units"]["name"])
        with open(units_path, "rb") as f:
            head = f.read(128)
        units = b""
        for part in rank["parts"]:
            with open(os.path.join(folder, part["name"]), "rb") as f:
                data = f.read()
            tree = k3ref.tree_of_bytes(data)
            part["sha256"], part["tree"] = k3ref.sha(data), tree.digest()
            units += b"".join(tree.units())
        with open(units_path, "wb") as f:
            f.write(head + units)
        rank["units"]["sha256"] = k3ref.sha(head + units)
    del manifest["~sha256"]
    sealed = k3ref.seal_json(manifest)
    with open(path, "wb") as f:
        f.write(sealed)


def edit_header(folder, change):
    """Change the header text of one part; its length stays a multiple of UNIT."""
    path = os.path.join(folder, PART)
    with open(path, "r+b") as f:
        data = bytearray(f.read())
        size = struct.unpack("<Q", data[:8])[0]
        text = bytes(data[8:8 + size]).rstrip(b" ")
        new = change(text)
        assert new != text and len(new) <= size
        data[8:8 + size] = new.ljust(size, b" ")
        f.seek(0)
        f.write(data)


def swap(text, a, b):
    return text.replace(a, b"\0").replace(b, a).replace(b"\0", b)


def flip(folder, name, offset):
    with open(os.path.join(folder, name), "r+b") as f:
        f.seek(offset)
        byte = f.read(1)[0]
        f.seek(offset)
        f.write(bytes([byte ^ 1]))


def bomb(folder):
    """Instead of the source headers, one zstd frame of 4 GiB of zeros: 128 KiB in each block."""
    count = 32768
    frame = struct.pack("<IBBQ", 0xFD2FB528, 0xC4, 0x38, count << 17)  # 8-byte size, checksum
    for i in range(count):
        frame += (((1 << 17) << 3) | (1 << 1) | (i == count - 1)).to_bytes(3, "little") + b"\0"
    frame += b"sum?"
    with open(os.path.join(folder, "source-headers.zst"), "wb") as f:
        f.write(frame)
    path = os.path.join(folder, "k3-shards.json")
    with open(path, "rb") as f:
        manifest = json.load(f)
    manifest["headers"].update(bytes=len(frame), sha256=k3ref.sha(frame))
    with open(path, "w", encoding="ascii") as f:
        json.dump(manifest, f)


NOT_LOADED = ("a pad that is not zero", "a bomb instead of the source headers")

CASES = [
    ("names of two tensors swapped",
     lambda d: edit_header(d, lambda t: swap(t, b"self_attn.k_proj.weight", b"self_attn.v_proj.weight")),
     "not the one the plan makes"),
    ("shape of a tensor turned",
     lambda d: edit_header(d, lambda t: t.replace(b'"shape":[1,', b'"shape":[', 1).replace(
         b'],"data_offsets"', b',1],"data_offsets"', 1)),
     PART),
    ("dtype of a tensor changed",
     lambda d: edit_header(d, lambda t: t.replace(b'"dtype":"BF16"', b'"dtype":"F16"', 1)),
     PART),
    ("a view renamed",
     lambda d: edit_header(d, lambda t: t.replace(b"k3.view.layers.0.attn.o\"", b"k3.view.layers.0.attn.x\"")),
     "not the one the plan makes"),
    ("another rank in the metadata",
     lambda d: edit_header(d, lambda t: t.replace(b'"k3.rank":"1"', b'"k3.rank":"0"')),
     "rank"),
    ("white space in the header",
     lambda d: edit_header(d, lambda t: t.replace(b'","', b'" ,"', 1)),
     "not the one the plan makes"),
    ("a pad that is not zero",
     lambda d: flip(d, PART, os.path.getsize(os.path.join(d, PART)) - 1),
     "pad"),
    ("a bomb instead of the source headers", bomb, "bytes of content, found 4294967296 declared"),
]


def main():
    k3 = os.path.abspath(sys.argv[1])
    passed = failed = 0
    with tempfile.TemporaryDirectory(prefix="k3-forged.") as work:
        ckpt, good, bad = (os.path.join(work, n) for n in ("ckpt", "good", "bad"))
        for args in (["synth", ckpt, "--preset", "tiny", "--quiet"],
                     ["convert", ckpt, "--out", good, "--tp", "2", "--quiet"]):
            rc, text = run(k3, *args)
            if rc:
                sys.exit(f"setup failed: {args}: {text}")
        shutil.copytree(good, bad)
        reseal(bad)
        rc, text = run(k3, "verify", bad)
        same = rc == 0
        print("ok  " if same else "FAIL", "a set that is only resealed is good")
        passed, failed = passed + same, failed + (not same)
        for name, change, wanted in CASES:
            shutil.rmtree(bad)
            shutil.copytree(good, bad)
            change(bad)
            reseal(bad)
            rc, text = run(k3, "verify", bad)
            right = rc == 3 and wanted in text
            if right and name not in NOT_LOADED:  # which load does not look at
                rc, text = run(k3, "load", bad)
                right = rc == 3
            print("ok  " if right else f"FAIL (exit {rc}: {text})", name)
            passed, failed = passed + right, failed + (not right)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
