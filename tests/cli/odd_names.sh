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
    "verify $esc/set" "verify $esc/set --against $esc/ckpt" "verify $esc/ckpt/config.json" \
    "convert $esc/ckpt --out $esc/cast --tp 1 --quant nvfp4 --oow snap --quiet" \
    "convert $esc/ckpt --out $esc/cast --tp 1 --quant nvfp4 --oow snap" "export $esc/set --to $esc/again" \
    "synth $esc/synth --preset tiny" "seal --out $esc/set" "inspect $esc/set/config.json --digest"; do
    "$K3" $command 2>&1 | grep -ac "$(printf '\033')" || true
done
# the same in refusals: the order of directories (cut, it is left out), a folder to make, a time to give back
mkdir "x y"
"$K3" convert "$odd/ckpt" --out "x y/a" --out "x y/b" --tp 2 --quiet >/dev/null
"$K3" seal --out "x y/b" --out "x y/a" 2>&1
deep=$(printf 'd%.0s' $(seq 200))/$(printf 'e%.0s' $(seq 100))
mkdir -p "$deep/a b" "$deep/c"
"$K3" convert "$odd/ckpt" --out "$deep/a b" --out "$deep/c" --tp 2 --quiet >/dev/null
"$K3" seal --out "$deep/c" --out "$deep/a b" 2>&1 | grep -o 'of the first run:.*'
"$K3" convert "$odd/ckpt" --out 'n w/x/y' --tp 2 2>&1
"$K3" convert "$odd/ckpt" --out "x y/u" --tp 2 --worker 0 --workers 1000 --quiet | grep -o 'done: .*'
touch -d @1700000001 "$odd/ckpt/model-00006-of-000008.safetensors"
step=$("$K3" convert "$odd/ckpt" --out "x y/u" --tp 2 2>&1 | sed -n 's/.*give that back (\(.*\)) and run .*/\1/p')
eval "$step"
echo "touch: exit $?"
"$K3" convert "$odd/ckpt" --out "x y/u" --tp 2 --worker 0 --workers 1000 --quiet | grep -o '[0-9]* resumed'
for file in "$odd"/ckpt/model-0000?-of-*; do touch -d @1700000001 "$file"; done
"$K3" convert "$odd/ckpt" --out "x y/u" --tp 2 2>&1 | grep -o -e "were changed, rm .* and run" -e "(k3-shard verify .* --against"
