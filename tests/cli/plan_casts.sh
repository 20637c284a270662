# Plans and conversions with casts: what is said of them, and that what is said can be done.
"$K3" synth ckpt --preset tiny --quiet >/dev/null
tool() {
    echo "\$ $*"
    "$K3" "$@" 2>&1
    echo "exit $?"
}
next() {
    echo "\$ $*"
    "$K3" "$@" 2>&1 | grep -e ^next -e ^notice -e ^warning -e ^k3-shard
}
# the command that plan prints has every option that it needs
next plan ckpt --tp 2
next plan ckpt --tp 2 --quant fp8-attn --oow snap --config modelopt --budget 100GiB
next plan ckpt --tp 2 --experts ep --vision drop --quant nvfp4 --budget 100000001
next plan ckpt --tp 2 --quant nvfp4 --budget 1MiB
# what each policy with a name costs, that of the README ("Which --quant") among them
"$K3" plan ckpt --tp 2 | sed -n '/^--quant/,/^$/p'
# --oow without a cast that has a window
next plan ckpt --tp 1 --quant fp8-rest --oow snap
next plan ckpt --tp 1 --quant experts=int8-g32,oow=requant
next plan ckpt --tp 1 --quant experts=fp8-block --oow requant
# what engines read as BF16 only
next plan ckpt --tp 1 --quant 'router=fp8-block,embed=fp8-block,head=fp8-block'
next plan ckpt --tp 1 --quant fp8-rest
next plan ckpt --tp 1 --quant 'vision_tower.*=fp8-channel' --quiet
next plan ckpt --tp 1 --quant 'vision_tower.*=fp8-channel,*.layers.2.*=fp8-block'
next convert ckpt --out engines --tp 1 --quant projector=fp8-channel
# cuts that go through blocks of scales
for tp in 1 2 4; do "$K3" plan ckpt --tp $tp --quant fp8-rest | grep ^split; done
"$K3" plan ckpt --tp 4 --quant fp8-rest --json | grep -o '"split_then_quantized":[^]]*' | head -c 400
echo
# convert says the same as plan, also of a finished set
quant="--tp 4 --quant fp8-rest"
"$K3" plan ckpt $quant | grep ^split >planned
"$K3" convert ckpt $quant --out cuts --quiet | grep ^split | cmp - planned && echo "said when made"
"$K3" convert ckpt $quant --out cuts --quiet | grep ^split | cmp - planned && echo "said when found"
"$K3" plan ckpt $quant --json | grep -o '"split_then_quantized":[^]]*' >planned
"$K3" convert ckpt $quant --out cuts --json --quiet | grep -o '"split_then_quantized":[^]]*' |
    cmp - planned && echo "said in JSON"
"$K3" convert ckpt --tp 2 --out whole --quant bf16 --json --quiet | grep -o '"split_then_quantized":[^]]*.'
# a policy is called as it was asked for
"$K3" verify cuts --quiet | head -n 1
tool export cuts --to back --quiet
tool verify cuts --against ckpt --quiet | grep -e ^k3-shard -e ^exit
rm cuts/model-rank-0-part-0.safetensors
"$K3" verify cuts --quiet 2>/dev/null | grep ^next
# too large: policies that fit, layouts that do, sizes as they were given
next plan ckpt --tp 2 --quant fp8-block --budget 4MiB
next plan ckpt --tp 1 --quant bf16 --budget 4MB
next plan ckpt --tp 2 --budget 1TB
# policies that do nothing
for policy in experts=mxfp4 attention=bf16,head=verbatim '*.layers.2.*=verbatim'; do
    next plan ckpt --tp 2 --quant "$policy"
done
next convert ckpt --tp 2 --out idle --quant experts=mxfp4
next plan ckpt --tp 2 --quant verbatim
next plan ckpt --tp 2 --quant experts=mxfp4 --quiet
tool plan ckpt --tp 2 --quant experts=mxfp4 --config modelopt
tool convert ckpt --tp 2 --out d --quant experts=mxfp4 --device cuda:0
tool convert ckpt --tp 2 --out d --quant vision=fp8-block --vision drop
test -e d && echo "d was made"
tool plan ckpt --tp 2 --quant 'head=int4-g32,config=modelopt' --quiet
# a refused policy: what is offered works
tool convert ckpt --tp 2 --out mended --quant mxfp8 --quiet
offer=$("$K3" plan ckpt --tp 2 --quant mxfp8 --json --quiet 2>/dev/null | sed "s/.*--quant '//; s/'.*//")
"$K3" convert ckpt --tp 2 --out mended --quant "$offer" --quiet >/dev/null && echo "converted: $offer"
# a finished set says the same of its casts as the run that made it
"$K3" convert ckpt --tp 2 --out set --quant nvfp4 --json --quiet |
    grep -o '"casts".*"cast_report":"[^"]*"' >made
"$K3" convert ckpt --tp 2 --out set --quant nvfp4 --json --quiet |
    grep -o '"casts".*"cast_report":"[^"]*"' >found
cmp made found && test -s made && echo equal
"$K3" seal --out set --json | grep -o '"casts".*"cast_report":"[^"]*"' >found
cmp made found && echo equal
"$K3" seal --out set | sed -n 1,5p
"$K3" convert ckpt --tp 2 --out set --quant nvfp4 --json --quiet | grep -o '"was_finished":true'
"$K3" convert ckpt --tp 2 --out set --quant nvfp4 --quiet | tail -n 1
sed -i '3s/"sum_x2"/"sum_y2"/' set/k3-cast-report.json
tool convert ckpt --tp 2 --out set --quant nvfp4 --quiet
# what convert says of bytes agrees with plan and with the files
"$K3" convert ckpt --tp 2 --out plain --json --quiet | grep -o '"read_bytes.*"written_bytes":[0-9]*'
"$K3" plan ckpt --tp 2 | grep '^disk'
"$K3" convert ckpt --tp 2 --out four --quant nvfp4 | grep -e ^looked -e ^read | sed 's/ in [0-9.]* s/ in TIME/'
for set in plain:verbatim four:nvfp4; do
    python3 - "$K3" ${set%:*} ${set#*:} <<'END'
import glob, json, os, subprocess, sys
tool, folder, policy = sys.argv[1:]
def said(*args):
    return json.loads(subprocess.run((tool, *args, "--json", "--quiet"), stdout=-1).stdout)
plan = said("plan", "ckpt", "--tp", "2", "--quant", policy)
parts = sum(map(os.path.getsize, glob.glob(folder + "/*.safetensors")))
others = sum(map(os.path.getsize, glob.glob(folder + "/*"))) - parts
again = said("convert", "ckpt", "--tp", "2", "--quant", policy, "--out", folder, "--force")
pads = sum(rank["pad_bytes"] for rank in plan["ranks"])
late = ["k3-shards.json", "model-rank-0.units", "model-rank-1.units"]  # of the seal
late += ["k3-cast-report.json"] if policy != "verbatim" else []
late = sum(os.path.getsize(f"{folder}/{name}") for name in late)
print(policy, "parts", parts == plan["disk_bytes"], "written",
      again["written_bytes"] - (parts - pads + others - late))
END
done
# of a set with casts nothing leads back to the checkpoint
tool plan mended
# workers count their own items
for i in 0 1; do
    "$K3" convert ckpt --tp 2 --out shared --quant nvfp4 --worker $i --workers 4 --json --quiet |
        grep -o '"items":[0-9]*,"resumed_items":[0-9]*'
done
"$K3" convert ckpt --tp 2 --out shared --quant nvfp4 --worker 1 --workers 4 --json --quiet |
    grep -o '"items":[0-9]*,"resumed_items":[0-9]*'
# a policy is said as short as a command line has it, in --json in full
long=fp8-block,experts=nvfp4
"$K3" convert ckpt --tp 2 --out long --quant $long --quiet >/dev/null
"$K3" plan ckpt --tp 2 --quant $long | grep '^policy'
"$K3" inspect long | grep -i '^policy'
"$K3" load long | grep '^policy'
"$K3" verify long --quick | grep -o 'cast .*'
for args in "plan ckpt --tp 2 --quant $long" "inspect long" "load long"; do
    "$K3" $args --json --quiet | grep -o '"policy":"attention[^"]*"'
done
