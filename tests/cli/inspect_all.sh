# inspect: every kind of file and directory, one tensor, digests.
"$K3" synth ckpt --preset tiny --quiet >/dev/null
"$K3" convert ckpt --out set --tp 2 --quiet >/dev/null
run() {
    echo "\$ inspect $*"
    "$K3" inspect "$@" 2>&1 | sed -e 's/: errno 2$/: No such file or directory/' -e 's/k3-shard [0-9.]*$/k3-shard VERSION/'
    echo "exit ${PIPESTATUS[0]}"
}
run ckpt
run set
run set/k3-shards.json
run set/model-rank-1-part-6.safetensors
run set/model-rank-1.units
run set/source-headers.zst
run set --tensor layers.2.attn.A_log --stats
run set --tensor language_model.lm_head.weight --json
run ckpt --tensor language_model.lm_head.weight --stats
run ckpt --tensor nothing
# names that are nearly right: misspelled, of a view, the end of one, of a file alone
run ckpt --tensor language_model.model.layers.2.block_sparse_moe.experts.12.w3.wieght_packed
run set --tensor layers.1.experts.w31
run set --tensor self_attn.A_log
run set/model-rank-1-part-0.safetensors --tensor nothing
# a part was never downloaded
head -c 600000 set/model-rank-1-part-6.safetensors >model-rank-1-part-6.safetensors
run model-rank-1-part-6.safetensors
run model-rank-1-part-6.safetensors --tensor x
rm model-rank-1-part-6.safetensors
run set/model-rank-1.units --stats
run set/k3-shards.json --stats
run ckpt --stats --json
"$K3" convert ckpt --out cast --tp 2 --quant experts=nvfp4,attention=fp8-block,shared=int4-g32,dense=mxfp8 --quiet |
    sed -e 's/ in [0-9.]* s$/ in TIME/'
run cast --tensor language_model.model.layers.1.block_sparse_moe.experts.3.w1.weight_packed --stats
run cast --tensor layers.2.attn.qkvgfab --stats
# by the name that the source or the report has, where the cast gave it another
run cast --tensor language_model.model.layers.0.self_attn.o_proj.weight_packed
run cast --tensor language_model.model.layers.1.block_sparse_moe.shared_experts.up_proj.weight
run cast --tensor language_model.model.layers.1.nothing.weight
"$K3" inspect cast/model-rank-0-part-2.safetensors --stats | sed -n '/ in [0-9,]* tensors\{0,1\}$/,$p'
run set --digest
mkdir loose
cp ckpt/model-00001-of-000008.safetensors loose
run loose
printf '' >empty
head -c 5000 /dev/zero >zeros
for file in empty zeros set/README.md; do
    run $file --digest
    run $file
done
run nowhere
# files of a set that hold no tensors: its directory is meant
"$K3" synth "a set's" --preset tiny --quiet >/dev/null
"$K3" convert "a set's" --out beside --tp 2 --quiet >/dev/null
mv beside "in quotes'"
for file in k3-shards.json source-headers.zst model-rank-1.units; do
    "$K3" inspect "in quotes'/$file" --tensor language_model.model.norm.weight 2>&1
    echo "exit $?"
done
(cd "in quotes'" && "$K3" inspect k3-shards.json --tensor 'a b' 2>&1)
