#!/usr/bin/env python3
"""mini_ckpt.py: writes a small checkpoint with the structure of Kimi K3 and random bytes.

Purpose   A source of checkpoints for tests that must not depend on `k3-shard synth`: same tensor
          names, dtypes, file order and header form as the published checkpoint, but tiny
          dimensions.
Content   5 layers: KDA+dense, KDA+MoE, KDA+MoE, MLA+MoE, MLA+MoE; one file per layer, then
          (embeddings, lm_head, final norms), (projector), (vision tower); a config, an index, some
          files to be copied, and some that must not be (a hidden file, a directory).
Traps     A_log is stored longer than there are heads (zero tail); experts lie in string order; data
          follow the header wherever it ends (8-byte aligned only); the layer lists are 1-based and
          the last layer breaks their rule; one copied file is a symbolic link, one is empty.
Finite    --finite: weights that casts take, since random bytes hold NaN: BF16 from 2^-15 to 2, MXFP4
          scales within every window of an exact cast, but for groups of zeros far outside of it.
Needs     Python 3.11, nothing else. The same seed gives the same bytes.

Usage     mini_ckpt.py DIR [--seed N] [--a-log N] [--finite]
"""

import argparse
import json
import os
import random

DTYPE_BYTES = {"F32": 4, "BF16": 2, "U8": 1}
DTYPE_ORDER = {"F32": 0, "BF16": 1, "U8": 2}  # the order in which the published files hold them

LAYERS = 5
FULL_ATTN = [4, 5]  # 1-based
KDA = [1, 2, 3]
H, V, HEADS, KD, CONV = 64, 64, 16, 8, 4
DI, MI, LAT, EXPERTS, SHARED = 96, 512, 32, 16, 2
QL, KVL, NOPE, ROPE, VD = 24, 16, 8, 4, 8
VH, VI, VQ, VB, PS, PH, PW = 16, 32, 24, 2, 2, 4, 6


def config():
    """The members that shape the tensors, and a few around them as the published file has."""
    return {
        "architectures": ["KimiK3ForConditionalGeneration"],
        "dtype": "bfloat16",
        "model_type": "kimi_k3",
        "tie_word_embeddings": False,
        "text_config": {
            "architectures": ["KimiLinearForCausalLM"],
            "model_type": "kimi_linear",
            "dtype": "bfloat16",
            "vocab_size": V,
            "tie_word_embeddings": False,
            "use_cache": True,
            "hidden_size": H,
            "num_hidden_layers": LAYERS,
            "intermediate_size": DI,
            "initializer_range": 0.02,
            "rms_norm_eps": 1e-05,
            "hidden_act": "situ",
            "attn_res_block_size": 12,
            "num_attention_heads": HEADS,
            "num_key_value_heads": HEADS,
            "q_lora_rank": QL,
            "kv_lora_rank": KVL,
            "qk_nope_head_dim": NOPE,
            "qk_rope_head_dim": ROPE,
            "v_head_dim": VD,
            "mla_use_nope": True,
            "mla_use_output_gate": True,
            "linear_attn_config": {
                "full_attn_layers": FULL_ATTN,
                "kda_layers": KDA,
                "head_dim": KD,
                "num_heads": HEADS,
                "short_conv_kernel_size": CONV,
                "use_full_rank_gate": True,
                "gate_lower_bound": -5.0,
            },
            "first_k_dense_replace": 1,
            "moe_layer_freq": 1,
            "num_experts": EXPERTS,
            "num_experts_per_token": 4,
            "num_shared_experts": SHARED,
            "moe_intermediate_size": MI,
            "routed_expert_hidden_size": LAT,
            "latent_moe_use_norm": True,
            "num_nextn_predict_layers": 0,
            "quantization_config": {
                "quant_method": "compressed-tensors",
                "format": "mxfp4-pack-quantized",
                "quantization_status": "compressed",
                "config_groups": {
                    "group_0": {
                        "format": "mxfp4-pack-quantized",
                        "targets": ["Linear"],
                        "input_activations": None,
                        "output_activations": None,
                        "weights": {
                            "num_bits": 4,
                            "type": "float",
                            "symmetric": True,
                            "strategy": "group",
                            "group_size": 32,
                            "dynamic": False,
                            "observer": "minmax",
                            "scale_dtype": "torch.uint8",
                        },
                    }
                },
                "ignore": [
                    "re:.*self_attn.*",
                    "re:.*shared_experts.*",
                    "re:.*mlp\\.(gate|up|gate_up|down)_proj.*",
                    "re:.*lm_head.*",
                    "re:.*vision_tower.*",
                    "re:.*mm_projector.*",
                ],
            },
        },
        "vision_config": {
            "patch_size": PS,
            "init_pos_emb_height": PH,
            "init_pos_emb_width": PW,
            "init_pos_emb_time": 4,
            "vt_hidden_size": VH,
            "vt_intermediate_size": VI,
            "qkv_hidden_size": VQ,
            "vt_num_attention_heads": 2,
            "vt_num_hidden_layers": VB,
            "merge_kernel_size": [2, 2],
            "mm_projector_type": "patchmergerv2",
            "mm_hidden_size": VH,
            "text_hidden_size": H,
        },
    }


def layer_tensors(layer, a_log):
    """(name, dtype, shape) of one decoder layer."""
    p = f"language_model.model.layers.{layer}."
    a, m = p + "self_attn.", p + "block_sparse_moe."
    proj = HEADS * KD
    yield p + "input_layernorm.weight", "BF16", [H]
    yield p + "post_attention_layernorm.weight", "BF16", [H]
    for half in ("self_attention", "mlp"):
        yield p + half + "_res_norm.weight", "BF16", [H]
        yield p + half + "_res_proj.weight", "BF16", [1, H]
    if layer + 1 in KDA:
        for x in "qkvg":
            yield a + x + "_proj.weight", "BF16", [proj, H]
        for x in "qkv":
            yield a + x + "_conv1d.weight", "F32", [proj, 1, CONV]
        yield a + "o_proj.weight", "BF16", [H, proj]
        yield a + "f_a_proj.weight", "BF16", [KD, H]
        yield a + "f_b_proj.weight", "BF16", [proj, KD]
        yield a + "b_proj.weight", "BF16", [HEADS, H]
        yield a + "A_log", "F32", [a_log]
        yield a + "dt_bias", "F32", [proj]
        yield a + "o_norm.weight", "F32", [KD]
    else:
        yield a + "q_a_proj.weight", "BF16", [QL, H]
        yield a + "q_a_layernorm.weight", "BF16", [QL]
        yield a + "q_b_proj.weight", "BF16", [HEADS * (NOPE + ROPE), QL]
        yield a + "kv_a_proj_with_mqa.weight", "BF16", [KVL + ROPE, H]
        yield a + "kv_a_layernorm.weight", "BF16", [KVL]
        yield a + "kv_b_proj.weight", "BF16", [HEADS * (NOPE + VD), KVL]
        yield a + "o_proj.weight", "BF16", [H, HEADS * VD]
        yield a + "g_proj.weight", "BF16", [HEADS * VD, H]
    if layer == 0:
        yield p + "mlp.gate_proj.weight", "BF16", [DI, H]
        yield p + "mlp.up_proj.weight", "BF16", [DI, H]
        yield p + "mlp.down_proj.weight", "BF16", [H, DI]
        return
    yield m + "gate.weight", "BF16", [EXPERTS, H]
    yield m + "gate.e_score_correction_bias", "F32", [EXPERTS]
    yield m + "shared_experts.gate_proj.weight", "BF16", [SHARED * MI, H]
    yield m + "shared_experts.up_proj.weight", "BF16", [SHARED * MI, H]
    yield m + "shared_experts.down_proj.weight", "BF16", [H, SHARED * MI]
    yield m + "routed_expert_down_proj.weight", "BF16", [LAT, H]
    yield m + "routed_expert_up_proj.weight", "BF16", [H, LAT]
    yield m + "routed_expert_norm.weight", "BF16", [LAT]
    for e in range(EXPERTS):
        for w, rows, cols in (("w1", MI, LAT), ("w2", LAT, MI), ("w3", MI, LAT)):
            yield f"{m}experts.{e}.{w}.weight_packed", "U8", [rows, cols // 2]
            yield f"{m}experts.{e}.{w}.weight_scale", "U8", [rows, cols // 32]


def top_tensors():
    yield "language_model.model.embed_tokens.weight", "BF16", [V, H]
    yield "language_model.lm_head.weight", "BF16", [V, H]
    yield "language_model.model.norm.weight", "BF16", [H]
    yield "language_model.model.output_attn_res_norm.weight", "BF16", [H]
    yield "language_model.model.output_attn_res_proj.weight", "BF16", [1, H]


def projector_tensors():
    mm = VH * 4
    yield "mm_projector.proj.0.weight", "BF16", [mm, mm]
    yield "mm_projector.proj.2.weight", "BF16", [H, mm]
    yield "mm_projector.post_norm.weight", "BF16", [H]


def vision_tensors():
    yield "vision_tower.patch_embed.proj.weight", "BF16", [VH, 3, PS, PS]
    yield "vision_tower.patch_embed.pos_emb.weight", "BF16", [PH, PW, VH]
    for b in range(VB):
        p = f"vision_tower.encoder.blocks.{b}."
        yield p + "norm0.weight", "BF16", [VH]
        yield p + "norm1.weight", "BF16", [VH]
        yield p + "wqkv.weight", "BF16", [3 * VQ, VH]
        yield p + "wo.weight", "BF16", [VH, VQ]
        yield p + "mlp.fc0.weight", "BF16", [VI, VH]
        yield p + "mlp.fc1.weight", "BF16", [VH, VI]
    yield "vision_tower.encoder.final_layernorm.weight", "BF16", [VH]


SCALE_LOW, SCALE_COUNT = 110, 14  # 2^-17 and up; within what fp8-block holds exactly
ZERO_GROUP_SCALES = (30, 200)  # of groups whose codes are all 0: further off than any window
ZERO_GROUP_EVERY = 41
GROUP_BYTES = 16  # 32 codes


def finite_data(rng, name, dtype, size):
    """Weights that are numbers."""
    data = bytearray(rng.randbytes(size))
    if dtype == "BF16":  # sign and 3 bits stay random, above the exponents of 2^-15 to 1
        data[1::2] = bytes(b & 0x87 | 0x38 for b in data[1::2])
    elif name.endswith(".weight_scale"):
        data = bytearray(SCALE_LOW + b % SCALE_COUNT for b in data)
        for group in range(0, size, ZERO_GROUP_EVERY):
            data[group] = ZERO_GROUP_SCALES[group % 2]
    elif name.endswith(".weight_packed"):
        for group in range(0, size // GROUP_BYTES, ZERO_GROUP_EVERY):
            data[group * GROUP_BYTES : (group + 1) * GROUP_BYTES] = bytes(GROUP_BYTES)
    return bytes(data)


def tensor_data(rng, name, dtype, size, finite):
    """Random bytes without zeros (a wrong pad is seen so); the A_log tail is zero."""
    if name.endswith(".A_log"):
        return rng.randbytes(HEADS * 4) + bytes(size - HEADS * 4)
    if finite and dtype != "F32":
        return finite_data(rng, name, dtype, size)
    return rng.randbytes(size).replace(b"\0", b"\x55")


def write_safetensors(path, tensors, rng, finite=False):
    """Writes one file as the reference library does; returns (names, bytes of data)."""
    tensors = sorted(tensors, key=lambda t: (DTYPE_ORDER[t[1]], t[0]))
    header, offset = {}, 0
    for name, dtype, shape in tensors:
        size = DTYPE_BYTES[dtype]
        for d in shape:
            size *= d
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        for name, entry in header.items():
            begin, end = entry["data_offsets"]
            f.write(tensor_data(rng, name, entry["dtype"], end - begin, finite))
    return list(header), offset


def write_checkpoint(directory, seed=1, a_log=24, finite=False):
    """Writes the whole checkpoint into `directory` (made if it is not there)."""
    if a_log < HEADS:
        raise ValueError(f"A_log holds at least {HEADS} entries")
    rng = random.Random(seed)
    os.makedirs(directory, exist_ok=True)
    files = [list(layer_tensors(i, a_log)) for i in range(LAYERS)]
    files += [list(top_tensors()), list(projector_tensors()), list(vision_tensors())]
    weight_map, total = {}, 0
    for n, tensors in enumerate(files, 1):
        name = f"model-{n:05d}-of-{len(files):06d}.safetensors"
        names, size = write_safetensors(os.path.join(directory, name), tensors, rng, finite)
        weight_map.update(dict.fromkeys(names, name))
        total += size

    def text(name, content):
        with open(os.path.join(directory, name), "w", encoding="utf-8") as f:
            f.write(content)

    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    text("model.safetensors.index.json", json.dumps(index, indent=2) + "\n")
    text("config.json", json.dumps(config(), indent=2) + "\n")
    text("generation_config.json", '{"max_length": 1048576}\n')
    text("tokenizer_config.json", json.dumps({"seed": seed}, indent=2) + "\n")
    text("EMPTY", "")
    text(".gitattributes", "hidden: not copied\n")
    os.makedirs(os.path.join(directory, "docs"), exist_ok=True)
    text("docs/not-copied.md", "below the top: not copied\n")
    with open(os.path.join(directory, "docs", "tiktoken.model"), "wb") as f:
        f.write(rng.randbytes(5000))
    link = os.path.join(directory, "tiktoken.model")
    if os.path.lexists(link):
        os.unlink(link)
    os.symlink("docs/tiktoken.model", link)


def main():
    parser = argparse.ArgumentParser(description="write a small K3-like checkpoint of random bytes")
    parser.add_argument("directory")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--a-log", type=int, default=24, help="stored entries of A_log (heads: 16)")
    parser.add_argument("--finite", action="store_true", help="weights that are numbers")
    args = parser.parse_args()
    write_checkpoint(args.directory, args.seed, args.a_log, args.finite)


if __name__ == "__main__":
    main()
