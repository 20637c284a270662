# Files of a checkpoint whose names could meet ours; names that cannot be staged; other control bytes.
"$K3" synth ckpt --preset tiny --quiet >/dev/null
echo x >ckpt/item-0.record
"$K3" convert ckpt --out set --tp 1 --quiet >/dev/null
echo "convert: exit $?"
"$K3" verify set --against ckpt 2>/dev/null | tail -n 1
long=$(printf 'n%.0s' $(seq 239))
echo x >"ckpt/$long"
"$K3" plan ckpt 2>&1 | sed "s/$long/LONG/g"
rm "ckpt/$long"
printf x >"$(printf 'ckpt/a\033[31mb')"
"$K3" plan ckpt 2>&1 | cat -v
