# A low soft limit of open files is raised: 112 parts load although only 64 files were allowed.
"$K3" synth ckpt --preset tiny --quiet >/dev/null
"$K3" convert ckpt --out set --tp 16 --quiet >/dev/null
ulimit -S -n 64
"$K3" load set --io pread --json --quiet | grep -o '"verified_bytes":[0-9]*'
echo "exit ${PIPESTATUS[0]}"
