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
# Commands are printed to be pasted: what they name comes out of a shell as it was.
rm -r ckpt set
odd="$PWD/it's \$(touch PWNED) here"
esc="$PWD/$(printf 'e\033[31mc')"
revision="r'; touch PWNED; '"
mkdir "$odd" "$esc"
"$K3" synth "$odd/ckpt" --preset tiny --quiet >/dev/null
"$K3" convert "$odd/ckpt" --out "$odd/set" --tp 1 --revision "$revision" --quiet >/dev/null
"$K3" inspect "$odd/set" --json >before
echo x >>"$odd/set/config.json"
next=$("$K3" plan "$odd/ckpt" --tp 1 | sed -n 's/^next: k3-shard //p')
eval "\"\$K3\" ${next/--out DIR/--out other} --quiet" >/dev/null
echo "plan's next: exit $?"
next=$("$K3" verify "$odd/set" 2>/dev/null | sed -n 's/^next .*or convert again: k3-shard //p')
eval "\"\$K3\" ${next/CKPT/\"\$odd/ckpt\"} --quiet" >/dev/null 2>&1
echo "verify's next: exit $?"
"$K3" inspect "$odd/set" --json >after
cmp before after && echo "the same plan"
[ ! -e PWNED ] || echo "PWNED"
cp -r "$odd/ckpt" "$esc/ckpt"
for command in "plan $esc/ckpt --tp 1" "inspect $esc/ckpt" "convert $esc/ckpt --out $esc/set --tp 1 --quiet" \
    "verify $esc/set" "verify $esc/ckpt/config.json"; do
    "$K3" $command 2>&1 | grep -c "$(printf '\033')" || true
done
