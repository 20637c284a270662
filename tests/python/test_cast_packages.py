"""test_cast_packages.py: what a cast set says, read by compressed-tensors itself.

Purpose   `convert --quant` writes packed experts and a config.json; here the package that engines use
          parses that configuration and gives the values back, and they are equal bit for bit to those
          that it reads out of the checkpoint's own MXFP4.
Usage     test_cast_packages.py CKPT SET...   (sets of one rank; torch, safetensors, compressed-tensors)
Output    `ok` and `FAIL` lines, then `N passed, N failed`; exit 1 when one failed.
"""

import glob
import json
import os
import re
import sys

import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationConfig
from safetensors import safe_open

EXPERT = re.compile(r"^(.*\.experts\.\d+\.w[123])\.(weight\w*)$")


def configuration(directory):
    with open(os.path.join(directory, "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    block = config.get("quantization_config") or config["text_config"]["quantization_config"]
    return QuantizationConfig.model_validate(block)


def expert_scheme(config):
    """The scheme of the experts, and the name of how they are packed: of the group that has one."""
    schemes = list(config.config_groups.values())
    named = [s for s in schemes if any("experts" in t for t in s.targets)] or schemes[:1]
    scheme = named[0]
    return scheme, scheme.format or config.format


def experts(directory):
    """Modules: name -> the tensors of one projection."""
    modules = {}
    for path in sorted(glob.glob(os.path.join(directory, "*.safetensors"))):
        with safe_open(path, "pt") as file:
            for name in file.keys():
                found = EXPERT.match(name)
                if found:
                    modules.setdefault(found[1], {})[found[2]] = file.get_tensor(name)
    return modules


def values(tensors, scheme, packing):
    compressor = BaseCompressor.get_value_from_registry(packing)
    return compressor.decompress(dict(tensors), scheme)["weight"].to(torch.float32)


def main():
    ckpt, sets = sys.argv[1], sys.argv[2:]
    scheme, packing = expert_scheme(configuration(ckpt))
    source = {name: values(t, scheme, packing) for name, t in experts(ckpt).items()}
    passed = failed = 0
    for directory in sets:
        scheme, packing = expert_scheme(configuration(directory))
        modules = experts(directory)
        wrong = sorted(set(source) ^ set(modules))
        for name in set(source) & set(modules):
            found = values(modules[name], scheme, packing)
            # -0 and 0 are the same value, and packages differ in the sign they give a zero.
            if not torch.equal(found + 0.0, source[name] + 0.0):
                wrong.append(name)
        good = source and not wrong
        passed, failed = passed + bool(good), failed + (not good)
        print(f"{'ok   ' if good else 'FAIL '} {directory}: {len(modules)} projections of experts by "
              f"{packing}" + ("" if good else f"; {len(wrong)} differ: {wrong[:3]}"))
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
