# Each wrong command line is told in one sentence and exits 2, before anything is read or written.
try() {
    "$K3" "$@"
    local rc=$?
    [ $rc = 2 ] || echo "exit $rc from: $*"
}
try
try pln /ckpt
try frobnicate
try quantize /ckpt
try --tp 8 plan /ckpt
try plan
try plan /ckpt /other
try plan ''
try plan /ckpt --tpp 8
try plan /ckpt --budjet=1GiB
try plan /ckpt --nothing-like-it
try plan /ckpt --ep 8
try load d --uring
try plan /ckpt --seed 1
try plan /ckpt -x
try plan /ckpt --tp
try plan /ckpt --tp=
try plan /ckpt --tp --dp 2
try plan /ckpt --tp 0
try plan /ckpt --tp 4097
try plan /ckpt --tp 08x
try plan /ckpt --tp -8
try plan /ckpt --tp 99999999999999999999
try plan /ckpt --tp 4096 --dp 2
try plan /ckpt --tp 8 --tp 4
try plan /ckpt --experts both
try plan /ckpt --pp-layers 23,,23
try plan /ckpt --pp-layers 1-3
try plan /ckpt --quant
try plan /ckpt --quant nvpf4
try plan /ckpt --quant expert=nvfp4
try plan /ckpt --quant norm=nvfp4
try plan /ckpt --quant experts=nvpf4
try plan /ckpt --quant experts=nvfp4,experts=nvfp4
try plan /ckpt --quant nvfp4,oow=snap,oow=snap
try plan /ckpt --quant nvfp4,oow=snap --oow requant
try convert /ckpt --out d --quant nvfp4,oow=snap --oow fail
try convert /ckpt --out d --quant nvfp4,config=modelopt --config compressed-tensors
try plan /ckpt --oow snap --oow snap
try plan /ckpt --rate fast
try plan /ckpt --json=yes
try convert /ckpt
try convert /ckpt --out ''
try seal
try seal extra --out d
try export d
try load d --ranks 3-1
try load d --ranks 0,2-4,3
try load d --ranks 0,
try load d --ranks 1,0-2
try load d --ranks 0-4096
try load d --ranks 0-4294967295
try load d --ranks 5000-5001
try load d --ranks 0-99999999999999999999
try load d --ranks 0,18446744073709551616
try load d --ranks 99999999999999999999-3
try load d --ranks 18446744073709551615
try load d --ranks x
try load d --staging 1
try load d --staging 5GiB
try load d --staging 64M
try load d --max-bandwidth 0
try load d --max-bandwidth fast
try convert /ckpt --out d --memory 512KiB
try convert /ckpt --out d --memory much
try convert /ckpt --out d --jobs 0
try convert /ckpt --out d --jobs 1025
try bench d --device cuda:
try bench d --device cuda:0,0
try bench d --device cuda:0,,1
try bench d --device cuda:3-1
try bench d --device cuda:256
try bench d --device cuda:1,0-4294967296
try bench d --device hip:0-
try bench d --device hip:2,0-x
try bench d --device hip:0-1-2
try bench d --device gpu:0
try load d --io telepathy
try load d --device cuda:0
try synth d
try synth d --preset huge
try synth d --preset tiny --seed 18446744073709551616
try help nothing
try man nothing
try completion tcsh
test -z "$(ls -A)" || echo "files were left here"
