#!/usr/bin/env python3
"""First inputs of the fuzz targets, made of what the tool itself writes and of bad files.

    make_seeds.py K3 MAKE_BAD_FILES OUT      OUT/TARGET/NAME

K3 is the program, MAKE_BAD_FILES the test program of that name.  A small checkpoint is made by
`synth`, cut down further (one expert, two layers), converted in several layouts, and taken apart.
Standard library only.
"""
import json
import os
import struct
import subprocess
import sys
import tempfile

SEED_BYTES_MAX = 20000  # larger seeds slow a fuzzer down more than they show it

DTYPE_BITS = {"BF16": 16, "F32": 32, "U8": 8, "F8_E8M0": 8}

JSON = [
    b"{}", b"[]", b"0", b'""', b"true", b"false", b"null", b"-1", b"1.5e+3", b"1E-2", b"-0",
    b"18446744073709551615", b"18446744073709551616", b"00", b"1.", b"1e", b"[1,]", b"[,1]",
    b'{"a":1,"a":2}', b'{"a":1,"\\u0061":2}', b'"\\u00e9\\ud83d\\ude00"', b'"\\ud800"',
    b'"\\udc00"', b'"\\u0000"', b'"\\"\\\\\\/\\b\\f\\n\\r\\t"', b'"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80"',
    b'"\xc0\x80"', b'"\xed\xa0\x80"', b"\xef\xbb\xbf{}", b" \t\r\n{ \"a\" : [ 1 , 2 ] }\n", b"{} x",
    b'{"a":{"b":{"c":[[[[1]]]]}}}', b"[" * 33 + b"]" * 33, b"[" * 32 + b"]" * 32, b'"a', b"{", b'{"a"',
    b'{"a":', b'{"a":1', b'{"a":1,', b"tru", b"nul", b'"\\x"', b'"\x01"', b'"\\u12"', b"-", b"NaN",
    b"{" + b",".join(b'"k%d":%d' % (i, i) for i in range(40)) + b"}",
    b"{" + b",".join(b'"\\u0061%d":{"x":[],"y":{}}' % i for i in range(12)) + b"}",
]

SIZES = ["195GiB", "1.5 TB", "4096", "0", "12.5", "900MB/s", "900MB", "1.5KB", "1e3", "18446744073709551615B",
         "18446744073709551616", "1.0000000000001TB", "3G", "3 XB", "", "0,2-5", "7", "0-7", "8", "1-0", "5-",
         "0,0", "4095", "4096", "99999", "100000", "0-4096", "1,,2", "0.000000000001TB", ".5", "5.", "1 B "]

OPTS = [
    "plan CKPT --tp 8 --dp 1 --pp 2 --pp-layers 47,46 --json", "convert CKPT --out A --out B --tp 2 --memory 1GiB",
    "verify DIR --ranks 0,2-5 --quick", "load DIR --rank 0 --io uring --staging 64MiB", "plan --help", "--version",
    "synth DIR --preset tiny --layers 3 --experts 16 --seed 7 --sparse", "export DIR --to X", "seal --out A",
    "inspect DIR --tensor a --stats --digest", "completion bash", "man plan", "help convert", "plna CKPT", "plan --tpp 8",
    "plan CKPT --tp=8 --tp=4", "plan CKPT --tp", "plan CKPT --tp --dp", "plan -- --x", "-h", "plan -x", "--tp 3",
    "plan CKPT --rate 12.5 --budget 195GiB --experts ep --shared replicate --vision first", "load DIR --device host",
    "load DIR --ranks 0,0", "load DIR --ranks 3-1", "load DIR --ranks 0-4095", "load DIR --ranks 0-4096",
    "plan a b", "plan", "convert CKPT --out A --worker 0 --workers 4", "plan CKPT --tp 4096 --dp 2", "plan CKPT --jobs 0",
]

POLICIES = [
    "verbatim", "nvfp4", "fp8-attn", "fp8-block", "mxfp8", "bf16", "int4-g32", "", "fp4", "experts", "experts=",
    "experts=nvfp4", "experts=mxfp4", "experts=mxfp4,experts=bf16", "attention=fp8-block,experts=nvfp4,config=modelopt",
    "experts=nvfp4,oow=requant", "oow=snap,config=modelopt,experts=bf16", "oow=maybe", "config=modelopt", "norm=bf16",
    "attention=fp8-channel,experts=int8-g32,head=fp8-tensor,vision=fp8-channel,projector=nvfp4",
    "attention=fp8-tensor,experts=fp8-tensor,router=mxfp4,embed=int8-g32,projector=int4-g32",
    "attention=mxfp8,experts=mxfp8,shared=mxfp4,latent=nvfp4,dense=nvfp4,head=mxfp8,*.f_b_proj=verbatim",
    "attention=fp8-block,*.layers.2.*=verbatim,*.layers.1.*.gate_proj=nvfp4,*.layers.1.*.up_proj=nvfp4",
    "*.q_proj=fp8-block", "*.layers.1.*.w1=bf16", "*moe.experts.*=int4-g32", "*.gate=mxfp8", "*embed_tokens=fp8-block",
    "*vision_tower*=fp8-channel,*mm_projector*=int4-g32", "experts=int4-g128", "*.o_proj=int4-g128", "*=fp8-block",
    "language_model.model.layers.2.block_sparse_moe.experts.{e}.w1=nvfp4", "a*a*a*a*a*a*a*b=bf16", "**.=bf16",
    "*.x=bf16,*.x=mxfp8", "*.o proj=bf16", "*." + "x" * 125 + "=bf16", "*." + "x" * 126 + "=bf16",
    ",".join(f"*.{i}=bf16" for i in range(65)), '{"experts":"nvfp4","*.self_attn.o_proj":"fp8-block"}', "{}",
    '{"attention":"fp8-block","oow":"snap","config":"modelopt"}', '{"experts":"nvfp4","experts":"bf16"}',
    '{"experts":4}', '{"experts":{"a":"b"}}', '["experts"]', '{"\\u0065xperts":"bf16"}', '{"experts":"bf16"} x',
    '{"*.\\u0000":"bf16"}',
]

VIEWS = ["k3.view.a\nBF16;2,3;0;12", "k3.view.a\nU8;4096;0;4096", "k3.view.a\nF4;3;0;1", "k3.view.a\nU8;1;1;0",
         "x\nU8;1;0;1", "k3.view.\nU8;1;0;1", "k3.view.a\nU8;01;0;1", "k3.view.a\nU8;1,2,3,4;0;24",
         "k3.view.a\nU8;1,2,3,4,5;0;120", "k3.view.a\nU9;1;0;1", "k3.view.a\nU8;;0;1", "k3.view.a\nU8;1;0;1 ",
         "k3.view.a\nU8;18446744073709551615,2;0;1", "k3.view." + "a" * 64 + "\nU8;1;0;1", "k3.view.a\n"]

NAMES = ["model-rank-0-part-0.safetensors", "model-rank-07-part-1.safetensors", "model-rank-4095-part-4095.safetensors",
         "model-rank-4096-part-0.safetensors", "model-rank-3.units", "model-rank-.units", "config.json", ".hidden",
         "a/b", "a\"b", "", "F8_E4M3", "BF16", "{i}", "{", "\x7f\x01", "x" * 300, "x" * 513, "\u00e9\u20ac\U0001f600",
         "language_model.model.layers.00.mlp.up_proj.weight", "language_model.model.layers.99999.mlp.up_proj.weight",
         "language_model.model.layers.100000.mlp.up_proj.weight"]


class Seeds:
    def __init__(self, out):
        self.out = out

    def put(self, target, name, data):
        if len(data) > SEED_BYTES_MAX:
            return
        os.makedirs(f"{self.out}/{target}", exist_ok=True)
        with open(f"{self.out}/{target}/{name}", "wb") as f:
            f.write(data)


def read(path):
    with open(path, "rb") as f:
        return f.read()


def header_of(path):
    data = read(path)
    return data[:8 + struct.unpack("<Q", data[:8])[0]]


def shrink(source, target):
    """Layers 0 and 2 of the three, one expert, one vision block; data are zeros."""
    os.makedirs(target)
    config = json.loads(read(f"{source}/config.json"))
    text, vision = config["text_config"], config["vision_config"]
    text.update(num_hidden_layers=2, num_experts=1, num_experts_per_token=1)
    text["linear_attn_config"].update(full_attn_layers=[2], kda_layers=[1])
    vision.update(vt_num_hidden_layers=1)
    for part in (config, text, vision):  # what no rule reads costs a fuzzer time
        for name in [n for n, value in part.items() if isinstance(value, (str, float)) or n == "auto_map"]:
            part.pop(name)
    text["quantization_config"].pop("ignore")
    with open(f"{target}/config.json", "w") as f:
        json.dump(config, f, separators=(",", ":"))
    files = {"model-1.safetensors": {}, "model-2.safetensors": {}, "model-3.safetensors": {}}
    for name in sorted(n for n in os.listdir(source) if n.endswith(".safetensors")):
        for tensor, entry in json.loads(header_of(f"{source}/{name}")[8:]).items():
            if tensor == "__metadata__" or ".layers.1." in tensor or ".blocks.1." in tensor:
                continue
            if ".experts." in tensor and ".experts.0." not in tensor:
                continue
            if ".block_sparse_moe.gate." in tensor:
                entry["shape"][0] = 1
            number = 1 if ".layers." in tensor else 2 if tensor.startswith("language") else 3
            files[f"model-{number}.safetensors"][tensor.replace(".layers.2.", ".layers.1.")] = entry
    weight_map, total = {}, 0
    for name, tensors in files.items():
        at = 0
        for entry in tensors.values():
            count = DTYPE_BITS[entry["dtype"]] // 8
            for d in entry["shape"]:
                count *= d
            entry["data_offsets"] = [at, at + count]
            at += count
        text_bytes = json.dumps(tensors, separators=(",", ":")).encode()
        text_bytes += b" " * (-len(text_bytes) % 8)
        with open(f"{target}/{name}", "wb") as f:
            f.write(struct.pack("<Q", len(text_bytes)) + text_bytes + bytes(at))
        weight_map.update({tensor: name for tensor in tensors})
        total += at
    with open(f"{target}/model.safetensors.index.json", "w") as f:
        json.dump({"metadata": {"total_size": total}, "weight_map": weight_map}, f, separators=(",", ":"))


def take_set(seeds, label, folder):
    manifest = read(f"{folder}/k3-shards.json")
    seeds.put("manifest", label, manifest)
    seeds.put("json", f"manifest-{label}", manifest)
    begin = manifest.index(b'"plan":') + 7
    end = manifest.index(b',"plan_sha256"')
    seeds.put("plan", label, manifest[begin:end])
    seeds.put("doc", f"plan-{label}", manifest[begin:end])
    frame = read(f"{folder}/source-headers.zst")
    seeds.put("zst", label, frame)
    content = subprocess.run(["zstd", "-dcq"], input=frame, stdout=subprocess.PIPE, check=True).stdout
    seeds.put("headers", label, content)
    for name in sorted(os.listdir(folder)):
        path = f"{folder}/{name}"
        if name.endswith(".units"):
            seeds.put("units", f"{label}-{name}", read(path))
        elif name.startswith("model-rank-") and name.endswith(".safetensors"):
            header = header_of(path)[8:].rstrip(b" ")
            seeds.put("part", f"{label}-{name}", header)
            for key, value in json.loads(header)["__metadata__"].items():
                if key.startswith("k3.view.") and "-part-1." in name and label == "tp1":
                    seeds.put("view", key, f"{key}\n{value}".encode())


def take_checkpoint(seeds, folder):
    config = read(f"{folder}/config.json")
    index = read(f"{folder}/model.safetensors.index.json")
    seeds.put("config", "mini", config)
    seeds.put("doc", "config", config)
    seeds.put("index", "mini", index)
    for i, tensor in enumerate(json.loads(index)["weight_map"]):
        if i % 3 == 0:
            seeds.put("names", f"tensor-{i}", tensor.encode())
    for name in sorted(os.listdir(folder)):
        if name.endswith(".safetensors"):
            seeds.put("st", name, header_of(f"{folder}/{name}"))
    seeds.put("index", "small", b'{"metadata":{"total_size":4},"weight_map":{"a":"a.safetensors"},"x":[1,{}]}')
    seeds.put("index", "empty", b'{"weight_map":{}}')
    seeds.put("index", "none", b'{"metadata":{}}')
    seeds.put("index", "odd", b'{"weight_map":{"a":"../a","a b":"c"}}')


def damaged_configs(seeds, config):
    """One broken rule each: a value away, zero, too large, a list that does not cover."""
    whole = json.loads(config)
    paths = [("text_config", "num_hidden_layers"), ("text_config", "num_experts"), ("vision_config", "patch_size"),
             ("text_config", "routed_expert_hidden_size"), ("text_config", "moe_intermediate_size"),
             ("text_config", "first_k_dense_replace"), ("text_config", "tie_word_embeddings")]
    for section, member in paths:
        for label, value in (("zero", 0), ("huge", 16777216), ("text", "x"), ("true", True), ("odd", 33), ("half", 1.5)):
            copy = json.loads(config)
            copy[section][member] = value
            seeds.put("config", f"{member}-{label}", json.dumps(copy, separators=(",", ":")).encode())
    for label, lists in (("twice", ([1, 2], [1])), ("hole", ([], [1])), ("beyond", ([3], [1, 2])), ("flat", (1, [2]))):
        copy = json.loads(config)
        copy["text_config"]["linear_attn_config"].update(full_attn_layers=lists[0], kda_layers=lists[1])
        seeds.put("config", f"layers-{label}", json.dumps(copy, separators=(",", ":")).encode())
    whole["architectures"] = ["Other"]
    seeds.put("config", "other", json.dumps(whole, separators=(",", ":")).encode())
    seeds.put("config", "none", b'{"architectures":[]}')
    seeds.put("config", "bare", b'{"architectures":["KimiK3ForConditionalGeneration"],"quantization_config":{}}')


# ---- documents with one thing wrong; their digests are put right by the targets ----

def canonical(value):
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def variants(seeds, target, document, tail, changes):
    """`document` once for each change: a function that edits it, or returns another."""
    for label, change in changes.items():
        copy = json.loads(json.dumps(document))
        other = change(copy)
        seeds.put(target, "wrong-" + label, canonical(copy if other is None else other) + tail)


def setter(*path_and_value):
    *path, last, value = path_and_value

    def change(document):
        at = document
        for step in path:
            at = at[step]
        if value is None:
            del at[last]
        else:
            at[last] = value
    return change


def entry_changes(path):
    """Of one list of files."""
    entry = {"bytes": 1, "name": "a", "sha256": "0" * 64}

    def put(*entries):
        return setter(*path, [dict(entry, **e) for e in entries])
    label = str(path[-1])
    return {
        f"{label}-order": put({"name": "b"}, {"name": "a"}), f"{label}-twice": put({}, {}),
        f"{label}-large": put({"bytes": 1 << 31}), f"{label}-huge": put({"bytes": 1 << 53}),
        f"{label}-path": put({"name": "a/b"}), f"{label}-part": put({"name": "model-rank-0-part-0.safetensors"}),
        f"{label}-manifest": put({"name": "k3-shards.json"}), f"{label}-long": put({"name": "x" * 256}),
        f"{label}-digest": put({"sha256": "0" * 63}), f"{label}-upper": put({"sha256": "A" * 64}),
        f"{label}-text": setter(*path, ["a"]), f"{label}-more": put({"zzz": 1}), f"{label}-none": setter(*path, []),
        f"{label}-escape": put({"name": "\u00e9"}), f"{label}-number": put({"name": 1}),
    }


def part_changes(path):
    """Of the first part of one list, and of the list."""
    first = (*path, 0)
    return {
        "part-bytes": setter(*first, "bytes", 1), "part-zero": setter(*first, "bytes", 0),
        "part-huge": setter(*first, "bytes", ((1 << 53) // 524288 - 1) * 524288),
        "part-offset": setter(*first, "data_offset", 0), "part-behind": setter(*first, "data_offset", 1 << 40),
        "part-odd": setter(*first, "data_offset", 4096), "part-name": setter(*first, "name", "x"),
        "part-rank": setter(*first, "name", "model-rank-1-part-0.safetensors"),
        "part-last": setter(*first, "name", "model-rank-0-part-4095.safetensors"),
        "part-limit": setter(*first, "name", "model-rank-0-part-4096.safetensors"),
        "part-tree": setter(*first, "tree", "x"), "parts-none": setter(*path, []), "parts-text": setter(*path, "x"),
    }


def wrong_manifests(seeds, manifest):
    document = json.loads(manifest)
    rank = document["ranks"][0]
    changes = {
        "format": setter("format", "x"), "version": setter("version", 1), "version-text": setter("version", "0"),
        "no-version": setter("version", None), "no-format": setter("format", None), "no-tool": setter("tool", None),
        "tool": setter("tool", "x"), "tool-long": setter("tool", "k3-shard " + "1" * 250), "more": setter("zz", 1),
        "plan": setter("plan", {}), "plan-text": setter("plan", "x"), "plan-number": setter("plan", "revision", 1.5),
        "plan-null": setter("plan", "revision", None), "headers-name": setter("headers", "name", "x"),
        "rank-limit": setter("ranks", 0, "rank", 4096), "rank-other": setter("ranks", 0, "rank", 1),
        "ranks-none": setter("ranks", []), "ranks-twice": setter("ranks", [rank, rank]),
        "image": setter("ranks", 0, "image_bytes", 1), "units-name": setter("ranks", 0, "units", "name", "x"),
        "units-bytes": setter("ranks", 0, "units", "bytes", 1), "totals": setter("totals", "ranks", 2),
        "totals-text": setter("totals", []), "root": lambda d: [d],
    }
    changes.update(entry_changes(("files",)))
    changes.update(entry_changes(("sources",)))
    changes.update(part_changes(("ranks", 0, "parts")))
    variants(seeds, "manifest", document, b"\n", changes)
    seeds.put("manifest", "wrong-blank", manifest.replace(b":", b": ", 1))
    seeds.put("manifest", "wrong-plan-blank", manifest.replace(b'"plan":{', b'"plan":{ ', 1))
    seeds.put("manifest", "wrong-cut", manifest[:-1])


def wrong_records(seeds, record):
    head, raw = record.split(b"\n", 1)
    document = json.loads(head)
    changes = {
        "item": setter("item", 4096), "item-files": lambda d: d.update(item=1, files=[{"bytes": 1, "name": "a", "sha256": "0" * 64}]),
        "token": setter("token", "x"), "token-long": setter("token", "0" * 17), "format": setter("format", "k3-manifest"),
        "twice": lambda d: d.update(parts=d["parts"] + d["parts"]),
    }
    changes.update(entry_changes(("files",)))
    changes.update(entry_changes(("sources",)))
    changes.update(part_changes(("parts",)))
    variants(seeds, "record", document, b"\n" + raw, changes)
    seeds.put("record", "wrong-cut", record[:-1])
    seeds.put("record", "wrong-less", record[:-32])
    seeds.put("record", "wrong-no-head", record.replace(b"\n", b"", 1))


def wrong_casts(seeds, record):
    """A record with casts: each field of the last one as no cast can have it."""
    head, raw = record.split(b"\n", 1)
    document = json.loads(head)
    count = document["cast_count"]
    for label, at, value in (("slot", 0, 0), ("from", 4, 4), ("to", 5, 11), ("to-none", 5, 0), ("pad", 6, 1),
                             ("x2", 15, 0xff), ("error", 23, 0x80), ("most", 31, 0x7f), ("values", 39, 1),
                             ("groups", 47, 1), ("zero", 55, 1), ("saturated", 63, 1), ("window", 71, 1)):
        wrong = bytearray(raw)
        wrong[len(raw) - 72 + at] = value
        seeds.put("record", "wrong-cast-" + label, head + b"\n" + bytes(wrong))
    changes = {"cast-fewer": setter("cast_count", count - 1), "cast-more": setter("cast_count", count + 1),
               "cast-none": setter("cast_count", None), "cast-huge": setter("cast_count", 1 << 23),
               "cast-digest": setter("casts_sha256", "x")}
    variants(seeds, "record", document, b"\n" + raw, changes)


REPORT_POLICY = "attention=fp8-block,dense=mxfp8,head=int4-g32"  # that of fuzz_report.c


def take_report(seeds, report):
    """What stands behind the beginning of a report, which the target makes itself."""
    text = report[report.index(b'"tensors":[') + 11:]
    lines = text.split(b"\n")
    wrong = {"tool": text, "cut": text[:-1], "less": b"\n".join(lines[:1] + lines[2:]),
             "twice": b"\n".join(lines[:2] + lines[1:]), "empty": b"\n],\"totals\":[\n],\"version\":0}\n",
             "decibel": text.replace(b'"sqnr_db":3', b'"sqnr_db":4', 1),
             "values": text.replace(b'"values":', b'"values":1', 1), "to": text.replace(b"fp8-block", b"bf16", 1),
             "tensor": text.replace(b"q_proj", b"o_proj", 1), "total": text.replace(b'"tensors":1', b'"tensors":2', 1),
             "infinite": text.replace(b'"sum_x2":', b'"sum_x2":1e999', 1), "half": text[:len(text) // 2],
             "behind": text + b"\n", "blank": text.replace(b":", b": ", 1)}
    for label, data in wrong.items():
        seeds.put("report", label if label == "tool" else "wrong-" + label, data)


def wrong_plans(seeds, plan):
    document = json.loads(plan)
    layers = "text_config.linear_attn_config.kda_layers"
    changes = {
        "architecture": setter("architecture", "Other"), "digest": setter("config_sha256", "x"),
        "index": setter("index_sha256", "0" * 63), "more": setter("zz", 1), "policy": setter("policy", "cast"),
        "version": setter("version", 1), "no-layout": setter("layout", None), "no-config": setter("config", None),
        "headers-none": setter("headers", []), "headers-name": setter("headers", 0, "name", "a/b"),
        "headers-size": setter("headers", 0, "header_bytes", 1 << 40), "headers-digest": setter("headers", 0, "sha256", "x"),
        "headers-order": lambda d: d["headers"].reverse(), "revision": setter("revision", 1),
        "revision-wide": setter("revision", "\u00e9"), "layers": setter("config", layers, [1, 2]),
        "config-more": setter("config", "zz", 1), "config-less": setter("config", layers, None),
        "experts": setter("config", "text_config.num_experts", 16777216),
    }
    for member, values in (("tp", (0, 3, 4097, "x", 4096)), ("dp", (0, 3)), ("pp", (0, 2, 300)),
                           ("pp_layers", ([], [0], [1], [5000], ["x"], [1, 1])), ("experts", ("x", 1, "ep")),
                           ("shared", ("x", "replicate")), ("vision", ("x", "drop", "first")), ("zz", (1,))):
        for i, value in enumerate(values):
            changes[f"{member}-{i}"] = setter("layout", member, value)
    changes["stages"] = lambda d: d["layout"].update(pp=2, pp_layers=[1, 2])
    changes["stage-zero"] = lambda d: d["layout"].update(pp=2, pp_layers=[2, 0])
    variants(seeds, "plan", document, b"", changes)


def wrong_parts(seeds, header):
    document = json.loads(header)
    tensors = [name for name in document if name != "__metadata__"]
    views = [key for key in document["__metadata__"] if key.startswith("k3.view.")]
    last, first = max(tensors, key=lambda t: document[t]["data_offsets"]), min(tensors, key=lambda t: document[t]["data_offsets"])
    pads = [name for name in tensors if name.startswith("k3.pad.")]

    def rename(old, new):
        def change(d):
            d[new] = d.pop(old)
        return change
    changes = {
        "format": setter("__metadata__", "k3.format", "1"), "no-format": setter("__metadata__", "k3.format", None),
        "more": setter("__metadata__", "zz", "1"), "no-view": setter("__metadata__", views[0], None),
        "view": setter("__metadata__", views[0], "U8;1;0;1"), "view-form": setter("__metadata__", views[0], "x"),
        "view-far": setter("__metadata__", views[-1], "U8;1;4503599627370496;4503599627370497"),
        "pad-name": rename(pads[0], "k3.pad.7"), "pad-none": rename(pads[0], "zz"), "pad-more": rename(first, "k3.pad.0x"),
        "pad-shape": lambda d: d[pads[0]].update(shape=[1] + d[pads[0]]["shape"]), "hole": setter(first, None),
        "short": setter(last, None), "no-meta": setter("__metadata__", None), "scalar": lambda d: d.update(
            zz={"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}),
        "dims": lambda d: d[first].update(shape=[1, 1, 1] + d[first]["shape"]),
        "view-half": lambda d: d["__metadata__"].update({views[0]: "U8;1;%d;%d" % (d[first]["data_offsets"][0], d[first]["data_offsets"][0] + 1)}),
    }
    variants(seeds, "part", document, b"", changes)


def wrong_checkpoints(seeds, content):
    at = content.index(b"\n") + 1
    entries = []
    while at < len(content):
        line, at = content[at:content.index(b"\n", at)], content.index(b"\n", at) + 1
        name, count = line.decode().split(" ")
        entries.append((name, content[at:at + int(count)]))
        at += int(count) + 1

    # Two small files are enough to be wrong in; what lies in the others is then missing.
    entries = entries[:2] + [e for e in entries[2:] if len(e[1]) < 2500]
    kept = [name for name, _ in entries]
    index = json.loads(entries[1][1])
    index["weight_map"] = {tensor: name for tensor, name in index["weight_map"].items() if name in kept}
    entries[1] = (entries[1][0], json.dumps(index, separators=(",", ":")).encode())

    def put(label, rows):
        seeds.put("headers", "wrong-" + label, b"k3-source-headers 0\n" + b"".join(
            b"%s %d\n%s\n" % (name.encode(), len(data), data) for name, data in rows))

    def edited(number, change):
        rows = list(entries)
        name, data = rows[number]
        prefix = data[:8] if number > 1 else b""
        document = json.loads(data[len(prefix):])
        change(document)
        data = json.dumps(document, separators=(",", ":")).encode()
        rows[number] = (name, (struct.pack("<Q", len(data)) if prefix else b"") + data)
        return rows
    tensor = next(iter(json.loads(entries[2][1][8:])))
    put("two", entries[:2])
    put("order", entries[:2] + entries[:1:-1])
    put("index-first", [entries[1], entries[0]] + entries[2:])
    put("name", entries[:2] + [("a/b", entries[2][1])])
    put("missing", entries[:3])
    put("same", entries[:3] + [("zz.safetensors", entries[2][1])])
    put("broken", entries[:2] + [(entries[2][0], b"\x01" * 16)] + entries[3:])
    put("total", edited(1, setter("metadata", "total_size", 1)))
    put("unnamed", edited(1, setter("weight_map", tensor, None)))
    put("elsewhere", edited(1, setter("weight_map", tensor, entries[3][0])))
    put("absent", edited(1, setter("weight_map", tensor, "zz.safetensors")))
    put("unknown", edited(1, setter("weight_map", "zz", entries[2][0])))
    put("unknown-tensor", edited(2, lambda d: d.update(zz=d.pop(tensor))))
    put("dtype", edited(2, lambda d: d[tensor].update(dtype="I32" if d[tensor]["dtype"] == "F32" else "F16")))
    put("shape", edited(2, lambda d: d[tensor].update(shape=[1] + d[tensor]["shape"])))


def zst_frames(seeds):
    for label, data, options in (("empty", b"", []), ("one", b"x", []), ("run", bytes(300000), []),
                                 ("text", b"k3 " * 99, ["-19"]), ("no-check", b"x" * 40, ["--no-check"]),
                                 ("no-size", b"x" * 40, ["--no-content-size"])):
        with tempfile.NamedTemporaryFile() as f:
            f.write(data)
            f.flush()
            frame = subprocess.run(["zstd", "-cq", *options, f.name], stdout=subprocess.PIPE, check=True).stdout
        seeds.put("zst", label, frame)
        seeds.put("zst", f"{label}-cut", frame[:-1])
        seeds.put("zst", f"{label}-more", frame + b"x")
    # 4 GiB promised by a few bytes; a skippable frame.
    seeds.put("zst", "promise", b"\x28\xb5\x2f\xfd\xe4" + struct.pack("<Q", 4 << 30) + b"\x01\x00\x00\x00\x00\x00\x00")
    seeds.put("zst", "skippable", b"\x50\x2a\x4d\x18\x04\x00\x00\x00abcd")


def main():
    k3, make_bad, out = sys.argv[1:]
    seeds = Seeds(out)
    for i, text in enumerate(JSON):
        seeds.put("json", f"text-{i}", text)
        if text[:1] == b"{":
            seeds.put("doc", f"text-{i}", text)
    for target, rows in (("sizes", SIZES), ("view", VIEWS), ("names", NAMES),
                         ("policy", POLICIES)):
        for i, row in enumerate(rows):
            seeds.put(target, f"row-{i}", row.encode())
    for i, row in enumerate(OPTS):
        seeds.put("opts", f"row-{i}", row.replace(" ", "\n").encode())
    zst_frames(seeds)
    with tempfile.TemporaryDirectory() as folder:
        def run(*args):
            subprocess.run([k3, *args, "--quiet"], check=True, stdout=subprocess.DEVNULL)
        run("synth", f"{folder}/synth", "--preset", "tiny", "--layers", "3", "--experts", "16")
        mini = f"{folder}/mini"
        shrink(f"{folder}/synth", mini)
        take_checkpoint(seeds, mini)
        damaged_configs(seeds, read(f"{mini}/config.json"))
        layouts = (("tp1", ["--tp", "1"]), ("tp2", ["--tp", "2", "--shared", "replicate", "--vision", "first"]),
                   ("pp2", ["--tp", "1", "--pp", "2", "--experts", "ep", "--vision", "drop"]))
        for label, options in layouts:
            run("convert", mini, "--out", f"{folder}/{label}", *options)
            take_set(seeds, label, f"{folder}/{label}")
        one = f"{folder}/tp1"
        manifest = read(f"{one}/k3-shards.json")
        wrong_manifests(seeds, manifest)
        wrong_plans(seeds, canonical(json.loads(manifest)["plan"]))
        wrong_parts(seeds, header_of(f"{one}/model-rank-0-part-1.safetensors")[8:])
        wrong_checkpoints(seeds, subprocess.run(["zstd", "-dcq", f"{one}/source-headers.zst"],
                                                stdout=subprocess.PIPE, check=True).stdout)
        run("convert", mini, "--out", f"{folder}/part", "--tp", "1", "--worker", "0", "--workers", "1")
        for name in sorted(os.listdir(f"{folder}/part/.k3-partial")):
            if name.endswith(".record"):
                seeds.put("record", name, read(f"{folder}/part/.k3-partial/{name}"))
        wrong_records(seeds, read(f"{folder}/part/.k3-partial/item-0.record"))
        run("convert", mini, "--out", f"{folder}/cast", "--tp", "1", "--quant", "head=mxfp8", "--worker", "0",
            "--workers", "1")
        for name in sorted(os.listdir(f"{folder}/cast/.k3-partial")):
            record = read(f"{folder}/cast/.k3-partial/{name}") if name.endswith(".record") else b""
            if b'"cast_count":0,' not in record[:40] and record:
                seeds.put("record", "cast-" + name, record)
                wrong_casts(seeds, record)
        run("convert", f"{folder}/synth", "--out", f"{folder}/report", "--tp", "1", "--quant", REPORT_POLICY)
        take_report(seeds, read(f"{folder}/report/k3-cast-report.json"))
        bad = f"{folder}/bad"
        os.makedirs(bad)
        subprocess.run([make_bad, bad], check=True)
        for name in sorted(os.listdir(bad)):
            if name.endswith(".safetensors") and os.path.getsize(f"{bad}/{name}") <= SEED_BYTES_MAX:
                seeds.put("st", "bad-" + name.removesuffix(".safetensors"), read(f"{bad}/{name}"))


main()
