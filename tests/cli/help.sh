# The help of the tool, in each way of asking.
"$K3" --help
"$K3" help | cmp - <("$K3" -h) || echo "help and -h differ"
# README lists the same exit codes, under the same words.
"$K3" --help | tr '\n' ' ' | sed -E 's/.*Exit codes: (.*)\. $/\1/' >told
sed -nE 's/^(0 done .*)\. Results go to.*/\1/p' "$K3_SOURCE/README.md" | sed 's/ ·/;/g' | tr -d '\n' >readme
diff told readme && test -s told || echo "README and --help list other exit codes"
