# Man pages of the tool and of every command: no warning from a roff checker where there is one.
for command in '' plan convert seal verify inspect export load bench doctor synth help man completion version quant; do
    "$K3" man $command >page.1 || exit 1
    head -n 1 page.1 | sed "s|shard [0-9.]*|shard VERSION|"
    ! command -v groff >/dev/null || groff -man -ww -z page.1 || exit 1
done
