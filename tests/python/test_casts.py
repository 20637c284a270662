"""Sets with casts, from outside: tensor names, what the configurations say of each, and refusals.

Usage: test_casts.py (K3 and K3_BUILD in the environment).  Each tensor of each part is resolved,
under every name that engines ask for, through config.json and hf_quant_config.json, and the format
found there must be the one its dtype and its neighbours show.  k3ref.py compares plan, places, names
and pads with those that FORMAT.md gives (and the bytes of casts, where numpy is there).
"""
import fnmatch
import json
import os
import re
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import k3ref  # noqa: E402
from k3test import Suite, parser, scratch, tool_of  # noqa: E402

# policy, extra options; what they must hold is derived from the files
CASES = ["nvfp4", "fp8-block", "bf16", "experts=mxfp8,head=fp8-channel", "int4-g32",
         "attention=fp8-block,*.layers.2.*=verbatim"]
# What the policies that have a name stand for, in the canonical form of FORMAT.md 4.7.
NAMED = {"nvfp4": "attention=fp8-block,experts=nvfp4", "bf16": "experts=bf16",
         "fp8-block": "attention=fp8-block,experts=fp8-block,shared=fp8-block,latent=fp8-block,"
                      "dense=fp8-block,head=fp8-block", "int4-g32": "experts=int4-g32"}
ALGORITHM = {"NVFP4": "nvfp4-pack-quantized", "MXFP4": "mxfp4-pack-quantized",
             "MXFP8": "mxfp8-quantized", "FP8_PB_WO": "block",
             "FP8_PER_CHANNEL_PER_TOKEN": "channel"}
FUSED = {"in_proj_qkvgfab": ["q_proj", "k_proj", "v_proj", "g_proj", "f_a_proj", "b_proj"],
         "fused_qkvg_proj": ["q_proj", "k_proj", "v_proj", "g_proj"],
         "fused_qkv_a_proj": ["q_a_proj", "kv_a_proj_with_mqa"],
         "fused_qkv_a_proj_with_mqa": ["q_a_proj", "kv_a_proj_with_mqa"],
         "gate_up_proj": ["gate_proj", "up_proj"]}


def tensors_of(directory):
    """Name -> (dtype, shape) of rank 0, pads left out."""
    found = {}
    for name in os.listdir(directory):
        if not re.fullmatch(r"model-rank-0-part-\d+\.safetensors", name):
            continue
        with open(os.path.join(directory, name), "rb") as f:
            header = json.loads(f.read(int.from_bytes(f.read(8), "little")))
        for tensor, row in header.items():
            if tensor != "__metadata__" and not tensor.startswith("k3.pad."):
                found[tensor] = (row["dtype"], row["shape"])
    return found


def formats_of(tensors):
    """Module -> what its tensors are: a format of compressed-tensors (of float-quantized the
    strategy), None where it has only a BF16 matrix."""
    modules = {}
    for name, (dtype, shape) in tensors.items():
        stem, suffix = name.rsplit(".", 1)
        if suffix in ("weight", "weight_packed") and len(shape) == 2 and shape[0] > 1:
            scale = tensors.get(stem + ".weight_scale", (None, None))
            modules[stem] = {
                ("U8", "U8"): "mxfp4-pack-quantized", ("U8", "F8_E4M3"): "nvfp4-pack-quantized",
                ("F8_E4M3", "U8"): "mxfp8-quantized", ("I32", "BF16"): "pack-quantized",
                ("BF16", None): None,
                ("F8_E4M3", "F32"): "channel" if scale[1] == [shape[0], 1] and shape[1] > 128
                else "block"}[dtype, scale[0]]
            if modules[stem] == "block" and scale[1] != [-(-shape[0] // 128), -(-shape[1] // 128)]:
                modules[stem] = "channel"
    return modules


def aliases(module):
    """Names under which an engine may ask for a module."""
    names = [module]
    match = re.fullmatch(r"language_model\.model\.(layers\.\d+\.)(.*)", module)
    if match:
        paths = [match[2]]
        stem, _, last = match[2].rpartition(".")
        paths += [f"{stem}.{f}" for f, members in FUSED.items() if last in members]
        paths += [re.sub("^block_sparse_moe", "mlp", p) for p in paths]
        names = [p + match[1] + q for p in ("language_model.model.", "model.", "") for q in paths]
    elif module.startswith("language_model."):
        names.append(module[len("language_model."):])
    return names


def is_fused_here(name, module, modules):
    """A fused name concerns a module only where all its members are in the layer."""
    last = name.rpartition(".")[2]
    if last not in FUSED:
        return True
    stem = module.rsplit(".", 1)[0]
    return all(f"{stem}.{m}" in modules for m in FUSED[last])


def ask_compressed(config, name):
    """The format that readers of compressed-tensors find: the first group that fits wins."""
    for pattern in config["ignore"]:
        if re.match(pattern[3:], name):
            return None
    for group in config["config_groups"].values():
        if any(re.match(t[3:], name) for t in group["targets"]):
            if group["format"] == "float-quantized":
                return group["weights"]["strategy"]
            return group["format"]
    return "nothing"


def ask_modelopt(quantization, name):
    """The longest entry that is the name or a container of it."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        head = ".".join(parts[:count])
        if head in quantization["quantized_layers"]:
            return ALGORITHM[quantization["quantized_layers"][head]["quant_algo"]]
        if any(fnmatch.fnmatchcase(head, e) for e in quantization["exclude_modules"]):
            return None
    return "nothing"


def resolve(modules, ask):
    wrong = []
    asked = 0
    for module, wanted in modules.items():
        for name in aliases(module):
            if not is_fused_here(name, module, modules):
                continue
            asked += 1
            found = ask(name)
            if found != wanted:
                wrong.append((name, f"found {found}, its tensors are {wanted}"))
    return asked, wrong


def load(directory, name):
    with open(os.path.join(directory, name), encoding="utf-8") as f:
        return json.load(f)


def check_case(suite, tool, ckpt, where, policy):
    out = os.path.join(where, "set")
    done = tool.run("convert", ckpt, "--out", out, "--tp", "2", "--quant", policy, "--quiet")
    if not suite.check(done.code == 0, f"convert --quant {policy}", done):
        return
    modules = formats_of(tensors_of(out))
    config = load(out, "config.json")
    asked, wrong = resolve(
        modules, lambda name: ask_compressed(config["text_config"]["quantization_config"], name))
    suite.group(f"{policy}: names through config.json", asked, wrong)
    published = load(ckpt, "config.json")
    del published["text_config"]["quantization_config"], config["text_config"]["quantization_config"]
    suite.check(config == published, f"{policy}: the rest of config.json is the published one")
    problems, equal = k3ref.compare_set(ckpt, out, k3ref.Layout(tp=2),
                                        policy=NAMED.get(policy, policy))
    suite.check(not problems and equal > 10, f"{policy}: as k3ref.py lays it out",
                "\n".join(problems[:4]))
    done = tool.run("verify", out, "--quiet")
    suite.check(done.code == 0, f"{policy}: verify", done)
    done = tool.run("export", out, "--to", os.path.join(where, "back"))
    suite.check(done.code == 4 and "casts" in done.err, f"{policy}: export is refused", done)
    done = tool.run("verify", out, "--against", ckpt)
    suite.check(done.code == 4 and "casts" in done.err, f"{policy}: --against is refused", done)
    done = tool.run("convert", ckpt, "--out", out, "--tp", "2", "--quiet")
    suite.check(done.code == 4, f"{policy}: a plan without it is another plan", done)


def check_modelopt(suite, tool, ckpt, where, policy):
    out = os.path.join(where, "set")
    done = tool.run("convert", ckpt, "--out", out, "--tp", "2", "--quant", policy, "--config",
                    "modelopt", "--quiet")
    if not suite.check(done.code == 0, f"modelopt: convert --quant {policy}", done):
        return
    modules = formats_of(tensors_of(out))
    config, extra = load(out, "config.json"), load(out, "hf_quant_config.json")
    suite.check(config["quantization_config"]["quant_method"] == "modelopt_mixed" and
                "quantization_config" not in config["text_config"], f"modelopt: {policy}: method")
    for where_from, block in (("config.json", config["quantization_config"]),
                              ("hf_quant_config.json", extra["quantization"])):
        asked, wrong = resolve(modules, lambda name, b=block: ask_modelopt(b, name))
        suite.group(f"modelopt: {policy}: names through {where_from}", asked, wrong)


def expert_values(ckpt):
    """Values of all experts, by the headers of the checkpoint: two in a byte of codes."""
    count = 0
    for name in os.listdir(ckpt):
        if name.endswith(".safetensors"):
            with open(os.path.join(ckpt, name), "rb") as f:
                header = json.loads(f.read(int.from_bytes(f.read(8), "little")))
            count += sum(2 * row["shape"][0] * row["shape"][1] for tensor, row in header.items()
                         if ".experts." in tensor and tensor.endswith("weight_packed"))
    return count


def check_report(suite, tool, ckpt, where):
    """What a conversion says of its casts: role, values, exact or how far off."""
    reports = {}
    for policy, jobs in (("nvfp4", 1), ("nvfp4", 3), ("int4-g32", 2), ("verbatim", 2)):
        out = os.path.join(where, f"report-{policy}-{jobs}")
        done = tool.run("convert", ckpt, "--out", out, "--tp", "2", "--quant", policy, "--jobs",
                        str(jobs), "--json", "--quiet")
        if not suite.check(done.code == 0, f"report of {policy}", done):
            return
        reports[policy, jobs] = json.loads(done.out)["casts"]
    by_role = {cast["role"]: cast for cast in reports["nvfp4", 1]}
    values = expert_values(ckpt)
    experts, attention = by_role["experts"], by_role["attention"]
    suite.check(values and experts["values"] == values and experts["lossless"] and
                experts["max_abs_error"] == 0 and "sqnr_db" not in experts,
                "nvfp4: all values of experts are said to be exact")
    suite.check(not attention["lossless"] and 30 < attention["sqnr_db"] < 33,
                "nvfp4: attention is said to be some 31.5 dB off")
    suite.check(reports["nvfp4", 1] == reports["nvfp4", 3], "the report does not depend on --jobs")
    int4 = reports["int4-g32", 2]
    suite.check(len(int4) == 1 and int4[0]["values"] == values and not int4[0]["lossless"] and
                18 < int4[0]["sqnr_db"] < 24, "int4-g32: experts are said to be some 21 dB off")
    suite.check(reports["verbatim", 2] == [], "verbatim: nothing was cast")


def check_refusals(suite, tool, ckpt, where):
    cases = [(["--quant", "fp4"], 2, "policies are"), (["--quant", "experts=fp4"], 2, "formats are"),
             (["--oow", "snap"], 2, "--quant"), (["--config", "modelopt"], 2, "--quant"),
             (["--quant", "*.q_proj=fp8-block"], 4, "one matrix"),
             (["--quant", "int4-g32", "--config", "modelopt"], 4, "no word"),
             (["--quant", "experts=int4-g128"], 4, "no --tp size helps; or give --quant"),
             (["--quant", os.path.join(where, "none.json")], 1, "none.json")]
    wrong = []
    for args, code, says in cases:
        done = tool.run("convert", ckpt, "--out", os.path.join(where, "no"), "--tp", "2", *args)
        if done.code != code or says not in done.err:
            wrong.append((args, done))
    suite.group("refusals", len(cases), wrong)
    path = os.path.join(where, "policy.json")
    with open(path, "w", encoding="utf-8") as f:
        json.dump({"experts": "nvfp4", "*.self_attn.o_proj": "fp8-block"}, f)
    one = tool.run("plan", ckpt, "--tp", "2", "--json", "--quant", path)
    broken = os.path.join(where, "broken.json")
    with open(broken, "w", encoding="utf-8") as f:
        f.write('{"experts": "nvfp4",}')
    done = tool.run("plan", ckpt, "--tp", "2", "--quant", broken)
    suite.check(done.code == 2 and "a policy is one object" in done.err and "byte 20" in done.err,
                f"a policy file with an error is one in the command: {done.err}")
    two = tool.run("plan", ckpt, "--tp", "2", "--json", "--quant",
                   "experts=nvfp4,*.self_attn.o_proj=fp8-block")
    suite.check(one.code == 0 and one.out == two.out, "a policy from a file", one)


def main():
    options = parser(__doc__).parse_args()
    suite = Suite()
    tool = tool_of(options)
    with scratch() as where:
        ckpt = os.path.join(where, "ckpt")  # values that are weights: random bytes are not finite
        done = tool.run("synth", ckpt, "--preset", "tiny", "--quiet")
        suite.check(done.code == 0, "synth", done)
        for number, policy in enumerate(CASES):
            own = os.path.join(where, str(number))
            os.mkdir(own)
            check_case(suite, tool, ckpt, own, policy)
            if number in (0, 3, 5):
                own = os.path.join(where, f"m{number}")
                os.mkdir(own)
                check_modelopt(suite, tool, ckpt, own, policy)
        check_report(suite, tool, ckpt, where)
        check_refusals(suite, tool, ckpt, where)
    return suite.finish()


if __name__ == "__main__":
    sys.exit(main())
