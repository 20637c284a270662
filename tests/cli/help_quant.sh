# What --quant takes, in help and as a man page, out of the parser's own tables: all that is listed
# there is taken, and what a role does not take is not.
"$K3" help quant
"$K3" man quant >page.1
! command -v man >/dev/null || MANWIDTH=80 man -l page.1 >/dev/null || echo "no man page"
words() { # HEADING: the first column below it
    "$K3" help quant | sed -n "/^$1/,/^$/p" | sed -n 's/^  \([a-z0-9-][a-z0-9-]*\)  .*/\1/p'
}
"$K3" synth ckpt --preset tiny --quiet >/dev/null
for policy in $(words Policies); do
    "$K3" plan ckpt --tp 1 --quant $policy --quiet >said 2>&1 ||
        grep -q 'do not divide' said || echo "$policy is no policy"
done
for format in $(words Formats); do
    for role in attention experts head; do
        "$K3" plan ckpt --tp 1 --quant $role=$format --quiet >said 2>&1 ||
            grep -q 'do not divide' said || echo "$role=$format is not taken"
    done
done
words Policies | wc -l
words Formats | wc -l
# both pages lead there
"$K3" man plan | tail -n 1
"$K3" man | tail -n 1
"$K3" help quants
"$K3" help covnert
"$K3" man pln
true
