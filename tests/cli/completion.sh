# The scripts are read by their shells (those that are here), and bash's completes.
"$K3" completion bash >bash.sh && bash -n bash.sh || exit 1
for shell in zsh fish; do
    "$K3" completion $shell >$shell.sh || exit 1
    ! command -v $shell >/dev/null || $shell -n $shell.sh || exit 1
done
compopt() { :; }
. ./bash.sh
complete_line() {
    COMP_WORDS=("$@")
    COMP_CWORD=$(($# - 1))
    COMPREPLY=()
    _k3_shard
    echo "$* -> ${COMPREPLY[*]}"
}
mkdir out.d
complete_line k3-shard ''
complete_line k3-shard --
complete_line k3-shard co
complete_line k3-shard plan --p
complete_line k3-shard plan --experts ''
complete_line k3-shard plan --experts = e
complete_line k3-shard synth --experts ''
complete_line k3-shard synth --preset t
complete_line k3-shard convert ckpt --out out
complete_line k3-shard verify o
complete_line k3-shard help ve
complete_line k3-shard man qu
complete_line k3-shard completion ''
