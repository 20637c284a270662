# A second signal ends a command that is stuck; two at once are one wish, as timeout(1) sends them.
set -m # else jobs in the background ignore SIGINT
"$K3" synth ckpt --preset tiny --experts 192 --quiet >/dev/null
mkfifo pipe
exec 3<>pipe
stuck() { # in a write: nobody takes more than the first byte of what fills the pipe
    "$K3" inspect ckpt/model-00002-of-000008.safetensors --json >pipe 3>&- &
    pid=$!
    head -c 1 <&3
    echo
}
stuck
kill -TERM $pid
sleep 1
kill -TERM $pid
wait $pid 2>/dev/null
echo "exit $?"
exec 3>&-
exec 3<>pipe
stuck
kill -INT $pid
kill -TERM $pid
kill -0 $pid && echo "still there"
cat <&3 >rest &
cat=$!
disown $cat # its end is no news: when the shell told of it was chance
wait $pid 2>/dev/null
echo "exit $?"
kill $cat
# A load that is stopped says what is left of it.
"$K3" convert ckpt --out set --tp 2 --quiet >/dev/null
"$K3" load set --max-bandwidth 1MB/s --quiet 2>told >out &
pid=$!
sleep 1
kill -INT $pid
wait $pid 2>/dev/null
echo "exit $?"
cat out
sed -E 's/after [0-9]+ of [0-9]+ bytes/after SOME of ALL bytes/' told
