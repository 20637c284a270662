#!/usr/bin/env python3
"""test_bad_checkpoints.py: wrong inputs, one by one, as plan, convert and verify must answer them.

Purpose   each case is a fresh small checkpoint with one thing wrong (one case: eight). The answer
          is an exit code and sentences that name every object that is wrong, all at once; convert
          has then written nothing. Other groups: directories that --out must refuse or accept,
          layouts that do not fit, a checkpoint that changes while it is converted.
Usage     test_bad_checkpoints.py [NAME…]      only the cases whose name holds one of these words
Output    TAP lines, then `N passed, N failed`; exit 0 only when none failed.
"""

import json
import os
import shutil
import sys

from k3test import (MANIFEST, PARTIAL, Suite, difference, files_of, go_on, mini_ckpt, parser,
                    scratch, tool_of, wait_stopped)

INDEX, CONFIG = "model.safetensors.index.json", "config.json"
COMMANDS = ["plan", "convert", "verify"]
LAYER = "language_model.model.layers."
NORM = LAYER + "1.input_layernorm.weight"  # in file 2
CASES = []


def case(*wants, code=3, commands=None, codes=None):
    """A mutation: what the answer must say, its exit code (codes: by command)."""
    def add(function):
        CASES.append((function.__name__.replace("_", " "), function, wants,
                      {c: (codes or {}).get(c, code) for c in commands or COMMANDS}))
        return function
    return add


class Ckpt:
    """A checkpoint that is being spoiled."""

    def __init__(self, path):
        self.path = path

    def at(self, name):
        return os.path.join(self.path, name)

    def file(self, number):
        return f"model-{number:05d}-of-000008.safetensors"

    def load(self, number):
        """Header and data of a source file."""
        with open(self.at(self.file(number)), "rb") as f:
            size = int.from_bytes(f.read(8), "little")
            return json.loads(f.read(size)), f.read()

    def store(self, number, header, data, name=None):
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        with open(self.at(name or self.file(number)), "wb") as f:
            f.write(len(text).to_bytes(8, "little") + text + data)

    def add(self, number, tensor, dtype, shape, size):
        """One more tensor at the end of a file."""
        header, data = self.load(number)
        header[tensor] = {"dtype": dtype, "shape": shape,
                          "data_offsets": [len(data), len(data) + size]}
        self.store(number, header, data + b"\x11" * size)

    def drop(self, number, tensor):
        """Take a tensor and its bytes out of a file."""
        header, data = self.load(number)
        begin, end = header.pop(tensor)["data_offsets"]
        for entry in header.values():
            if entry["data_offsets"][0] >= end:
                entry["data_offsets"] = [o - (end - begin) for o in entry["data_offsets"]]
        self.store(number, header, data[:begin] + data[end:])

    def edit_header(self, number, tensor, **members):
        header, data = self.load(number)
        header[tensor].update(members)
        self.store(number, header, data)

    def index(self, change):
        with open(self.at(INDEX), encoding="utf-8") as f:
            index = json.load(f)
        change(index)
        self.text(INDEX, json.dumps(index))

    def name_in_index(self, tensor, file):
        self.index(lambda index: index["weight_map"].__setitem__(tensor, file))

    def unname(self, tensor):
        self.index(lambda index: index["weight_map"].pop(tensor))

    def config(self, change):
        with open(self.at(CONFIG), encoding="utf-8") as f:
            config = json.load(f)
        change(config)
        self.text(CONFIG, json.dumps(config))

    def text(self, name, text):
        with open(self.at(name), "w", encoding="utf-8") as f:
            f.write(text)

    def read_text(self, name):
        with open(self.at(name), encoding="utf-8") as f:
            return f.read()

    def patch(self, name, offset, data):
        with open(self.at(name), "r+b") as f:
            f.seek(offset)
            f.write(data)


# ---- tensors and index ----


@case("model-00003-of-000008.safetensors", "not there")
def file_named_by_the_index_is_missing(c):
    os.unlink(c.at(c.file(3)))


@case(NORM, "is here, the index says it is in model-00003")
def tensor_in_another_file_than_the_index_says(c):
    c.name_in_index(NORM, c.file(3))


@case(NORM, "is not named by the index")
def stale_tensor(c):
    c.unname(NORM)


@case(NORM, "is here and in model-00002")
def duplicate_tensor_in_two_files(c):
    c.add(3, NORM, "BF16", [64], 128)


@case("unknown tensor " + LAYER + "1.extra.weight")
def unknown_tensor(c):
    c.add(2, LAYER + "1.extra.weight", "BF16", [4], 8)
    c.name_in_index(LAYER + "1.extra.weight", c.file(2))


@case("unknown tensor " + LAYER + "7.input_layernorm.weight")
def tensor_of_a_layer_beyond_the_last(c):
    c.add(2, LAYER + "7.input_layernorm.weight", "BF16", [64], 128)
    c.name_in_index(LAYER + "7.input_layernorm.weight", c.file(2))


@case("unknown tensor " + LAYER + "01.input_layernorm.weight")
def layer_number_with_a_zero_in_front(c):
    c.add(2, LAYER + "01.input_layernorm.weight", "BF16", [64], 128)
    c.name_in_index(LAYER + "01.input_layernorm.weight", c.file(2))


@case(NORM, "is missing")
def missing_tensor(c):
    c.drop(2, NORM)
    c.unname(NORM)


@case(NORM, "is missing: the index says it is there")
def tensor_of_the_index_is_not_in_its_file(c):
    c.drop(2, NORM)


@case(NORM, "has dtype F16")
def wrong_dtype(c):
    c.edit_header(2, NORM, dtype="F16")


@case(NORM, "has shape [32,2]", "want [64]")
def wrong_shape(c):
    c.edit_header(2, NORM, shape=[32, 2])


@case("A_log has shape [8]")
def a_log_shorter_than_its_heads(c):
    c.edit_header(1, LAYER + "0.self_attn.A_log", shape=[8])
    header, data = c.load(1)
    entry = header[LAYER + "0.self_attn.A_log"]
    begin, end = entry["data_offsets"]
    cut = end - begin - 32
    for other in header.values():
        if other["data_offsets"][0] >= end:
            other["data_offsets"] = [o - cut for o in other["data_offsets"]]
    entry["data_offsets"] = [begin, begin + 32]
    c.store(1, header, data[:begin + 32] + data[end:])
    c.index(lambda i: i["metadata"].__setitem__("total_size", i["metadata"]["total_size"] - cut))


@case("A_log", "must be zero", commands=["convert"])
def a_log_tail_is_not_zero(c):
    header, _ = c.load(1)
    end = header[LAYER + "0.self_attn.A_log"]["data_offsets"][1]
    with open(c.at(c.file(1)), "rb") as f:
        first = 8 + int.from_bytes(f.read(8), "little")
    c.patch(c.file(1), first + end - 1, b"\x01")


@case("total_size 12345")
def index_total_size_is_wrong(c):
    c.index(lambda i: i["metadata"].__setitem__("total_size", 12345))


@case(INDEX, '"../model-00002-of-000008.safetensors" is not a plain file name')
def index_names_a_file_above(c):
    c.name_in_index(NORM, "../model-00002-of-000008.safetensors")


@case(INDEX, '"/etc/passwd" is not a plain file name')
def index_names_an_absolute_path(c):
    c.name_in_index(NORM, "/etc/passwd")


@case(INDEX, "is not a plain file name")
def index_names_a_path_inside(c):
    c.name_in_index(NORM, "docs/../" + c.file(2))


@case(INDEX)
def index_names_a_file_with_nul(c):
    c.name_in_index(NORM, c.file(2) + "\0x")


@case(INDEX)
def index_names_a_windows_path(c):
    c.name_in_index(NORM, "C:\\" + c.file(2))


@case(INDEX, "for the second time")
def index_with_a_duplicate_key(c):
    text = c.read_text(INDEX).replace('"weight_map": {',
                                      '"weight_map": {"' + NORM + f'": "{c.file(2)}",', 1)
    c.text(INDEX, text)


@case(INDEX)
def index_nested_deeply(c):
    c.text(INDEX, '{"metadata":' + "[" * 100000 + "]" * 100000 + ',"weight_map":{}}')


@case(INDEX)
def index_is_cut_off(c):
    c.text(INDEX, c.read_text(INDEX)[:-40])


@case(INDEX, "write it with less white space")
def index_is_mostly_white_space(c):
    c.text(INDEX, c.read_text(INDEX) + " " * (17 << 20))


@case(INDEX)
def index_is_empty(c):
    c.text(INDEX, "")


@case(INDEX)
def index_is_not_utf8(c):
    with open(c.at(INDEX), "ab") as f:
        f.write(b"\xc0\xaf")


@case(INDEX, "missing")
def index_is_missing(c):
    os.unlink(c.at(INDEX))


@case(INDEX)
def index_is_a_directory(c):
    os.unlink(c.at(INDEX))
    os.mkdir(c.at(INDEX))


# ---- config ----


@case(CONFIG)
def config_is_missing(c):
    os.unlink(c.at(CONFIG))


@case("vision_config")
def config_without_vision_config(c):
    c.config(lambda x: x.pop("vision_config"))


@case("NoSuchModel", code=4, codes={"verify": 0})
def architecture_is_unknown(c):
    c.config(lambda x: x.__setitem__("architectures", ["NoSuchModel"]))


@case("quantization_config")
def quantization_config_at_the_root(c):
    c.config(lambda x: x.__setitem__("quantization_config",
                                     x["text_config"].pop("quantization_config")))


@case("layer 3 (1-based)", "twice")
def layer_lists_overlap(c):
    c.config(lambda x: x["text_config"]["linear_attn_config"]["full_attn_layers"].append(3))


@case("layer 2 (1-based)", "neither")
def layer_lists_leave_one_out(c):
    c.config(lambda x: x["text_config"]["linear_attn_config"]["kda_layers"].remove(2))


@case("full_attn_layers", "1..5")
def layer_list_names_a_layer_that_is_not_there(c):
    c.config(lambda x: x["text_config"]["linear_attn_config"]["full_attn_layers"].append(6))


@case("moe_layer_freq")
def moe_layer_freq_is_2(c):
    c.config(lambda x: x["text_config"].__setitem__("moe_layer_freq", 2))


@case("hidden_size")
def hidden_size_is_a_string(c):
    c.config(lambda x: x["text_config"].__setitem__("hidden_size", "64"))


@case("num_experts")
def num_experts_is_huge(c):
    c.config(lambda x: x["text_config"].__setitem__("num_experts", 10**18))


@case("input_layernorm.weight has shape [64]", "want [128]")
def hidden_size_is_another(c):
    c.config(lambda x: x["text_config"].__setitem__("hidden_size", 128))


@case(CONFIG)
def config_is_not_json(c):
    c.text(CONFIG, "hello")


# ---- files ----


@case("model-00004-of-000008.safetensors")
def file_is_truncated(c):
    os.truncate(c.at(c.file(4)), os.path.getsize(c.at(c.file(4))) - 1)


@case("model-00004-of-000008.safetensors")
def file_is_truncated_in_its_header(c):
    os.truncate(c.at(c.file(4)), 100)


@case("model-00004-of-000008.safetensors")
def file_is_empty(c):
    os.truncate(c.at(c.file(4)), 0)


@case("model-00004-of-000008.safetensors")
def file_has_trailing_bytes(c):
    with open(c.at(c.file(4)), "ab") as f:
        f.write(b"PK\x05\x06")


@case("model-00004-of-000008.safetensors", "zero")
def file_begins_with_zeros(c):
    c.patch(c.file(4), 0, bytes(4096))


@case("model-00004-of-000008.safetensors", "LFS")
def file_is_an_lfs_pointer(c):
    c.text(c.file(4), "version https://git-lfs.github.com/spec/v1\n"
                      f"oid sha256:{'ab' * 32}\nsize 16777216\n")


@case("model-00004-of-000008.safetensors", "HTML")
def file_is_an_html_page(c):
    c.text(c.file(4), "<!DOCTYPE html><html><body>404</body></html>")


@case("extra.safetensors")
def safetensors_that_the_index_does_not_name(c):
    c.store(0, {"foo": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}}, b"abcd",
            "extra.safetensors")


@case("consolidated.safetensors")
def consolidated_copy_beside(c):
    header, data = c.load(7)
    c.store(0, header, data, "consolidated.safetensors")


@case("model-00004-of-000008.safetensors")
def link_that_leads_to_itself(c):
    os.unlink(c.at(c.file(4)))
    os.symlink(c.file(4), c.at(c.file(4)))


@case("model-00004-of-000008.safetensors")
def link_that_leads_nowhere(c):
    os.unlink(c.at(c.file(4)))
    os.symlink("../blobs/gone", c.at(c.file(4)))


@case("tiktoken.model", "nowhere")
def copied_file_is_a_link_that_leads_nowhere(c):
    os.unlink(c.at("docs/tiktoken.model"))


@case("fifo.safetensors", "not a regular file")
def fifo_named_like_a_shard(c):
    os.mkfifo(c.at("fifo.safetensors"))


@case("model-00004-of-000008.safetensors", "not a regular file")
def fifo_in_place_of_a_shard(c):
    os.unlink(c.at(c.file(4)))
    os.mkfifo(c.at(c.file(4)))


@case("dir.safetensors", "not a regular file")
def directory_named_like_a_shard(c):
    os.mkdir(c.at("dir.safetensors"))


@case("model-00004-of-000008.safetensors", codes={c: None for c in COMMANDS})
def file_that_may_not_be_read(c):
    os.chmod(c.at(c.file(4)), 0)


@case("k3-shards.json")
def a_shard_set_is_mixed_in(c):
    c.text("k3-shards.json", "{}")


@case("name")
def copied_file_with_a_quote_in_its_name(c):
    c.text('to"ken.json', "{}")


@case("model-00003-of-000008.safetensors", "not there",  # the file
      NORM + " has dtype F16",
      LAYER + "3.block_sparse_moe.experts.7.w2.weight_scale is missing",
      "unknown tensor " + LAYER + "4.bad.weight",
      LAYER + "0.mlp.up_proj.weight is here, the index says it is in model-00007",
      "mm_projector.post_norm.weight is not named by the index",
      "extra.safetensors", "gone.model")
def eight_things_at_once(c):
    os.unlink(c.at(c.file(3)))
    c.edit_header(2, NORM, dtype="F16")
    tensor = LAYER + "3.block_sparse_moe.experts.7.w2.weight_scale"
    c.drop(4, tensor)
    c.unname(tensor)
    c.add(5, LAYER + "4.bad.weight", "BF16", [4], 8)
    c.name_in_index(LAYER + "4.bad.weight", c.file(5))
    c.name_in_index(LAYER + "0.mlp.up_proj.weight", c.file(7))
    c.unname("mm_projector.post_norm.weight")
    c.text("extra.safetensors", "<html>")
    os.symlink("nowhere", c.at("gone.model"))


# ---- accepted ----


@case(code=0)
def shards_are_links_as_in_a_hub_cache(c):
    blobs = c.path + "-blobs"
    os.mkdir(blobs)
    for number in range(1, 9):
        shutil.move(c.at(c.file(number)), os.path.join(blobs, str(number)))
        os.symlink(os.path.join(blobs, str(number)), c.at(c.file(number)))


@case(code=0)
def nothing_is_wrong(_c):
    pass


@case(code=0)
def a_log_stored_longer(c):
    """Its stored length is not derived: 40 entries of 16 heads."""
    header, data = c.load(1)
    tensor = LAYER + "0.self_attn.A_log"
    begin, end = header[tensor]["data_offsets"]
    more = 160 - (end - begin)
    for other in header.values():
        if other["data_offsets"][0] >= end:
            other["data_offsets"] = [o + more for o in other["data_offsets"]]
    header[tensor] = {"dtype": "F32", "shape": [40], "data_offsets": [begin, end + more]}
    c.store(1, header, data[:end] + bytes(more) + data[end:])
    c.index(lambda i: i["metadata"].__setitem__("total_size", i["metadata"]["total_size"] + more))


def run_case(tool, suite, room, entry):
    name, mutate, wants, codes = entry
    ckpt = Ckpt(mini_ckpt(os.path.join(room, "ckpt")))
    if mutate is file_that_may_not_be_read:
        if os.geteuid() == 0:
            suite.skip(name, "root may read everything")
            return
        codes = dict.fromkeys(COMMANDS, 3)
    mutate(ckpt)
    for command, code in codes.items():
        out = os.path.join(room, "out")
        arguments = {"plan": ["plan", ckpt.path, "--tp", "2"], "verify": ["verify", ckpt.path],
                     "convert": ["convert", ckpt.path, "--out", out, "--tp", "2", "--quiet"]}
        result = tool.run(*arguments[command])
        text = result.out + result.err
        missing = [want for want in wants if want not in text] if code else []
        # None: this command may take it, with structural checks; only its exit must be sane.
        good = result.code in (0, 1, 3, 4) if code is None else result.code == code and not missing
        left = os.path.exists(os.path.join(out, MANIFEST)) if code else False
        early = command == "convert" and code and wants and "must be zero" not in wants[-1]
        if early and os.path.exists(out):
            left = True
        suite.check(good and not left, f"{command}: {name}",
                    f"wanted exit {code}, not said: {missing}, OUT written: {left}\n{result}")
        shutil.rmtree(out, ignore_errors=True)
    for path in (ckpt.path, ckpt.path + "-blobs"):
        shutil.rmtree(path, ignore_errors=True)


# ---- OUT and layout ----


def convert(tool, ckpt, out, *more, shim=None):
    return tool.run("convert", ckpt, "--out", out, "--quiet", *more, shim=shim)


def check_outs(tool, suite, room):
    """What --out may hold."""
    a, b = mini_ckpt(os.path.join(room, "a")), mini_ckpt(os.path.join(room, "b"), a_log=32)
    out, two = os.path.join(room, "out"), ["--tp", "2"]

    def refused(name, result, word="", code=4):
        suite.check(result.code == code and word in result.err, f"{name}: exit {code}", result)

    before = files_of(a)
    refused("OUT is the checkpoint", convert(tool, a, a, *two), "checkpoint")
    os.symlink(a, os.path.join(room, "link"))
    refused("OUT is a link to the checkpoint", convert(tool, a, os.path.join(room, "link"), *two))
    suite.check(not difference(files_of(a), before), "the checkpoint is as it was")
    refused("one OUT twice", convert(tool, a, out, *two, "--out", out + "/."), "same", code=2)
    shutil.rmtree(out, ignore_errors=True)
    os.mkdir(out)
    for name in ("foreign.safetensors", "model-rank-9-part-0.safetensors", "model-rank-9.units"):
        path = os.path.join(out, name)
        with open(path, "wb") as f:
            f.write(b"x")
        refused(f"OUT holds {name}", convert(tool, a, out, *two), name)
        os.unlink(path)
    refused("OUT below a directory that is not there",
            convert(tool, a, os.path.join(room, "no", "such"), *two), code=1)
    with open(os.path.join(room, "file"), "wb"):
        pass
    refused("OUT is a file", convert(tool, a, os.path.join(room, "file"), *two), code=1)
    suite.check(not files_of(out), "refusals left nothing in OUT", files_of(out).keys())

    convert(tool, a, out, *two)
    golden = files_of(out)
    shutil.copytree(out, out + "-copy")
    refused("OUT holds a finished set of another checkpoint", convert(tool, b, out, *two),
            "finished set")
    refused("OUT holds a finished set of another layout", convert(tool, a, out, "--tp", "4"),
            "finished set")
    suite.check(not difference(files_of(out), golden), "a refused set is as it was")
    os.mkdir(os.path.join(out, PARTIAL))
    with open(os.path.join(out, PARTIAL, "model-rank-0-part-0.safetensors.0"), "wb"):
        pass
    result = convert(tool, a, out, *two)
    suite.check(result.code == 0 and "finished" in result.out, "the same plan again: finished",
                result)
    suite.check(not difference(files_of(out), golden), "left-overs of a finished set are removed",
                difference(files_of(out), golden))
    result = convert(tool, b, out, *two, "--force")
    fresh = os.path.join(room, "fresh")
    convert(tool, b, fresh, *two)
    suite.check(result.code == 0 and not difference(files_of(out), files_of(fresh)),
                "--force replaces it", difference(files_of(out), files_of(fresh)))
    result = convert(tool, a, out, *two, "--force")
    suite.check(result.code == 0 and not difference(files_of(out), golden), "--force back again")

    shutil.rmtree(fresh)
    convert(tool, b, fresh, *two, shim={"KILL_AT": 700})
    before = files_of(fresh)
    refused("OUT holds an unfinished conversion of another plan", convert(tool, a, fresh, *two),
            "unfinished")
    refused("... of another layout", convert(tool, b, fresh, "--tp", "1"), "unfinished")
    suite.check(not difference(files_of(fresh), before), "its work is as it was")
    result = convert(tool, a, fresh, *two, "--force")
    suite.check(result.code == 0 and not difference(files_of(fresh), golden),
                "--force drops the unfinished one", result)
    check_shared(tool, suite, room, a, b)
    check_same_headers(tool, suite, room, a)


def check_same_headers(tool, suite, room, a):
    """A checkpoint of the same headers and other bytes, as another revision without a name is."""
    out, other = os.path.join(room, "mix"), mini_ckpt(os.path.join(room, "a2"), seed=2)
    convert(tool, a, out, "--tp", "2", "--jobs", "1", shim={"KILL_AT": 700})
    result = convert(tool, other, out, "--tp", "2")
    suite.check(result.code == 4 and "were made from" in result.err,
                "an unfinished conversion is not resumed from other bytes", result)
    shutil.rmtree(out)
    convert(tool, a, out, "--tp", "2", "--revision", "one", shim={"KILL_AT": 700})
    result = convert(tool, other, out, "--tp", "2", "--revision", "two")
    suite.check(result.code == 4, "... nor from another named revision", result)


def check_shared(tool, suite, room, a, b):
    """Two sets must not meet in a second directory."""
    dirs = [os.path.join(room, name) for name in ("d0", "d1", "d2")]
    convert(tool, a, dirs[0], "--out", dirs[1], "--tp", "2")
    before = files_of(dirs[1])
    result = convert(tool, b, dirs[2], "--out", dirs[1], "--tp", "2")
    suite.check(result.code == 4 and not difference(files_of(dirs[1]), before),
                "the second --out holds parts of another set: exit 4", result)
    result = convert(tool, b, dirs[2], "--out", dirs[0], "--tp", "2")
    suite.check(result.code == 4, "the second --out holds a whole set: exit 4", result)
    result = convert(tool, a, dirs[1], "--out", dirs[0], "--tp", "2")
    suite.check(result.code == 4, "the directories in another order: exit 4", result)
    result = convert(tool, a, dirs[0], "--out", dirs[1], "--tp", "2")
    suite.check(result.code == 0 and "finished" in result.out, "the same order: finished", result)


def check_layouts(tool, suite, room):
    ckpt = mini_ckpt(os.path.join(room, "c"))
    for layout, words in ((["--tp", "6"], ["1, 2, 4, 8"]), (["--tp", "3"], ["1, 2, 4, 8"]),
                          (["--tp", "2", "--budget", "1MiB"], ["budget"]),
                          (["--tp", "2", "--pp", "9"], ["5"]),
                          (["--tp", "32"], ["16"])):
        for command in ("plan", "convert"):
            out = os.path.join(room, "lout")
            more = ["--out", out] if command == "convert" else []
            result = tool.run(command, ckpt, *layout, *more)
            said = all(word in result.err + result.out for word in words)
            suite.check(result.code == 4 and said and not os.path.exists(out),
                        f"{command} {' '.join(layout)}: exit 4 with what would work", result)


# ---- a checkpoint that changes ----

CHANGES = [
    ("bytes appended", lambda c: open(c.at(c.file(5)), "ab").write(b"x")),
    ("cut off", lambda c: os.truncate(c.at(c.file(5)), 1000)),
    ("touched", lambda c: os.utime(c.at(c.file(5)), (1, 1))),
    ("a byte changed in place", lambda c: c.patch(c.file(5), 9000, b"\0")),
    ("removed", lambda c: os.unlink(c.at(c.file(5)))),
    ("replaced by a copy", lambda c: (shutil.copy(c.at(c.file(5)), c.at("new")),
                                      os.replace(c.at("new"), c.at(c.file(5))))),
    ("replaced by a link loop", lambda c: (os.unlink(c.at(c.file(5))),
                                           os.symlink(c.file(5), c.at(c.file(5))))),
]


def check_changes(tool, suite, room):
    """One conversion stands still in its work; a source that is still to come is changed."""
    out, golden_out = os.path.join(room, "ch-out"), os.path.join(room, "ch-golden")
    convert(tool, mini_ckpt(os.path.join(room, "ch-0")), golden_out, "--tp", "2")
    golden = files_of(golden_out)
    for number, (name, change) in enumerate(CHANGES, 1):
        ckpt = Ckpt(mini_ckpt(os.path.join(room, f"ch-{number}")))
        shutil.copytree(ckpt.path, ckpt.path + "-kept")  # times are kept too
        child = tool.start("convert", ckpt.path, "--out", out, "--tp", "2", "--quiet",
                           "--jobs", "1", shim={"KILL_AT": 200, "KILL_SIGNAL": "STOP"})
        if not wait_stopped(child):
            suite.check(False, f"source {name}", go_on(child))
            continue
        change(ckpt)
        result = go_on(child)
        code_good = result.code == 3 or (name == "removed" and result.code == 1) or (
            "loop" in name and result.code == 1)
        suite.check(code_good and ckpt.file(5) in result.err
                    and not os.path.exists(os.path.join(out, MANIFEST)),
                    f"source {name} while it is converted: refused, named", result)
        # The checkpoint as it was, at the same place: what was finished is used again.
        shutil.rmtree(ckpt.path)
        os.rename(ckpt.path + "-kept", ckpt.path)
        result = convert(tool, ckpt.path, out, "--tp", "2")
        suite.check(result.code == 0 and not difference(files_of(out), golden),
                    f"source {name}, then restored: the golden set", result)
        shutil.rmtree(out, ignore_errors=True)
        shutil.rmtree(ckpt.path, ignore_errors=True)


def main():
    options = parser("wrong checkpoints and what is said of them")
    options.add_argument("words", nargs="*", help="only cases whose name holds one of these")
    options = options.parse_args()
    tool, suite = tool_of(options), Suite()
    with scratch() as room:
        for entry in CASES:
            if not options.words or any(word in entry[0] for word in options.words):
                run_case(tool, suite, room, entry)
        if not options.words:
            check_outs(tool, suite, room)
            check_layouts(tool, suite, room)
            check_changes(tool, suite, room)
    return suite.finish()


if __name__ == "__main__":
    sys.exit(main())
